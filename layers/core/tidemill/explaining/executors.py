"""What keeps a pending task from running because of who is at work, or who is not. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from tidemill.control import Held, Service
from tidemill.explaining.values import Facts
from tidemill.explaining.words import MAX_NAMED, holders, short, when
from tidemill.model import LANES, Task

TICK_PATIENCE: Final = timedelta(minutes=3)
"""Ticks come every minute unless the deployment says otherwise: after so long without one, somebody should look."""

_SEE: Final = "see whether the schedule is enabled and what the function execute logs, or start `tidemill work`"


def no_tick(_task: Task, facts: Facts) -> str | None:
    """Say that nobody is at work, and nobody comes."""
    came_at = facts.standing.came_at
    if facts.standing.at_work or _has_ticked(facts):
        return None
    since = "no invocation has ever come" if came_at is None else f"none has come since {when(came_at, facts)}"
    return (
        f"No executor is at work, and {since}. A tick starts one every minute unless ExecuteSchedule says otherwise: "
        f"{_SEE}."
    )


def not_served(task: Task, facts: Facts) -> str | None:
    """Say that those at work serve something else; before it is due that matters only where no other comes."""
    standing = facts.standing
    is_early = task.due_at > facts.now and _has_ticked(facts)
    if is_early or not standing.at_work or standing.serving(task.queue, task.lane):
        return None
    then = "A tick starts one for all, unless its event chooses too" if _has_ticked(facts) else f"For others: {_SEE}"
    return (
        f"None of the executors at work serves queue {short(task.queue)}, lane {task.lane}: "
        f"{_services(standing.at_work)}. {then}."
    )


def seats(task: Task, facts: Facts) -> str | None:
    """Say that no other executor can come, as all seats are taken."""
    standing = facts.standing
    limit, serving = standing.seats, standing.serving(task.queue, task.lane)
    is_worked_for = any(one in standing.workers for one in serving)
    if is_worked_for or limit is None or sum(one.n for one in standing.seated) < limit:
        return None
    until = "one of them comes to it" if serving else "one of them leaves"
    return (
        f"Executors are at work on all {limit} seats: {holders(standing.seated, facts)}. "
        f"It has to wait until {until}; MAX_EXECUTORS sets how many there are."
    )


def no_executor(task: Task, facts: Facts) -> str | None:
    """Say that nobody is at work just now."""
    standing = facts.standing
    if standing.came_at is None or standing.at_work or not _has_ticked(facts):
        return None
    came = f"No executor is at work now: the last one came at {when(standing.came_at, facts)}"
    if standing.came.covers(task.queue, task.lane):
        return f"{came}, and the next tick starts one."
    return f"{came} and served only {_service(standing.came)}. A tick starts one for all, unless its event chooses too."


def _has_ticked(facts: Facts) -> bool:
    came_at = facts.standing.came_at
    return came_at is not None and facts.now - came_at <= TICK_PATIENCE


def _services(at_work: Sequence[Held]) -> str:
    named = [f"{short(one.owner)} serves {_service(one.service)}" for one in at_work[:MAX_NAMED]]
    others = [f"{len(at_work) - MAX_NAMED} more serve others"] if len(at_work) > MAX_NAMED else []
    return ", ".join(named + others)


def _service(service: Service) -> str:
    queues = [short(one) for one in service.queues[:MAX_NAMED]]
    more = len(service.queues) - len(queues)
    listed = ", ".join(queues) + (f" and {more} more" if more else "")
    lanes = "" if service.lanes == LANES else f" in lane {' and '.join(service.lanes) or 'none'}"
    return f"{'queue' if len(service.queues) == 1 else 'queues'} {listed}{lanes}" if queues else f"all queues{lanes}"
