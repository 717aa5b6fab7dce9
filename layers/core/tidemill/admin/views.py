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
    Marks,
    OtherFailure,
    Sample,
    TaskView,
    View,
)
from tidemill.control import task_types
from tidemill.control.task_types import Directory
from tidemill.dead_letters.documents import DeadLetter
from tidemill.dead_letters.groups import Group
from tidemill.model import Malformed, RetryPolicy, Task
from tidemill.policy.retry import resolve_policy

_UNLISTED_FIELDS: Final = frozenset({"attempt_log", "has_result"})
"""Fields that a list leaves out: it reads tasks without their execution logs and results."""


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
        is_certain = task.max_retries is not None
        if self.directory is None:
            policy = resolve_policy(task, registered=self.retry, deployment=self.retry)
        else:
            policy = task_types.resolve_task_policy(task, self.directory, deployment=self.retry)
            registered = (self.directory.cached_task_type(task.name) or {}).get("max_retries")
            is_certain = is_certain or self.is_deployed or registered is not None
        return {"attempts_allowed": policy.max_retries + 1, "attempts_allowed_assumed": not is_certain}


def build_allowances(context: AdminContext) -> Allowances:
    """Return the allowances, as far as the context knows them."""
    return Allowances(directory=context.directory, retry=context.retry, is_deployed=context.is_deployed)


def build_task(
    task: Task | Malformed, allowances: Allowances, *, is_dead: bool = False, is_listed: bool = False
) -> AnyTask:
    """Return the view of a task. A listed task was read without its result and its execution log."""
    fields = _copy_task(task, allowances, is_listed=is_listed) | {"dead_letter": is_dead}
    return MalformedView(**fields) if isinstance(task, Malformed) else TaskView(**fields)


def build_dead_letter(letter: DeadLetter, allowances: Allowances, *, is_listed: bool = False) -> AnyDeadLetter:
    """Return the view of a dead letter. A listed one was read without its task's result and execution log."""
    fields = _copy_task(letter.task, allowances, is_listed=is_listed) | _copy_letter(letter, Marks)
    fields["dead_letter"] = True
    return MalformedDeadLetterView(**fields) if isinstance(letter.task, Malformed) else DeadLetterView(**fields)


def build_other_failure(letter: DeadLetter) -> OtherFailure:
    """Return the view of another failure of a task whose dead letter is shown."""
    return OtherFailure(**_copy_letter(letter, OtherFailure), error=_build_error(letter))


def build_group(group: Group) -> GroupRow:
    """Return the view of a group."""
    fields = _copy(group, GroupRow) | {"dead_letters": group.letters, "sample": None}
    if group.sample is not None:
        task = group.sample.task
        name = None if isinstance(task, Malformed) else task.name
        shown = _copy_letter(group.sample, Sample) | {"id": task.id, "name": name}
        fields["sample"] = Sample(**shown, error=_build_error(group.sample))
    return GroupRow(**fields)


def _copy_task(task: Task | Malformed, allowances: Allowances, *, is_listed: bool) -> dict[str, Any]:
    if isinstance(task, Malformed):
        fields = _copy(task, MalformedView) | {"malformed": task.problem}
    else:
        fields = _copy(task, TaskView) | {"has_result": task.result is not None} | allowances.of(task)
    return {name: value for name, value in fields.items() if not (is_listed and name in _UNLISTED_FIELDS)}


def _copy_letter(letter: DeadLetter, kind: type[View]) -> dict[str, Any]:
    return _copy(letter, kind) | {"redrives": letter.id.redrives}


def _copy(source: object, kind: type[View]) -> dict[str, Any]:
    """Return the values of the fields of *kind* that *source* has, too."""
    return {name: getattr(source, name) for name in kind.model_fields if hasattr(source, name)}


def _build_error(letter: DeadLetter) -> ErrorView | None:
    error = None if isinstance(letter.task, Malformed) else letter.task.error
    return None if error is None else ErrorView.model_validate(error)
