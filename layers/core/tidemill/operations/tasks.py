"""Operations on tasks."""

from __future__ import annotations

from typing import Any

from tidemill import control
from tidemill.errors import NotDelayedError, TidemillError
from tidemill.model import Malformed, Task
from tidemill.operations.desk import Desk
from tidemill.operations.identities import meant
from tidemill.operations.requests import TaskCancel, TaskExplain, TaskList, TaskRetry, TaskShow
from tidemill.operations.task_documents import Allowances, allowances, listed_document, task_document
from tidemill.operations.warnings import of_nobody, unknown, warnings_of
from tidemill.store import ids, lookups
from tidemill.store import listing as pages


def listing(request: TaskList, desk: Desk) -> dict[str, Any]:
    """Return a page of the living tasks, and the cursor of the next."""
    page = pages.page(
        desk.tasks,
        status=request.status,
        queue=request.queue,
        name=request.name,
        limit=request.limit,
        after=request.cursor,
    )
    allowed = allowances(desk)
    tasks = [listed_document(task, allowed) for task in page.tasks]
    return {"tasks": tasks, "next": page.next, "warnings": [] if tasks else _of_nothing(request, desk)}


def show(request: TaskShow, desk: Desk) -> dict[str, Any]:
    """Return one task, alive or a dead letter."""
    task_id = meant(request.id, desk)
    living = lookups.get(desk.tasks, task_id)
    task = living or desk.queue.get(task_id)
    return {"task": task_document(task, allowances(desk), is_dead=living is None)}


def explain(request: TaskExplain, desk: Desk) -> dict[str, Any]:
    """Return why a task is not running."""
    task_id = meant(request.id, desk)
    return {"explanation": desk.queue.explain(task_id).document()}


def retry(request: TaskRetry, desk: Desk) -> dict[str, Any]:
    """Make a delayed task due now; return it, and whether its queue is paused, so that it waits all the same."""
    task_id = meant(request.id, desk)
    try:
        task = desk.queue.retry_now(task_id)
    except NotDelayedError as error:
        raise NotDelayedError(ids.shown(task_id), error.status) from None
    return {"task": _after_a_change(task, desk), **_pause(task, desk)}


def cancel(request: TaskCancel, desk: Desk) -> dict[str, Any]:
    """Cancel a task, or ask it to stop; return it as it then is, what its status was, and whether that did anything."""
    task_id = meant(request.id, desk)
    before = lookups.get(desk.tasks, task_id)
    changed = lookups.cancel(desk.tasks, task_id, now=desk.clock.now(), force=request.force)
    task = changed or desk.queue.get(task_id)
    document = _after_a_change(task, desk, is_dead=changed is None and before is None)
    return {"task": document, "was": _status(before or task), "changed": changed is not None}


def _after_a_change(task: Task | Malformed, desk: Desk, *, is_dead: bool = False) -> dict[str, Any]:
    """Return *task*, whatever else can be read: that it was changed is what has to be told."""
    try:
        return task_document(task, allowances(desk), is_dead=is_dead)
    except TidemillError:
        unread = Allowances(directory=None, retry=desk.retry, is_deployed=desk.is_deployed)
        return task_document(task, unread, is_dead=is_dead)


def _pause(task: Task | Malformed, desk: Desk) -> dict[str, Any]:
    if isinstance(task, Malformed):
        return {"queue_paused": None, "warnings": []}
    try:
        options = control.options_of(desk.db, task.queue)
    except TidemillError as error:
        return {"queue_paused": None, "warnings": [unknown("whether its queue is paused", error)]}
    return {"queue_paused": options is not None and options.paused, "warnings": []}


def _of_nothing(request: TaskList, desk: Desk) -> list[str]:
    if request.cursor is not None:
        return []
    return [*warnings_of(lambda: _no_queue(request.queue, desk), of="which queues there are"), *of_nobody(desk)]


def _no_queue(queue: str | None, desk: Desk) -> list[str]:
    if queue is None:
        return []
    known = control.known_queues(desk.db)
    return [] if queue in known else [control.no_queue(queue, known)]


def _status(task: Task | Malformed) -> str:
    return task.status if isinstance(task, Task) else "malformed"
