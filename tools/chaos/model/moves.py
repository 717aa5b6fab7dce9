"""What may come next, how often, and when it makes sense."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from tools.chaos.model.dying import unexported
from tools.chaos.model.meddling import Meddling

MOST_TASKS: Final = 30
"""With so many, nothing is added."""


def _always(_: Meddling) -> bool:
    return True


def _has_room(one: Meddling) -> bool:
    return len(one.world.tasks) < MOST_TASKS


def _has_tasks(one: Meddling) -> bool:
    return bool(one.world.tasks)


def _has_due(one: Meddling) -> bool:
    return bool(one.due_anywhere(one.world, now=one.clock.now()))


def _holds(one: Meddling) -> bool:
    return bool(one.held)


def _waits(one: Meddling) -> bool:
    return any(it.get("next_retry_at") is not None for it in one.world.tasks.values())


def _has_failed(one: Meddling) -> bool:
    is_begun = any("redrive_started_at" in it for it in one.world.letters.values())
    return is_begun or any(it.get("status") == "failed" for it in one.world.tasks.values())


def _has_letters(one: Meddling) -> bool:
    return bool(one.world.letters)


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A rule with four numbers to choose by, its weight, and what has to be so."""

    weight: int
    do: Callable[[Meddling, int, int, int, int], None]
    when: Callable[[Meddling], bool] = _always


MOVES: Final[Mapping[str, Move]] = {
    "enqueue": Move(weight=2, when=_has_room, do=lambda one, a, b, _c, _d: one.enqueue(a, b)),
    "enqueue_keyed": Move(weight=3, when=_has_room, do=lambda one, a, b, _c, _d: one.enqueue_keyed(a, b)),
    "enqueue_many": Move(weight=3, when=_has_room, do=lambda one, a, b, c, _d: one.enqueue_many(a, b, c)),
    "enqueue_in_a_transaction": Move(
        weight=2, when=_has_room, do=lambda one, a, b, c, _d: one.enqueue_in_a_transaction(a, b, c)
    ),
    "insert": Move(weight=3, when=_has_room, do=lambda one, a, b, _c, _d: one.insert(a, b)),
    "claim_from_the_head": Move(weight=5, when=_has_due, do=lambda one, a, b, _c, _d: one.claim_from_the_head(a, b)),
    "claim": Move(weight=3, when=_has_due, do=lambda one, a, b, c, _d: one.claim(a, b, c)),
    "claim_as_executors_do": Move(weight=3, do=lambda one, a, b, c, _d: one.claim_as_executors_do(a, b, c)),
    "execute": Move(weight=1, when=_has_due, do=lambda one, *_: one.execute()),
    "settle": Move(weight=6, when=_holds, do=lambda one, a, b, _c, _d: one.settle(a, b)),
    "settle_many": Move(weight=4, when=_holds, do=lambda one, a, b, c, _d: one.settle_many(a, b, c)),
    "succeed_together": Move(weight=2, when=_holds, do=lambda one, a, b, _c, _d: one.succeed_together(a, b)),
    "settle_once_more": Move(
        weight=3, when=lambda one: bool(one.over), do=lambda one, a, b, _c, _d: one.settle_once_more(a, b)
    ),
    "release": Move(weight=2, when=_holds, do=lambda one, a, b, _c, _d: one.release(a, b)),
    "extend": Move(weight=2, when=_holds, do=lambda one, a, b, _c, _d: one.extend(a, b)),
    "admit": Move(weight=3, when=_holds, do=lambda one, a, _b, _c, _d: one.admit(a)),
    "cancel": Move(weight=4, when=_has_tasks, do=lambda one, a, b, _c, _d: one.cancel(a, b)),
    "retry_now": Move(weight=2, when=_waits, do=lambda one, a, _b, _c, _d: one.retry_now(a)),
    "pause_or_resume": Move(weight=1, do=lambda one, a, _b, _c, _d: one.pause_or_resume(a)),
    "hold_retries": Move(weight=1, do=lambda one, a, _b, _c, _d: one.hold_retries(a)),
    "time_passes": Move(weight=5, do=lambda one, a, _b, _c, _d: one.time_passes(a)),
    "the_clock_is_set_back": Move(weight=2, do=lambda one, a, _b, _c, _d: one.the_clock_is_set_back(a)),
    "reclaim": Move(weight=3, when=_has_tasks, do=lambda one, a, _b, _c, _d: one.reclaim(a)),
    "archive": Move(weight=7, when=_has_failed, do=lambda one, *_: one.archive()),
    "export": Move(
        weight=3,
        when=lambda one: bool(unexported(one.world, now=one.clock.now())),
        do=lambda one, a, _b, _c, _d: one.export(a),
    ),
    "redrive": Move(weight=8, when=_has_letters, do=lambda one, a, b, _c, _d: one.redrive(a, b)),
    "purge": Move(weight=1, when=_has_letters, do=lambda one, a, _b, _c, _d: one.purge(a)),
    "die_at_a_call": Move(weight=4, when=_has_tasks, do=lambda one, a, b, c, d: one.die_at_a_call(a, b, c, d)),
    "archive_twice": Move(weight=2, when=_has_failed, do=lambda one, a, b, c, _d: one.archive_twice(a, b, c)),
    "die_while_redriving": Move(
        weight=4, when=_has_letters, do=lambda one, a, b, c, _d: one.die_while_redriving(a, b, c)
    ),
    "do_two_things_at_once": Move(
        weight=5, when=_has_tasks, do=lambda one, a, b, c, d: one.do_two_things_at_once(a, b, c, d)
    ),
    "edit": Move(weight=2, when=_has_tasks, do=lambda one, a, b, _c, _d: one.edit(a, b)),
    "spoil": Move(weight=3, when=_has_tasks, do=lambda one, a, b, _c, _d: one.spoil(a, b)),
    "delete": Move(weight=1, when=_has_tasks, do=lambda one, a, _b, _c, _d: one.delete(a)),
}
"""All rules. They are drawn by one rule of Hypothesis: of many, it would have each example use a few."""

INSTEAD: Final = ("settle", "claim_from_the_head", "enqueue_many", "time_passes")
"""What is done in the place of what makes no sense."""

NAMES: Final = tuple(name for name, move in MOVES.items() for _ in range(move.weight))
