"""What keeps a pending task from running: what it is, what its queue chooses, and who is at work. Pure."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Final, TypeAlias

from tidemill.admission import UNKNOWN_NAME_PATIENCE, UNKNOWN_NAME_SNOOZE, was_started
from tidemill.explaining import executors
from tidemill.explaining.turns import behind, room_of_retries, shareless
from tidemill.explaining.values import Facts, Reason
from tidemill.explaining.words import command, holders, id_of, last_error, short, when, word
from tidemill.model import Task

SETTLES_WITHIN: Final = timedelta(seconds=1)
"""What is put off is written so soon; an executor under load takes a part of it."""

_Look: TypeAlias = Callable[[Task, Facts], str | None]


def obstacles(task: Task, facts: Facts) -> tuple[Reason, ...]:
    """Return everything that stands in the way of a pending *task*, what decides first; nothing if nothing does."""
    looks = _ALWAYS if task.due_at > facts.now else _ALWAYS | _WHEN_DUE
    found = {code: look(task, facts) for code, look in looks.items()}
    return tuple(Reason(code=code, message=message) for code, message in found.items() if message is not None)


def _expired(task: Task, facts: Facts) -> str | None:
    if task.expires_at is None or task.expires_at > facts.now or was_started(task, attempts=task.attempts):
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
    hurry = command("task retry", id_of(task.id))
    message = f"{failed} is not due until {when(task.due_at, facts)}; {hurry} makes it due at once."
    expires_at = task.expires_at
    if expires_at is None or not facts.now < expires_at <= task.due_at or was_started(task, attempts=task.attempts):
        return message
    return f"{message} But it has to start before {when(expires_at, facts)}, or it fails."


def _paused(task: Task, facts: Facts) -> str | None:
    if not facts.options.paused:
        return None
    resume = command("queue resume", word(task.queue, "QUEUE"))
    return f"Queue {short(task.queue)} is paused: nothing of it starts until {resume}."


def _unknown(task: Task, facts: Facts) -> str | None:
    standing = facts.standing
    has_any_run = facts.is_any_known or standing.came_at is not None or bool(standing.at_work)
    if facts.is_known or not has_any_run:
        return None
    ends = max(task.created_at + UNKNOWN_NAME_PATIENCE, task.due_at)
    then = "the next claim makes it fail"
    if ends > facts.now:
        then = f"it waits, and the first claim after {when(ends, facts)} makes it fail"
    return (
        f"No executor has registered a function {short(task.name)}: {then}, and it becomes a dead letter. "
        "Deploy one that has it."
    )


def _put_off(task: Task, facts: Facts) -> str | None:
    """Say that it looks as if an executor without its function had put it off; a function may do the same."""
    has_failed_last = task.error is not None and task.error.at >= task.updated_at
    if task.due_at <= facts.now or not facts.is_known or task.settled_by is None or has_failed_last:
        return None
    span = task.due_at - task.created_at
    age = min(span - UNKNOWN_NAME_SNOOZE, span * 0.8)  # when it was claimed, by how admission waits
    settling = task.updated_at - task.created_at - age
    if not timedelta(0) <= settling <= SETTLES_WITHIN or not timedelta(0) <= age < UNKNOWN_NAME_PATIENCE:
        return None
    return (
        f"It was claimed and put off at {when(task.updated_at, facts)}, as executors do that have no function "
        f"{short(task.name)}, unless that snoozed by itself: see whether all of them run a release that has it."
    )


def _retry_cap(task: Task, facts: Facts) -> str | None:
    limit, held = facts.options.max_in_flight_retries, facts.standing.retries
    if task.lane != "retry" or room_of_retries(facts.options, facts.standing) != 0:
        return None
    change = command("queue set", word(task.queue, "QUEUE"), "--max-in-flight-retries N")
    return (
        f"Queue {short(task.queue)} has as many retries in flight as it allows, {limit}: {holders(held, facts)}. "
        f"It has to wait for one of them to end; {change} sets how many."
    )


_ALWAYS: Final[dict[str, _Look]] = {
    "expired": _expired,
    "cancel_asked": _cancel_asked,
    "not_due": _not_due,
    "put_off": _put_off,
    "paused": _paused,
    "unknown_task": _unknown,
    "retry_cap": _retry_cap,
    "no_tick": executors.no_tick,
    "not_served": executors.not_served,
}
_WHEN_DUE: Final[dict[str, _Look]] = {
    "seats": executors.seats,
    "retry_share": shareless,
    "behind": behind,
    "no_executor": executors.no_executor,
}
