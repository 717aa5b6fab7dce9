"""A dead letter as it is shown: neither its payload nor its result."""

from __future__ import annotations

from typing import Any

from tidemill.dead_letters import Letter
from tidemill.dead_letters.groups import Group
from tidemill.model import Malformed, TaskError
from tidemill.operations.task_documents import Allowances, listed_document, task_document
from tidemill.store import ids
from tidemill.wording import stamp

_TIMES = ("dead_lettered_at", "archived_at", "export_retry_at", "redrive_started_at", "redriven_at")


def letter_document(letter: Letter, allowances: Allowances) -> dict[str, Any]:
    """Return all that is shown of one letter."""
    return task_document(letter.task, allowances, is_dead=True) | _marks(letter)


def listed_letter(letter: Letter, allowances: Allowances) -> dict[str, Any]:
    """Return what is shown of a letter in a list."""
    return listed_document(letter.task, allowances, is_dead=True) | _marks(letter)


def death_document(letter: Letter) -> dict[str, Any]:
    """Return what is shown of another death of a task whose letter is shown."""
    return {
        "redrives": letter.id.redrives,
        "dead_lettered_at": stamp(letter.dead_lettered_at),
        "reason": letter.reason,
        "fingerprint": letter.fingerprint,
        "error": _error(letter),
        "redriven_at": stamp(letter.redriven_at),
    }


def group_document(group: Group) -> dict[str, Any]:
    """Return what is shown of a group."""
    return {
        "fingerprint": group.fingerprint,
        "letters": group.letters,
        "first_at": stamp(group.first_at),
        "last_at": stamp(group.last_at),
        "trend": list(group.trend),
        "sample": None if group.sample is None else _sample(group.sample),
    }


def _sample(letter: Letter) -> dict[str, Any]:
    name = None if isinstance(letter.task, Malformed) else letter.task.name
    return {
        "id": ids.shown(letter.id.task),
        "redrives": letter.id.redrives,
        "name": name,
        "reason": letter.reason,
        "error": _error(letter),
    }


def _marks(letter: Letter) -> dict[str, Any]:
    return {
        "redrives": letter.id.redrives,
        "fingerprint": letter.fingerprint,
        "reason": letter.reason,
        "export_attempts": letter.export_attempts,
        "export_error": letter.export_error,
        **{name: stamp(getattr(letter, name)) for name in _TIMES},
    }


def _error(letter: Letter) -> dict[str, Any] | None:
    error: TaskError | None = None if isinstance(letter.task, Malformed) else letter.task.error
    return None if error is None else {"code": error.code, "message": error.message, "at": stamp(error.at)}
