"""Move failed tasks to the dead letters: insert there first, delete here last, and run again after any stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from bson.raw_bson import RawBSONDocument

from tidemill.clock import Clock
from tidemill.dead_letters import moving
from tidemill.dead_letters.letters import dead_letter
from tidemill.store import Tasks

BATCH: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """How many failed tasks left.

    Attributes:
        moved: Are dead letters now.
        repeated: How many of them had been so before, by a move that was cut short or is made at the same time.
        stuck: Cannot be stored as dead letters, and stay.
    """

    moved: int = 0
    repeated: int = 0
    stuck: int = 0

    def __add__(self, other: Moved) -> Moved:
        """Return both together."""
        return Moved(
            moved=self.moved + other.moved,
            repeated=self.repeated + other.repeated,
            stuck=self.stuck + other.stuck,
        )


def move(
    tasks: Tasks,
    dead: Tasks,
    *,
    clock: Clock,
    until: float,
    monotonic: Callable[[], float] = time.monotonic,
) -> Moved:
    """Move failed tasks in batches until none is left or *until* (monotonic) is past.

    Stopped between insert and delete, a task is in both places until the next run, which finds its dead letter
    there and deletes the task. Another one at work here begins at the other end.
    """
    total = Moved()
    newest_first, may_turn = False, True
    while monotonic() < until:
        before = total.moved
        for batch in moving.failed(tasks, limit=BATCH, now=clock.now(), newest_first=newest_first):
            done = _move(tasks, dead, batch, now=clock.now())
            total += done
            if monotonic() >= until:
                return total
            if may_turn and done.repeated > len(batch) / 2:
                break
        else:
            return total
        newest_first, may_turn = not newest_first, total.moved > before
    return total


def _move(tasks: Tasks, dead: Tasks, batch: Sequence[RawBSONDocument], *, now: datetime) -> Moved:
    letters: list[tuple[RawBSONDocument, RawBSONDocument]] = []
    stuck: list[tuple[RawBSONDocument, str]] = []
    for raw in batch:
        try:
            letters.append((raw, dead_letter(raw, now=now)))
        except ValueError as error:
            stuck.append((raw, str(error)))
    moving.close_earlier(dead, [letter for _, letter in letters], now=now)
    buried = moving.bury(dead, [letter for _, letter in letters])
    safe = [letters[index][0] for index in (*buried.new, *buried.there)]
    stuck += [(letters[index][0], why) for index, why in buried.refused.items()]
    for index, redrives in buried.taken.items():
        raw = letters[index][0]
        again = moving.bury(dead, [dead_letter(raw, now=now, redrives=redrives)])
        safe += [raw] if again.new or again.there else []
        stuck += [(raw, why) for why in again.refused.values()]
        stuck += [(raw, "its id is taken by other deaths")] * len(again.taken)
    moved = moving.remove(tasks, safe)
    moving.put_off(tasks, stuck, now=now)
    return Moved(moved=moved, repeated=len(buried.there), stuck=len(stuck))
