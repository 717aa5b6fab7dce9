"""A task as it is shown: neither its payload, nor its result, nor the token that proves a claim."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tidemill import control
from tidemill.control import Directory
from tidemill.model import Attempt, Malformed, Task
from tidemill.operations.desk import Desk
from tidemill.policies import RetryPolicy
from tidemill.retry import resolved
from tidemill.store import ids
from tidemill.wording import stamp

_TIMES = ("due_at", "next_retry_at", "created_at", "updated_at", "finished_at", "expires_at", "cancel_requested_at")


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowances:
    """How many attempts tasks have in all, by what executors have declared and what the deployment says."""

    directory: Directory | None
    retry: RetryPolicy
    is_deployed: bool

    def of(self, task: Task) -> dict[str, Any]:
        """Return the number for *task*, and whether it is assumed: nothing here says so for certain.

        Without a directory the deployment's is assumed of all that say nothing themselves.
        """
        if self.directory is None:
            policy = resolved(task, registered=self.retry, deployment=self.retry)
            return _allowed(policy, is_said=task.max_retries is not None)
        policy = control.policy_of(task, self.directory, deployment=self.retry)
        registered = (self.directory.lately(task.name) or {}).get("max_retries")
        is_said = self.is_deployed or task.max_retries is not None or registered is not None
        return _allowed(policy, is_said=is_said)


def allowances(desk: Desk) -> Allowances:
    """Return how many attempts tasks have, as far as *desk* knows."""
    return Allowances(directory=desk.directory, retry=desk.retry, is_deployed=desk.is_deployed)


def task_document(task: Task | Malformed, allowances: Allowances, *, is_dead: bool) -> dict[str, Any]:
    """Return all that is shown of one task."""
    has_result = {} if isinstance(task, Malformed) else {"has_result": task.result is not None}
    log = {"attempt_log": [_line(line) for line in task.attempt_log]}
    return _common(task, allowances, is_dead=is_dead) | has_result | log


def listed_document(task: Task | Malformed, allowances: Allowances, *, is_dead: bool = False) -> dict[str, Any]:
    """Return what is shown of a task in a list, which is read without results and logs."""
    return _common(task, allowances, is_dead=is_dead)


def _allowed(policy: RetryPolicy, *, is_said: bool) -> dict[str, Any]:
    return {"attempts_allowed": policy.max_retries + 1, "attempts_allowed_assumed": not is_said}


def _common(task: Task | Malformed, allowances: Allowances, *, is_dead: bool) -> dict[str, Any]:
    fields = {"malformed": task.problem} if isinstance(task, Malformed) else _fields(task) | allowances.of(task)
    lease = task.lease
    return {
        "id": ids.shown(task.id),
        "dead_letter": is_dead,
        **fields,
        "lease": None if lease is None else {"owner": lease.owner, "expires_at": stamp(lease.expires_at)},
    }


def _fields(task: Task) -> dict[str, Any]:
    error = task.error
    return {
        "name": task.name,
        "queue": task.queue,
        "status": task.status,
        "lane": task.lane,
        "priority": task.priority,
        "attempts": task.attempts,
        **{name: stamp(getattr(task, name)) for name in _TIMES},
        "reason": task.reason,
        "archive_error": task.archive_error,
        "error": None if error is None else {"code": error.code, "message": error.message, "at": stamp(error.at)},
        "crashes": task.crashes,
        "redrives": task.redrives,
        "source": task.source,
        "correlation_id": task.correlation_id,
    }


def _line(line: Attempt) -> dict[str, Any]:
    return {
        "attempt": line.attempt,
        "status": str(line.status),
        "started_at": stamp(line.started_at),
        "duration_ms": line.duration_ms,
        "note": line.note,
    }
