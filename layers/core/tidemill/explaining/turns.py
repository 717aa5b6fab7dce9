"""Which due tasks of its queue go before a task: what its queue selects decides, else the deployment. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, assert_never

from tidemill.control import Standing
from tidemill.explaining.values import Facts
from tidemill.explaining.words import command, short, when, word
from tidemill.model import LANES, Task
from tidemill.policies import QueueOptions, Selection
from tidemill.selection import FRESH, RETRY, Lanes
from tidemill.store.gauges import MANY


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """How a task's turn comes.

    Attributes:
        in_order: The lanes whose due tasks it takes turns with, by priority, due time and id.
        first: The lane of which every due task goes before it.
        limit: How many retries can go before it at most, where they are bounded.
        retry_share: The part of the slots that retries hold, where each lane has its share.
    """

    selection: Selection
    in_order: Lanes
    first: Lanes = ()
    limit: int | None = None
    retry_share: float | None = None


def turn(task: Task, options: QueueOptions, standing: Standing) -> Turn:
    """Return how the turn of *task* comes: with the executors that serve it, or else with the last one that came."""
    serving = [one.service for one in standing.serving(task.queue, task.lane)]
    service = next(iter(serving), standing.came)
    selection = service.asked or options.selection or service.selection
    share = service.retry_share if options.retry_share is None else options.retry_share
    alone: Lanes = (task.lane,)
    limit = room_of_retries(options, standing) if task.lane == "fresh" else None
    if limit == 0 or any(len(one.lanes) == 1 for one in serving):  # nobody of the other lane can be in its way
        return Turn(selection=selection, in_order=alone)
    match selection:
        case "oldest_first":
            return Turn(selection=selection, in_order=LANES, limit=limit)
        case "retries_first":
            return Turn(selection=selection, in_order=alone, first=RETRY if task.lane == "fresh" else (), limit=limit)
        case "weighted":
            first = _SHARELESS.get((task.lane, share), ())
            return Turn(selection=selection, in_order=alone, first=first, limit=limit, retry_share=share)
        case _:
            assert_never(selection)


def room_of_retries(options: QueueOptions, standing: Standing) -> int | None:
    """Return how many more retries of the queue may be in flight, or ``None`` for any number."""
    limit = options.max_in_flight_retries
    return None if limit is None else max(limit - sum(one.n for one in standing.retries), 0)


def shareless(task: Task, facts: Facts) -> str | None:
    """Say that the other lane has all slots, as long as it needs them."""
    its_turn = turn(task, facts.options, facts.standing)
    count = _others(task, facts, its_turn)
    if its_turn.retry_share is None or not its_turn.first or not count:
        return None
    whose = "no share" if task.lane == "retry" else "all"
    change = command("queue set", word(task.queue, "QUEUE"), "--retry-share X")
    return (
        f"Retries of queue {short(task.queue)} have {whose} of the slots, retry_share is {its_turn.retry_share:g}: a "
        f"{_KINDS[task.lane]} starts only where a slot is left over, and {_number(count)} of lane {its_turn.first[0]} "
        f"{'is' if count == 1 else 'are'} due; {change} changes it."
    )


def behind(task: Task, facts: Facts) -> str | None:
    """Say how many go before it, and by what order."""
    its_turn = turn(task, facts.options, facts.standing)
    others = 0 if its_turn.retry_share is not None else _others(task, facts, its_turn)
    count = facts.ahead.get(task.lane, 0) + others
    if not count:
        return None
    due = "due task" if count == 1 else "due tasks"
    return (
        f"It is behind {_number(count)} other {due} of queue {short(task.queue)}{_where(task, its_turn)}: "
        f"{_order(its_turn)}a higher priority than its {task.priority} goes first, then who was due before "
        f"{when(task.due_at, facts)}.{_shares(its_turn)}"
    )


def _others(task: Task, facts: Facts, its_turn: Turn) -> int:
    """Return how many of the other lane go before *task*."""
    count = sum(n for lane, n in facts.ahead.items() if lane != task.lane)
    if its_turn.limit is None or sum(facts.ahead.values()) > MANY:
        return count
    return min(count, its_turn.limit)


def _where(task: Task, its_turn: Turn) -> str:
    return f" and lane {task.lane}" if len(its_turn.in_order) == 1 and not its_turn.first else ""


def _order(its_turn: Turn) -> str:
    match its_turn.selection:
        case "retries_first" if its_turn.first:
            return "by its selection, retries_first, retries go before fresh tasks; then "
        case "oldest_first" if len(its_turn.in_order) > 1:
            return "by its selection, oldest_first, both lanes are one; "
        case _:
            return ""


def _shares(its_turn: Turn) -> str:
    if its_turn.retry_share is None or its_turn.first:
        return ""
    return f" Retries hold {its_turn.retry_share:g} of the slots while both lanes have due tasks."


def _number(count: int) -> str:
    return f"{MANY}+" if count > MANY else str(count)


_SHARELESS: Final[dict[tuple[str, float], Lanes]] = {("retry", 0.0): FRESH, ("fresh", 1.0): RETRY}
"""Who gets no slot while there are others, at which share of the retries."""

_KINDS: Final = {"fresh": "fresh task", "retry": "retry"}
