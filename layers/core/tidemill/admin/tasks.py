"""Operations on tasks; also their views, and the search for the task that an id in a request stands for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from tidemill.admin import responses
from tidemill.admin.context import (
    AdminContext,
    collect_warnings,
    describe_unknown,
    find_unknown_queue,
    warn_no_executor,
)
from tidemill.admin.requests import TaskCancel, TaskExplain, TaskList, TaskRetry, TaskShow
from tidemill.control import queues, task_types
from tidemill.control.task_types import Directory
from tidemill.dead_letters import queries
from tidemill.errors import InvalidRequestError, NotDelayedError, Problem, TaskNotFoundError, TidemillError
from tidemill.model import Malformed, QueueOptions, Task, TaskId
from tidemill.policy.failures import truncate_text
from tidemill.policy.retry import resolve_policy
from tidemill.store import tasks

_MAX_ID_CHARACTERS: Final = 200
"""Maximum number of characters of an id in a message."""

_ALIVE: Final = "the task is among the living ones"
_NOT_ARCHIVED: Final = (
    "the task failed, and archive moves it within 5 minutes; `tidemill dlq redrive` runs it again now"
)
_UNLISTED_FIELDS: Final = frozenset({"attempt_log", "has_result"})
"""Fields that a list leaves out: it reads tasks without their execution logs and results."""


class NotStoredError(TaskNotFoundError):
    """No task or no dead letter, as *kind* says, has the id *text* in this database, which may be the wrong one."""

    def __init__(
        self, kind: str, text: str, *, database: str, redrives: int | None = None, hints: Sequence[str] = ()
    ) -> None:
        super().__init__(text)
        number = "" if redrives is None else f" with redrives {redrives}"
        message = f"there is no {kind} {truncate_text(text, _MAX_ID_CHARACTERS)}{number} in {database}"
        self.args = ("; ".join([message, *hints]),)


def find_task_id(text: str, context: AdminContext) -> TaskId:
    """Return the id of the one task that *text* stands for: a living task, or else a dead letter.

    Raises:
        TaskNotFoundError: There is no such task.
        InvalidRequestError: There are several, or *text* is an id of another type.
    """
    candidates = tasks.parse_id(text)
    # A redrive may have inserted the task between the first two reads.
    found = (
        tasks.find_stored_ids(context.tasks, candidates)
        or _filter_dead(candidates, context)
        or tasks.find_stored_ids(context.tasks, candidates)
    )
    if not found:
        _refuse_other_types(text)
        raise NotStoredError("task", text, database=context.db.name, hints=warn_no_executor(context))
    return _require_single(found)


def find_dead_letter_id(text: str, context: AdminContext) -> TaskId:
    """Return the id of the one task with dead letters that *text* stands for, or the id of a dead letter itself.

    Raises:
        TaskNotFoundError: There is no such dead letter.
        InvalidRequestError: There are several, or *text* is an id of another type.
    """
    candidates = tasks.parse_id(text)
    found = _filter_dead(candidates, context) or tasks.find_stored_ids(context.dead, candidates)
    if not found:
        _refuse_other_types(text)
        hints = _explain_missing(candidates, context)
        raise NotStoredError("dead letter of task", text, database=context.db.name, hints=hints)
    return _require_single(found)


def _require_single(found: Sequence[TaskId]) -> TaskId:
    if len(found) > 1:
        raise InvalidRequestError(
            [Problem("id", "stands for two tasks: the id of one is a text, of the other not; use mongosh")]
        )
    return found[0]


def _refuse_other_types(text: str) -> None:
    """Refuse *text*, which is the id of no task, if lists show ids of other types like this."""
    if text.startswith("{") or text in {"true", "false", "null"}:
        raise InvalidRequestError(
            [Problem("id", "is neither an ObjectId, a text nor a number, so it cannot be given here; use mongosh")]
        )


def _explain_missing(candidates: tuple[TaskId, ...], context: AdminContext) -> Sequence[str]:
    def warn_if_alive() -> list[str]:
        for task_id in tasks.find_stored_ids(context.tasks, candidates):
            task = tasks.get(context.tasks, task_id)
            return [_NOT_ARCHIVED if task is not None and task.status == "failed" else _ALIVE]
        return []

    return collect_warnings(warn_if_alive, of="whether it is alive") or warn_no_executor(context)


def _filter_dead(candidates: tuple[TaskId, ...], context: AdminContext) -> list[TaskId]:
    return [task_id for task_id in candidates if queries.find_of_task(context.dead, task_id, limit=1)]


def build_task(
    task: Task | Malformed,
    context: AdminContext,
    directory: Directory | None,
    *,
    is_dead: bool = False,
    is_listed: bool = False,
) -> responses.AnyTask:
    """Return the view of a task; *is_listed* and *directory* as in `copy_task`."""
    fields = copy_task(task, context, directory, is_listed=is_listed) | {"dead_letter": is_dead}
    return responses.MalformedView(**fields) if isinstance(task, Malformed) else responses.TaskView(**fields)


def copy_task(
    task: Task | Malformed, context: AdminContext, directory: Directory | None, *, is_listed: bool
) -> dict[str, Any]:
    """Return the fields of the view of a task. A listed task was read without its result and its execution log.

    Without a directory the deployment's policy is assumed for all tasks without a policy of their own.
    """
    if isinstance(task, Malformed):
        fields = responses.MalformedView.copy_fields(task) | {"malformed": task.problem}
    else:
        fields = responses.TaskView.copy_fields(task) | {"has_result": task.result is not None}
        fields |= _count_attempts(task, context, directory)
    return {name: value for name, value in fields.items() if not (is_listed and name in _UNLISTED_FIELDS)}


def _count_attempts(task: Task, context: AdminContext, directory: Directory | None) -> dict[str, Any]:
    """Return the number of attempts for *task*, and whether it is an assumption."""
    is_certain = task.max_retries is not None
    if directory is None:
        policy = resolve_policy(task, registered=context.retry, deployment=context.retry)
    else:
        policy = task_types.resolve_task_policy(task, directory, deployment=context.retry)
        registered = (directory.cached_task_type(task.name) or {}).get("max_retries")
        is_certain = is_certain or context.is_deployed or registered is not None
    return {"attempts_allowed": policy.max_retries + 1, "attempts_allowed_assumed": not is_certain}


def list_tasks(request: TaskList, context: AdminContext) -> responses.TaskPage:
    """Return a page of the living tasks, and the cursor of the next page."""
    page = tasks.list_tasks(
        context.tasks,
        status=request.status,
        queue=request.queue,
        name=request.name,
        limit=request.limit,
        after=request.cursor,
        limits=context.page_limits,
    )
    directory = context.directory
    listed = tuple(build_task(task, context, directory, is_listed=True) for task in page.tasks)
    is_unexpected = not listed and request.cursor is None
    return responses.TaskPage(
        tasks=listed, next=page.next, warnings=_warn_no_match(request.queue, context) if is_unexpected else ()
    )


def show(request: TaskShow, context: AdminContext) -> responses.TaskResponse:
    """Return one task, living or a dead letter."""
    task_id = find_task_id(request.id, context)
    living = tasks.get(context.tasks, task_id)
    task = living or context.queue.get(task_id)
    return responses.TaskResponse(task=build_task(task, context, context.directory, is_dead=living is None))


def explain(request: TaskExplain, context: AdminContext) -> responses.ExplanationResponse:
    """Return the reasons why a task is not running."""
    task_id = find_task_id(request.id, context)
    explanation = responses.ExplanationView.model_validate(context.queue.explain(task_id))
    return responses.ExplanationResponse(explanation=explanation)


def retry(request: TaskRetry, context: AdminContext) -> responses.RetryResponse:
    """Make a delayed task due now. Return the task, and whether its queue is paused, which delays the task further."""
    task_id = find_task_id(request.id, context)
    try:
        task = context.queue.retry_now(task_id)
    except NotDelayedError as error:
        raise NotDelayedError(tasks.format_id(task_id), error.status) from None
    view = _build_changed_task(task, context)
    paused, warnings = _check_pause(task, context)
    return responses.RetryResponse(task=view, queue_paused=paused, warnings=warnings)


def cancel(request: TaskCancel, context: AdminContext) -> responses.CancelResponse:
    """Cancel a task, or ask it to stop. Return the task, its status before, and whether the task changed."""
    task_id = find_task_id(request.id, context)
    before = tasks.get(context.tasks, task_id)
    changed = tasks.cancel(context.tasks, task_id, now=context.clock.now(), force=request.force)
    task = changed or context.queue.get(task_id)
    view = _build_changed_task(task, context, is_dead=changed is None and before is None)
    former = before or task
    was = former.status if isinstance(former, Task) else "malformed"
    return responses.CancelResponse(task=view, was=was, changed=changed is not None)


def _build_changed_task(task: Task | Malformed, context: AdminContext, *, is_dead: bool = False) -> responses.AnyTask:
    """Return *task* even if nothing else can be read: the caller must learn about the change."""
    try:
        return build_task(task, context, context.directory, is_dead=is_dead)
    except TidemillError:
        return build_task(task, context, None, is_dead=is_dead)


def _check_pause(task: Task | Malformed, context: AdminContext) -> tuple[bool | None, tuple[str, ...]]:
    """Return whether the queue of *task* is paused, ``None`` if unknown, and warnings."""
    if isinstance(task, Malformed):
        return None, ()
    try:
        options = queues.load_options(context.db, task.queue) or QueueOptions()
    except TidemillError as error:
        return None, (describe_unknown("whether its queue is paused", error),)
    is_delayed = task.lane == "retry" and options.has_paused_retries and not options.paused
    warning = f"the retries of queue {task.queue} are paused: `tidemill ops task explain` says how to start them again"
    return options.paused, (warning,) if is_delayed else ()


def _warn_no_match(queue: str | None, context: AdminContext) -> tuple[str, ...]:
    unknown = collect_warnings(lambda: find_unknown_queue(queue, context), of="which queues there are")
    return (*unknown, *warn_no_executor(context))
