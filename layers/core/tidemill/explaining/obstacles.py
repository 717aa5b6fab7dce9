"""What keeps a pending task from running. Pure."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Final, TypeAlias

from tidemill.admission import UNKNOWN_NAME_PATIENCE
from tidemill.explaining.values import Facts, Reason
from tidemill.explaining.words import holders, last_error, short, when
from tidemill.model import Task
from tidemill.store.gauges import MANY

TICK_PATIENCE: Final = timedelta(minutes=3)
"""Ticks come every minute unless the deployment says otherwise: after so long without one, somebody should look."""

_Look: TypeAlias = Callable[[Task, Facts], str | None]


def obstacles(task: Task, facts: Facts) -> tuple[Reason, ...]:
    """Return everything that stands in the way of a pending *task*, what decides first; nothing if nothing does."""
    looks = _ALWAYS if task.due_at > facts.now else _ALWAYS | _WHEN_DUE
    found = {code: look(task, facts) for code, look in looks.items()}
    return tuple(Reason(code=code, message=message) for code, message in found.items() if message is not None)


def _expired(task: Task, facts: Facts) -> str | None:
    if task.expires_at is None or task.expires_at > facts.now or _was_started(task):
        return None
    return f"It had to start before {when(task.expires_at, facts)}: the next claim or reclaim makes it fail."


def _cancel_asked(task: Task, facts: Facts) -> str | None:
    if task.cancel_requested_at is None:
        return None
    return f"It was cancelled at {when(task.cancel_requested_at, facts)}: the next claim ends it."


def _not_due(task: Task, facts: Facts) -> str | None:
    if task.due_at <= facts.now:
        return None
    failed = f"Its last attempt failed{last_error(task)}; it" if task.lane == "retry" else "It"
    message = f"{failed} is not due until {when(task.due_at, facts)}; retry now makes it due at once."
    if task.expires_at is None or not facts.now < task.expires_at <= task.due_at or _was_started(task):
        return message
    return f"{message} But it has to start before {when(task.expires_at, facts)}, or it fails."


def _paused(task: Task, facts: Facts) -> str | None:
    if not facts.options.paused:
        return None
    return f"Queue {short(task.queue)} is paused: nothing of it starts until it is resumed."


def _unknown(task: Task, facts: Facts) -> str | None:
    has_any_run = facts.is_any_known or facts.standing.came_at is not None or _is_anybody_at_work(facts)
    if facts.is_known or not has_any_run:
        return None
    ends = task.created_at + UNKNOWN_NAME_PATIENCE
    then = "the next claim makes it fail, and it becomes a dead letter"
    if ends > facts.now:
        then = f"it waits with back-off until {when(ends, facts)}, then it becomes a dead letter"
    return f"No executor has registered a function {short(task.name)}: {then}. Deploy one that has it."


def _retry_cap(task: Task, facts: Facts) -> str | None:
    limit, held = facts.options.max_in_flight_retries, facts.standing.retries
    if task.lane != "retry" or limit is None or sum(one.n for one in held) < limit:
        return None
    return (
        f"Queue {short(task.queue)} has as many retries in flight as it allows, {limit}: {holders(held, facts)}. "
        "It has to wait for one of them to end; max_in_flight_retries sets how many."
    )


def _no_tick(_task: Task, facts: Facts) -> str | None:
    came_at = facts.standing.came_at
    if _is_anybody_at_work(facts) or _has_ticked(facts):
        return None
    since = "no invocation has ever come" if came_at is None else f"none has come since {when(came_at, facts)}"
    return (
        f"No executor is at work, and {since}. A tick starts one every minute unless ExecuteSchedule says otherwise: "
        "see whether the schedule is enabled and what the function execute logs, or start `tidemill work`."
    )


def _seats(_task: Task, facts: Facts) -> str | None:
    limit, seated = facts.standing.seats, facts.standing.seated
    if facts.standing.workers or limit is None or sum(one.n for one in seated) < limit:
        return None
    return (
        f"Executors are at work on all {limit} seats: {holders(seated, facts)}. "
        "It has to wait until one of them comes to it; MAX_EXECUTORS sets how many there are."
    )


def _behind(task: Task, facts: Facts) -> str | None:
    if not facts.ahead:
        return None
    number = f"{MANY}+" if facts.ahead > MANY else facts.ahead
    others = "due task" if facts.ahead == 1 else "due tasks"
    return (
        f"It is behind {number} other {others} of queue {short(task.queue)} and lane {task.lane}: a higher priority "
        f"than its {task.priority} goes first, then who was due before {when(task.due_at, facts)}."
    )


def _no_executor(_task: Task, facts: Facts) -> str | None:
    came_at = facts.standing.came_at
    if came_at is None or _is_anybody_at_work(facts) or not _has_ticked(facts):
        return None
    return f"No executor is at work now: the last one came at {when(came_at, facts)}, and the next tick starts one."


def _was_started(task: Task) -> bool:
    return task.attempts > 0 or task.crashes > 0


def _is_anybody_at_work(facts: Facts) -> bool:
    return bool(facts.standing.seated or facts.standing.workers)


def _has_ticked(facts: Facts) -> bool:
    came_at = facts.standing.came_at
    return came_at is not None and facts.now - came_at <= TICK_PATIENCE


_ALWAYS: Final[dict[str, _Look]] = {
    "expired": _expired,
    "cancel_asked": _cancel_asked,
    "not_due": _not_due,
    "paused": _paused,
    "unknown_task": _unknown,
    "retry_cap": _retry_cap,
    "no_tick": _no_tick,
}
_WHEN_DUE: Final[dict[str, _Look]] = {"seats": _seats, "behind": _behind, "no_executor": _no_executor}
