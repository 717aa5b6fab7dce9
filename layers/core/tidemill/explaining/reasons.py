"""Facts in, reasons out: why a task is not running, or what it does instead. Pure."""

from __future__ import annotations

from typing import Final

from tidemill.explaining.malformed import malformed
from tidemill.explaining.obstacles import obstacles
from tidemill.explaining.values import Facts, Reason
from tidemill.explaining.words import ARCHIVED, RECLAIM, command, id_of, last_error, letter_command, short, when
from tidemill.model import Malformed, Task

NEXT: Final = Reason(
    code="next",
    message="It is due and nothing stands in its way: the next claim with a slot free for its lane takes it.",
)


def reasons(facts: Facts) -> tuple[Reason, ...]:
    """Return everything that keeps the task of *facts* from running, or what it does instead; what decides is first."""
    task = facts.task
    if isinstance(task, Malformed):
        return (Reason(code="malformed", message=malformed(task, facts)),)
    if facts.is_dead_letter or task.status not in {"pending", "processing"}:
        return (Reason(code="ended", message=_ended(task, facts)),)
    if task.status == "processing":
        return _processing(task, facts)
    return obstacles(task, facts) or (NEXT,)


def _ended(task: Task, facts: Facts) -> str:
    at = "" if task.finished_at is None else f" at {when(task.finished_at, facts)}"
    why = f"{short(task.reason or 'for no reason that is known')}{last_error(task)}"
    if facts.is_dead_letter:
        return f"It failed{at}, {why}, and is a dead letter: {letter_command('redrive', id_of(task.id))} runs it again."
    if task.status == "failed" and task.archive_error is not None:
        return f"It failed{at}, {why}, and cannot be moved to the dead letters: {short(task.archive_error)}."
    if task.status == "failed":
        return f"It failed{at}, {why}, and {ARCHIVED}."
    return f"It has ended{at}: {task.status}."


def _processing(task: Task, facts: Facts) -> tuple[Reason, ...]:
    lease = task.lease
    is_held = lease is not None and lease.expires_at > facts.now
    held = Reason(code="running" if is_held else "lease_over", message=_held(task, facts))
    return (held,) if task.cancel_requested_at is None else (held, _asked_to_stop(task, facts))


def _held(task: Task, facts: Facts) -> str:
    since, lease = when(task.updated_at, facts), task.lease
    if lease is None:
        return f"It was claimed at {since} and its lease makes no sense: {RECLAIM} takes it back."
    owner, until = short(lease.owner), when(lease.expires_at, facts)
    if lease.expires_at > facts.now:
        return f"It runs: {owner} claimed it at {since}, under a lease until {until}."
    return f"{owner} claimed it at {since} and its lease ended at {until}: {RECLAIM} takes it back."


def _asked_to_stop(task: Task, facts: Facts) -> Reason:
    at = when(task.cancel_requested_at or facts.now, facts)
    force = command("task cancel --force", id_of(task.id))
    message = f"It was asked to stop at {at}: it ends as cancelled unless it succeeds; {force} ends it now."
    return Reason(code="cancel_asked", message=message)
