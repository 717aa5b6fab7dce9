"""What becomes of a document that cannot be a task. Pure."""

from __future__ import annotations

from tidemill.documents import STATUSES
from tidemill.explaining.values import Facts
from tidemill.explaining.words import ARCHIVED, RECLAIM, id_of, letter_command, short, when
from tidemill.model import Malformed


def malformed(task: Malformed, facts: Facts) -> str:
    """Return what is wrong with it, and what becomes of it."""
    return f"No executor can run it: {short(task.problem)}. {_then(task, facts)}."


def _then(task: Malformed, facts: Facts) -> str:
    if facts.is_dead_letter:
        return f"It is a dead letter: {letter_command('show', id_of(task.id))} has more of it"
    match task.status:
        case "pending":
            return f"It is pending: {RECLAIM} completes it where its meaning is plain, and otherwise makes it fail"
        case "processing":
            return _held(task, facts)
        case "failed":
            return f"It has failed, and {ARCHIVED}"
        case str(status) if status in STATUSES:
            return f"It has ended: {status}"
        case _:
            return f"Nobody looks at it as it is: its status has to be one of {', '.join(STATUSES)}"


def _held(task: Malformed, facts: Facts) -> str:
    lease = task.lease
    if lease is None:
        return f"It was claimed and its lease makes no sense: {RECLAIM} makes it fail"
    owner, until = short(lease.owner), when(lease.expires_at, facts)
    if lease.expires_at > facts.now:
        return f"{owner} holds it until {until}; then it fails"
    return f"{owner} held it until {until}: {RECLAIM} makes it fail"
