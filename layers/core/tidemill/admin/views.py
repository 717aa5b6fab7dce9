"""Views of tasks, dead letters and groups for responses, without payloads, results and lease tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from tidemill.admin.context import AdminContext
from tidemill.admin.responses import (
    AnyDeadLetter,
    AnyTask,
    DeadLetterView,
    ErrorView,
    GroupRow,
    MalformedDeadLetterView,
    MalformedView,
    OtherFailure,
    Sample,
    TaskView,
)
from tidemill.control import task_types
from tidemill.control.task_types import Directory
from tidemill.dead_letters.documents import DeadLetter
from tidemill.dead_letters.groups import Group
from tidemill.model import Malformed, RetryPolicy, Task
from tidemill.policy.retry import resolve_policy
from tidemill.store import tasks

_TASK_FIELDS: Final = (
    "name", "queue", "status", "lane", "priority", "attempts", "due_at", "next_retry_at", "created_at", "updated_at",
    "finished_at", "expires_at", "cancel_requested_at", "reason", "archive_error", "crashes", "redrives", "source",
    "correlation_id", "error",
)  # fmt: skip
_MARK_FIELDS: Final = (
    "fingerprint", "reason", "export_attempts", "export_error", "dead_lettered_at", "archived_at", "export_retry_at",
    "redrive_started_at", "redriven_at",
)  # fmt: skip


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


def _build_allowance(policy: RetryPolicy, *, is_certain: bool) -> dict[str, Any]:
    return {"attempts_allowed": policy.max_retries + 1, "attempts_allowed_assumed": not is_certain}


def build_task(
    task: Task | Malformed, allowances: Allowances, *, is_dead: bool = False, is_listed: bool = False
) -> AnyTask:
    """Return the view of a task. A listed task was read without its result and its execution log."""
    fields = _copy_task(task, allowances, is_dead=is_dead, is_listed=is_listed)
    return MalformedView(**fields) if isinstance(task, Malformed) else TaskView(**fields)


def build_dead_letter(letter: DeadLetter, allowances: Allowances, *, is_listed: bool = False) -> AnyDeadLetter:
    """Return the view of a dead letter. A listed one was read without its task's result and execution log."""
    task = letter.task
    marks = {"redrives": letter.id.redrives} | {name: getattr(letter, name) for name in _MARK_FIELDS}
    fields = _copy_task(task, allowances, is_dead=True, is_listed=is_listed) | marks
    return MalformedDeadLetterView(**fields) if isinstance(task, Malformed) else DeadLetterView(**fields)


def build_other_failure(letter: DeadLetter) -> OtherFailure:
    """Return the view of another failure of a task whose dead letter is shown."""
    return OtherFailure(
        redrives=letter.id.redrives,
        dead_lettered_at=letter.dead_lettered_at,
        reason=letter.reason,
        fingerprint=letter.fingerprint,
        error=_build_letter_error(letter),
        redriven_at=letter.redriven_at,
    )


def build_group(group: Group) -> GroupRow:
    """Return the view of a group."""
    return GroupRow(
        fingerprint=group.fingerprint,
        dead_letters=group.letters,
        first_at=group.first_at,
        last_at=group.last_at,
        trend=group.trend,
        sample=None if group.sample is None else _build_sample(group.sample),
    )


def _build_sample(letter: DeadLetter) -> Sample:
    return Sample(
        id=tasks.format_id(letter.id.task),
        redrives=letter.id.redrives,
        name=None if isinstance(letter.task, Malformed) else letter.task.name,
        reason=letter.reason,
        error=_build_letter_error(letter),
    )


def _copy_task(task: Task | Malformed, allowances: Allowances, *, is_dead: bool, is_listed: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {"id": tasks.format_id(task.id), "dead_letter": is_dead, "lease": task.lease}
    if not is_listed:
        fields["attempt_log"] = task.attempt_log
    if isinstance(task, Malformed):
        return fields | {"malformed": task.problem}
    if not is_listed:
        fields["has_result"] = task.result is not None
    return fields | {name: getattr(task, name) for name in _TASK_FIELDS} | allowances.of(task)


def _build_letter_error(letter: DeadLetter) -> ErrorView | None:
    error = None if isinstance(letter.task, Malformed) else letter.task.error
    return None if error is None else ErrorView.model_validate(error)
