"""Operations on tasks. An id of 24 hex digits is an ObjectId, any other is text."""

from __future__ import annotations

import re
from typing import Any

from bson import ObjectId

from tidemill.control import Directory
from tidemill.model import Malformed, Task, TaskId
from tidemill.operations.desk import Desk
from tidemill.operations.requests import TaskCancel, TaskExplain, TaskList, TaskRetry, TaskShow
from tidemill.operations.task_documents import Allowances, listed_document, task_document
from tidemill.status import known_queues, no_queue
from tidemill.store import listing as pages
from tidemill.store import lookups


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
    allowances = _allowances(desk)
    tasks = [listed_document(task, allowances) for task in page.tasks]
    return {"tasks": tasks, "next": page.next, "warnings": [] if tasks else _warnings(request, desk)}


def show(request: TaskShow, desk: Desk) -> dict[str, Any]:
    """Return one task, alive or a dead letter."""
    task_id = task_id_of(request.id)
    living = lookups.get(desk.tasks, task_id)
    task = living or desk.queue.get(task_id)
    return {"task": task_document(task, _allowances(desk), is_dead=living is None)}


def explain(request: TaskExplain, desk: Desk) -> dict[str, Any]:
    """Return why a task is not running."""
    return {"explanation": desk.queue.explain(task_id_of(request.id)).document()}


def retry(request: TaskRetry, desk: Desk) -> dict[str, Any]:
    """Make a delayed task due now, and return it."""
    task = desk.queue.retry_now(task_id_of(request.id))
    return {"task": task_document(task, _allowances(desk), is_dead=False)}


def cancel(request: TaskCancel, desk: Desk) -> dict[str, Any]:
    """Cancel a task, or ask it to stop; return it as it then is, and what its status was before."""
    task_id = task_id_of(request.id)
    before = lookups.get(desk.tasks, task_id)
    task = desk.queue.cancel(task_id, force=request.force)
    document = task_document(task, _allowances(desk), is_dead=before is None)
    return {"task": document, "was": _status(before or task)}


def task_id_of(text: str) -> TaskId:
    """Return the id that a person means."""
    return ObjectId(text) if re.fullmatch("[0-9a-fA-F]{24}", text) else text


def _allowances(desk: Desk) -> Allowances:
    return Allowances(directory=Directory(desk.db), retry=desk.retry, is_deployed=desk.is_deployed)


def _warnings(request: TaskList, desk: Desk) -> list[str]:
    if request.queue is None or request.cursor is not None:
        return []
    known = known_queues(desk.db)
    return [] if request.queue in known else [no_queue(request.queue, known)]


def _status(task: Task | Malformed) -> str:
    return task.status if isinstance(task, Task) else "malformed"
