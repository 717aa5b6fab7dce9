"""One operation, carried out."""

from __future__ import annotations

from typing import Any, assert_never

from tidemill.operations import queues, stats, tasks
from tidemill.operations.desk import Desk
from tidemill.operations.requests import (
    Operation,
    QueueDeclare,
    QueueList,
    QueuePause,
    QueueResume,
    QueueSet,
    QueueStatusOf,
    Stats,
    TaskCancel,
    TaskExplain,
    TaskList,
    TaskRetry,
    TaskShow,
)
from tidemill.operations.sizes import bounded_answer
from tidemill.wording import stamp


def operate(request: Operation, desk: Desk) -> dict[str, Any]:
    """Carry *request* out; return the answer in plain JSON types, with the database it is of and its time.

    Neither payloads nor results are in it. ``truncated`` says that some of it was too large.

    Raises:
        InvalidRequestError: What it is about is not there, or not allowed; nothing was changed.
        TaskNotFoundError: There is no such task.
        NotDelayedError: A task that is to be hurried does not wait for a time.
        UnavailableError: MongoDB did not answer; every operation can be repeated.
    """
    about = {"database": desk.db.name, "now": stamp(desk.clock.now())}
    return bounded_answer(_answer(request, desk) | about)


def _answer(request: Operation, desk: Desk) -> dict[str, Any]:
    match request:
        case QueueList() | QueueDeclare() | QueueStatusOf() | QueuePause() | QueueResume() | QueueSet():
            return _of_queues(request, desk)
        case TaskList() | TaskShow() | TaskExplain() | TaskRetry() | TaskCancel():
            return _of_tasks(request, desk)
        case Stats():
            return stats.statistics(request, desk)
        case _:
            assert_never(request)


def _of_queues(
    request: QueueList | QueueDeclare | QueueStatusOf | QueuePause | QueueResume | QueueSet, desk: Desk
) -> dict[str, Any]:
    match request:
        case QueueList():
            return queues.listing(desk)
        case QueueDeclare(queue=queue):
            return queues.declare(queue, desk)
        case QueueStatusOf(queue=queue):
            return queues.status(queue, desk)
        case QueuePause(queue=queue):
            return queues.switch(queue, desk, paused=True)
        case QueueResume(queue=queue):
            return queues.switch(queue, desk, paused=False)
        case QueueSet():
            return queues.change(request, desk)
        case _:
            assert_never(request)


def _of_tasks(request: TaskList | TaskShow | TaskExplain | TaskRetry | TaskCancel, desk: Desk) -> dict[str, Any]:
    match request:
        case TaskList():
            return tasks.listing(request, desk)
        case TaskShow():
            return tasks.show(request, desk)
        case TaskExplain():
            return tasks.explain(request, desk)
        case TaskRetry():
            return tasks.retry(request, desk)
        case TaskCancel():
            return tasks.cancel(request, desk)
        case _:
            assert_never(request)
