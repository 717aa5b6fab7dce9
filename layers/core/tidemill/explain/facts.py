"""Facts that explain a task: what is stored about it, and its turn among the due tasks of its queue.

The selection of the order is the queue's own, or else the deployment's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, assert_never

from tidemill.control.fleet import FleetStatus, load_fleet_status
from tidemill.control.queues import load_options
from tidemill.control.task_types import RegistrationFault, read_registrations
from tidemill.dead_letters.queries import find_latest
from tidemill.model import LANES, Lane, Malformed, QueueOptions, Selection, Task, TaskId
from tidemill.policy.failures import truncate_text
from tidemill.policy.scheduling import FRESH, RETRY, Lanes
from tidemill.store import counts
from tidemill.store import tasks as store_tasks
from tidemill.store.connection import Tasks
from tidemill.store.counts import COUNT_LIMIT
from tidemill.text import format_time_and_distance

MAX_WORD_LENGTH: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts about a task, and about its queue and executors; the latter only if it is pending.

    Attributes:
        ahead: Number of due tasks of its queue that go before it, by lane, up to `COUNT_LIMIT` + 1 in all.
        is_known: An executor has registered its function.
        is_any_known: An executor has registered some function.
        fault: Fault because of which executors cannot run its function.
    """

    task: Task | Malformed
    now: datetime
    is_dead_letter: bool = False
    options: QueueOptions = field(default_factory=QueueOptions)
    standing: FleetStatus = field(default_factory=FleetStatus)
    ahead: Mapping[Lane, int] = field(default_factory=dict)
    is_known: bool = True
    is_any_known: bool = True
    fault: RegistrationFault | None = None


def read_facts(tasks: Tasks, dead: Tasks, task_id: TaskId, *, now: datetime) -> Facts | None:
    """Return the facts about a task with five commands if it is pending, else with at most three; ``None`` without it.

    Raises:
        UnavailableError: MongoDB did not answer.
    """
    alive = store_tasks.get(tasks, task_id)
    letter = find_latest(dead, task_id) if alive is None else None
    if letter is not None:
        return Facts(task=letter, now=now, is_dead_letter=True)
    # A redrive may have inserted the task between the first two reads.
    task = alive or store_tasks.get(tasks, task_id)
    if isinstance(task, Task) and task.status == "pending":
        return _read_pending_facts(tasks, task, now=now)
    return None if task is None else Facts(task=task, now=now)


