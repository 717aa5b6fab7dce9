"""Submission of the tasks of an event: they are stored and logged, and an executor is woken for those that are due."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from aws_lambda_powertools import Logger

from tidemill.bootstrap import deployment
from tidemill.enqueue.documents import Accepted
from tidemill.enqueue.rules import EnqueueRules
from tidemill.errors import TidemillError
from tidemill.requests.tasks import NewTask

MAX_LOGGED: Final = 20
"""Limit of the task ids in one log line."""

logger = Logger(service="tidemill-enqueue", use_rfc3339=True)


def submit_tasks(requests: Sequence[NewTask], *, rules: EnqueueRules, trace: Mapping[str, str]) -> list[Accepted]:
    """Store *requests*, log the accepted tasks, and wake an executor if a new task is due.

    Raises:
        TidemillError: As `EnqueueService.submit` raises it.
    """
    accepted = deployment().enqueue_service.submit(requests, rules=rules, trace=trace)
    new = [request for request, task in zip(requests, accepted, strict=True) if task.is_new]
    fields = {
        "count": len(accepted),
        "new": len(new),
        "task_ids": [str(task.id) for task in accepted[:MAX_LOGGED]],
        "task_names": sorted({request.name for request in requests})[:MAX_LOGGED],
    }
    logger.info("accepted", extra=fields | dict(trace))
    now = deployment().enqueue_service.now()
    waker = deployment().waker
    if waker is not None and any(request.starts_at(now) is None for request in new):
        _warn_if_wake_failed(waker.wake())
    return accepted


def retry_wake() -> None:
    """Repeat a wake of an earlier request that failed."""
    with suppress(TidemillError):  # malformed settings, which the answer reports
        waker = deployment().waker
        _warn_if_wake_failed(None if waker is None else waker.retry_pending_wake())


def _warn_if_wake_failed(error: str | None) -> None:
    if error is not None:
        logger.warning("wake_failed", reason=error)
