"""Running one task function alone: no queue, no database."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any, Final

import bson
from bson import ObjectId
from bson.raw_bson import RawBSONDocument

from tidemill.conclusions import run_to_end
from tidemill.documents import decode
from tidemill.errors import Problem, UnknownTaskError
from tidemill.model import TaskId
from tidemill.registry import REGISTRY, Registry, TaskContext, TaskType
from tidemill.requests import new_task
from tidemill.retry import DEFAULT
from tidemill.settings import Settings
from tidemill.testing.watched import not_registered

TIMEOUT: Final = Settings().task_timeout


def perform(
    name: str,
    payload: dict[str, Any],
    *,
    attempt: int = 1,
    is_last_attempt: bool | None = None,
    cancelled: bool | threading.Event = False,
    remaining: timedelta | None = None,
    task_id: TaskId = None,
    registry: Registry = REGISTRY,
) -> Any:  # noqa: ANN401 - the function decides
    """Call the task function *name* as an executor would, and return what it returns.

    ::

        assert perform("send_invoice", {"order": "order-7", "amount": 120.0}) == {"sent": "order-7"}

        with pytest.raises(Fail):
            perform("send_invoice", {"order": "order-7", "amount": 0.0})

        perform("import_file", {"url": url}, attempt=3, remaining=timedelta(seconds=2))

    The payload is refused where it could not be enqueued, arrives as it would from the database (tuples as lists,
    times in UTC and whole milliseconds), and is validated where the function takes a model. An ``async def`` is run to
    its end, so not from within an event loop: there, ``await asyncio.to_thread(perform, ...)``. No timeout is kept, and
    ``isolate=True`` has no effect.

    Args:
        name: The name it is registered under.
        payload: What it gets.
        attempt: What ``ctx.attempt`` says.
        is_last_attempt: What ``ctx.is_last_attempt`` says; without it, what follows from its registration.
        cancelled: What ``ctx.cancelled()`` says; an event says it from when it is set.
        remaining: What ``ctx.remaining()`` says at first; without it, the timeout of its registration.
        task_id: What ``ctx.task_id`` says; without it, a new id.
        registry: Where it is registered; without it, where `tidemill.task` registers.

    Raises:
        UnknownTaskError: There is no such function.
        InvalidRequestError: The payload could not be enqueued.
        Exception: Whatever the function raises; `Fail`, where the payload does not fit its model.
    """
    task_type = registry.get(name)
    if task_type is None:
        raise UnknownTaskError([Problem("name", not_registered(name))])
    ctx = task_context(
        attempt=attempt,
        is_last_attempt=_is_last(task_type, attempt) if is_last_attempt is None else is_last_attempt,
        cancelled=cancelled,
        remaining=(task_type.timeout or TIMEOUT) if remaining is None else remaining,
        task_id=task_id,
    )
    stored = decode(RawBSONDocument(bson.encode(new_task(name=name, payload=payload).payload)))
    return run_to_end(lambda: task_type.call(stored, ctx))


def task_context(
    *,
    attempt: int = 1,
    is_last_attempt: bool = False,
    cancelled: bool | threading.Event = False,
    remaining: timedelta = TIMEOUT,
    task_id: TaskId = None,
) -> TaskContext:
    """Return a context to call a task function with, as the plain function it is; see `perform`.

    ::

        assert send_invoice(Invoice(order="order-7", amount=120.0), task_context(attempt=2)) == {"sent": "order-7"}
    """
    event = cancelled if isinstance(cancelled, threading.Event) else threading.Event()
    if cancelled is True:
        event.set()
    return TaskContext(
        task_id=ObjectId() if task_id is None else task_id,
        attempt=attempt,
        is_last_attempt=is_last_attempt,
        deadline=time.monotonic() + remaining.total_seconds(),
        _cancelled=event,
    )


def _is_last(task_type: TaskType, attempt: int) -> bool:
    return attempt > (task_type.retry or DEFAULT).max_retries
