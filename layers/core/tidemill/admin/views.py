"""Documents of an answer: tasks, dead letters and groups, without payloads, results and lease tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tidemill.admin.context import AdminContext
from tidemill.control import task_types
from tidemill.control.task_types import Directory
from tidemill.dead_letters.documents import DeadLetter
from tidemill.dead_letters.groups import Group
from tidemill.model import Attempt, Malformed, RetryPolicy, Task, TaskError
from tidemill.policy.retry import resolve_policy
from tidemill.store import tasks
from tidemill.text import iso_timestamp

_TIMES = ("due_at", "next_retry_at", "created_at", "updated_at", "finished_at", "expires_at", "cancel_requested_at")


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowances:
    """Number of attempts that tasks have, from what executors registered and from the deployment's policy."""

    directory: Directory | None
    retry: RetryPolicy
    is_deployed: bool

    def of(self, task: Task) -> dict[str, Any]:
        """Return the number of attempts for *task*, and whether it is an assumption.

        Without a directory the deployment's policy is assumed for all tasks without a policy of their own.
        """
        if self.directory is None:
            policy = resolve_policy(task, registered=self.retry, deployment=self.retry)
            return _build_allowance(policy, is_certain=task.max_retries is not None)
        policy = task_types.resolve_task_policy(task, self.directory, deployment=self.retry)
        registered = (self.directory.cached_task_type(task.name) or {}).get("max_retries")
        is_certain = self.is_deployed or task.max_retries is not None or registered is not None
        return _build_allowance(policy, is_certain=is_certain)


def build_allowances(context: AdminContext) -> Allowances:
    """Return the allowances, as far as the context knows them."""
    return Allowances(directory=context.directory, retry=context.retry, is_deployed=context.is_deployed)


def format_task(task: Task | Malformed, allowances: Allowances, *, is_dead: bool) -> dict[str, Any]:
    """Return the whole document of a task."""
    has_result = {} if isinstance(task, Malformed) else {"has_result": task.result is not None}
    log = {"attempt_log": [_build_log_line(line) for line in task.attempt_log]}
    return format_listed_task(task, allowances, is_dead=is_dead) | has_result | log


def format_listed_task(task: Task | Malformed, allowances: Allowances, *, is_dead: bool = False) -> dict[str, Any]:
    """Return the document of a task in a list, which is read without results and logs."""
    fields = {"malformed": task.problem} if isinstance(task, Malformed) else _build_fields(task) | allowances.of(task)
    lease = task.lease
    return {
        "id": tasks.format_id(task.id),
        "dead_letter": is_dead,
        **fields,
        "lease": None if lease is None else {"owner": lease.owner, "expires_at": iso_timestamp(lease.expires_at)},
    }


def _build_allowance(policy: RetryPolicy, *, is_certain: bool) -> dict[str, Any]:
    return {"attempts_allowed": policy.max_retries + 1, "attempts_allowed_assumed": not is_certain}


def _build_fields(task: Task) -> dict[str, Any]:
    error = task.error
    return {
        "name": task.name,
        "queue": task.queue,
        "status": task.status,
        "lane": task.lane,
        "priority": task.priority,
        "attempts": task.attempts,
        **{name: iso_timestamp(getattr(task, name)) for name in _TIMES},
        "reason": task.reason,
        "archive_error": task.archive_error,
        "error": None
        if error is None
        else {"code": error.code, "message": error.message, "at": iso_timestamp(error.at)},
        "crashes": task.crashes,
        "redrives": task.redrives,
        "source": task.source,
        "correlation_id": task.correlation_id,
    }


def _build_log_line(line: Attempt) -> dict[str, Any]:
    return {
        "attempt": line.attempt,
        "status": str(line.status),
        "started_at": iso_timestamp(line.started_at),
        "duration_ms": line.duration_ms,
        "note": line.note,
    }


_DEAD_LETTER_TIMES = ("dead_lettered_at", "archived_at", "export_retry_at", "redrive_started_at", "redriven_at")


def format_dead_letter(letter: DeadLetter, allowances: Allowances) -> dict[str, Any]:
    """Return the whole document of a dead letter."""
    return format_task(letter.task, allowances, is_dead=True) | _build_marks(letter)


def format_listed_dead_letter(letter: DeadLetter, allowances: Allowances) -> dict[str, Any]:
    """Return the document of a dead letter in a list."""
    return format_listed_task(letter.task, allowances, is_dead=True) | _build_marks(letter)


def format_other_failure(letter: DeadLetter) -> dict[str, Any]:
    """Return the document of another failure of a task whose dead letter is shown."""
    return {
        "redrives": letter.id.redrives,
        "dead_lettered_at": iso_timestamp(letter.dead_lettered_at),
        "reason": letter.reason,
        "fingerprint": letter.fingerprint,
        "error": _build_error(letter),
        "redriven_at": iso_timestamp(letter.redriven_at),
    }


def format_group(group: Group) -> dict[str, Any]:
    """Return the document of a group."""
    return {
        "fingerprint": group.fingerprint,
        "dead_letters": group.letters,
        "first_at": iso_timestamp(group.first_at),
        "last_at": iso_timestamp(group.last_at),
        "trend": list(group.trend),
        "sample": None if group.sample is None else _build_sample(group.sample),
    }


def _build_sample(letter: DeadLetter) -> dict[str, Any]:
    name = None if isinstance(letter.task, Malformed) else letter.task.name
    return {
        "id": tasks.format_id(letter.id.task),
        "redrives": letter.id.redrives,
        "name": name,
        "reason": letter.reason,
        "error": _build_error(letter),
    }


def _build_marks(letter: DeadLetter) -> dict[str, Any]:
    return {
        "redrives": letter.id.redrives,
        "fingerprint": letter.fingerprint,
        "reason": letter.reason,
        "export_attempts": letter.export_attempts,
        "export_error": letter.export_error,
        **{name: iso_timestamp(getattr(letter, name)) for name in _DEAD_LETTER_TIMES},
    }


def _build_error(letter: DeadLetter) -> dict[str, Any] | None:
    error: TaskError | None = None if isinstance(letter.task, Malformed) else letter.task.error
    return None if error is None else {"code": error.code, "message": error.message, "at": iso_timestamp(error.at)}