def _read_pending_facts(tasks: Tasks, task: Task, *, now: datetime) -> Facts:
    registrations = read_registrations(tasks.database)
    options = load_options(tasks.database, task.queue) or QueueOptions()
    executors = load_fleet_status(tasks.database, queue=task.queue, now=now)
    task_turn = find_turn(task, options, executors)
    return Facts(
        task=task,
        now=now,
        options=options,
        standing=executors,
        ahead=counts.count_ahead(tasks, task, now=now, in_order=task_turn.in_order, first=task_turn.first),
        is_known=task.name in registrations.names,
        is_any_known=bool(registrations.names),
        fault=registrations.faults.get(task.name),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Order in which a task is taken.

    Attributes:
        in_order: Lanes whose due tasks compete with it by priority, due time and id.
        first: Lane whose due tasks all go before it.
        limit: Maximum number of retries that can go before it; ``None`` without a limit.
        retry_share: Share of the slots for retries, if each lane has a share.
    """

    selection: Selection
    in_order: Lanes
    first: Lanes = ()
    limit: int | None = None
    retry_share: float | None = None


def find_turn(task: Task, options: QueueOptions, fleet: FleetStatus) -> Turn:
    """Return the order in which *task* is taken, by the executors that serve it, or else by the last one that came."""
    serving = [executor.subscription for executor in fleet.serving(task.queue, task.lane)]
    service = next(iter(serving), fleet.last_request)
    selection = service.asked or options.selection or service.selection
    share = service.retry_share if options.retry_share is None else options.retry_share
    alone: Lanes = (task.lane,)
    limit = count_free_retries(options, fleet) if task.lane == "fresh" else None
    if limit == 0 or any(len(service.lanes) == 1 for service in serving):  # the other lane cannot delay it
        return Turn(selection=selection, in_order=alone)
    match selection:
        case "oldest_first":
            return Turn(selection=selection, in_order=LANES, limit=limit)
        case "retries_first":
            return Turn(selection=selection, in_order=alone, first=RETRY if task.lane == "fresh" else (), limit=limit)
        case "weighted":
            first = _LANES_WITH_ALL_SLOTS.get((task.lane, share), ())
            return Turn(selection=selection, in_order=alone, first=first, limit=limit, retry_share=share)
        case _:
            assert_never(selection)


def count_free_retries(options: QueueOptions, fleet: FleetStatus) -> int | None:
    """Return how many more retries of the queue may be in flight; ``None`` without a limit."""
    limit = options.max_in_flight_retries
    return None if limit is None else max(limit - sum(permit.n for permit in fleet.retries), 0)


def explain_no_share(task: Task, facts: Facts) -> str | None:
    """Return the reason if the other lane has all slots as long as it needs them."""
    task_turn = find_turn(task, facts.options, facts.standing)
    count = _count_other_lane(task, facts, task_turn)
    if task_turn.retry_share is None or not task_turn.first or not count:
        return None
    whose = "no share" if task.lane == "retry" else "all"
    change = format_command("ops queue set", format_word(task.queue, "QUEUE"), "--retry-share X")
    due = f"{_format_count(count)} of lane {task_turn.first[0]} {'is' if count == 1 else 'are'} due"
    return (
        f"Retries of queue {shorten(task.queue)} have {whose} of the slots, retry_share is {task_turn.retry_share:g}: "
        f"a {_LANE_NOUNS[task.lane]} starts only where a slot is left over, and {due}; {change} changes it."
    )


def explain_order(task: Task, facts: Facts) -> str | None:
    """Return the reason if other due tasks go before it, with their number and order."""
    task_turn = find_turn(task, facts.options, facts.standing)
    count_of_other_lane = 0 if task_turn.retry_share is not None else _count_other_lane(task, facts, task_turn)
    count = facts.ahead.get(task.lane, 0) + count_of_other_lane
    if not count:
        return None
    due = "due task" if count == 1 else "due tasks"
    lane = _describe_lane(task, task_turn)
    return (
        f"It is behind {_format_count(count)} other {due} of queue {shorten(task.queue)}{lane}: "
        f"{_describe_order(task_turn)}a higher priority than its {task.priority} goes first, then who was due before "
        f"{format_when(task.due_at, facts)}.{_describe_shares(task_turn)}"
    )


def _count_other_lane(task: Task, facts: Facts, task_turn: Turn) -> int:
    """Return the number of tasks of the other lane that go before *task*."""
    count = sum(n for lane, n in facts.ahead.items() if lane != task.lane)
    if task_turn.limit is None or sum(facts.ahead.values()) > COUNT_LIMIT:
        return count
    return min(count, task_turn.limit)


def _describe_lane(task: Task, task_turn: Turn) -> str:
    return f" and lane {task.lane}" if len(task_turn.in_order) == 1 and not task_turn.first else ""


def _describe_order(task_turn: Turn) -> str:
    match task_turn.selection:
        case "retries_first" if task_turn.first:
            return "by its selection, retries_first, retries go before fresh tasks; then "
        case "oldest_first" if len(task_turn.in_order) > 1:
            return "by its selection, oldest_first, both lanes are one; "
        case _:
            return ""


def _describe_shares(task_turn: Turn) -> str:
    if task_turn.retry_share is None or task_turn.first:
        return ""
    return f" Retries hold {task_turn.retry_share:g} of the slots while both lanes have due tasks."


def _format_count(count: int) -> str:
    return f"{COUNT_LIMIT}+" if count > COUNT_LIMIT else str(count)


def format_when(at: datetime, facts: Facts) -> str:
    """Return a time, with its distance from the time of *facts*."""
    return format_time_and_distance(at, now=facts.now)


def shorten(word: str) -> str:
    """Return *word* in a bounded length: anyone may have written it."""
    return truncate_text(word, MAX_WORD_LENGTH)


def format_command(action: str, *words: str) -> str:
    """Return the command of the operator for *action*."""
    return f"`tidemill {' '.join((action, *words))}`"


def format_word(text: str, stand_in: str) -> str:
    """Return *text* if a shell takes it unquoted, else *stand_in*."""
    return text if re.fullmatch(r"[A-Za-z0-9_.:@/][A-Za-z0-9_.:@/-]{0,199}", text) else stand_in


_LANES_WITH_ALL_SLOTS: Final[dict[tuple[str, float], Lanes]] = {("retry", 0.0): FRESH, ("fresh", 1.0): RETRY}
"""Lane that has all slots while it has due tasks, by the lane of a task and the share of retries."""

_LANE_NOUNS: Final = {"fresh": "fresh task", "retry": "retry"}
