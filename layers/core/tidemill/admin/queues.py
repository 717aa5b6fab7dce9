"""Operations on queues, and statistics of their retries.

A change returns the options of the queue, without its sizes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

from pymongo.database import Database

from tidemill.admin.context import AdminContext, Count, warn_no_executor
from tidemill.admin.requests import (
    AdaptiveChange,
    BudgetChange,
    QueueDeclare,
    QueueList,
    QueuePause,
    QueueResume,
    QueueSet,
    QueueStatusOf,
    Stats,
)
from tidemill.control import queues
from tidemill.control.queues import MAX_COMPARED_NAME, OptionsReader
from tidemill.errors import InvalidRequestError, Problem
from tidemill.model import Adaptive, Budget, QueueOptions, Task, TaskId
from tidemill.store import counts, tasks
from tidemill.store.connection import Tasks, open_tasks
from tidemill.store.stats import read_totals
from tidemill.text import iso_timestamp

_MILLISECOND: Final = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryStatistics:
    """Statistics of retries, from counters. Durations are sums unless they say otherwise.

    Attributes:
        retries: Attempts after the first that ended in done, retried or failed.
        successful: Retries that ended in done.
        exhausted: Tasks that failed after all their retries.
        backoffs, time_in_backoff: Number of back-offs, and their total duration.
        depth: Pending tasks of the lane retry, now.
        time_saved: Estimate of the time that retries gained by going before fresh tasks.
    """

    queue: str
    retries: int
    successful: int
    exhausted: int
    backoffs: int
    time_in_backoff: timedelta
    depth: Count
    time_saved: timedelta

    @property
    def success_rate(self) -> float | None:
        """Successful part of all retries, or ``None`` without retries."""
        return self.successful / self.retries if self.retries else None

    @property
    def mean_backoff(self) -> timedelta | None:
        """Mean back-off, or ``None`` without back-offs."""
        return self.time_in_backoff / self.backoffs if self.backoffs else None

    def document(self) -> dict[str, Any]:
        """Return the statistics in plain types."""
        mean = self.mean_backoff
        return {
            "queue": self.queue,
            "total_retries": self.retries,
            "successful_retries": self.successful,
            "retry_success_rate": self.success_rate,
            "retries_exhausted": self.exhausted,
            "backoff_sec_sum": self.time_in_backoff.total_seconds(),
            "backoff_sec_mean": None if mean is None else mean.total_seconds(),
            "retry_queue_size": self.depth.plain(),
            "time_saved_sec_estimate": self.time_saved.total_seconds(),
        }


def read_retry_statistics(db: Database[Any], *, since: datetime, queue: str | None = None) -> list[RetryStatistics]:
    """Return retry statistics from the minute of *since* on, for every queue with counters, or only for *queue*."""
    by_queue: dict[str, Counter[str]] = {}
    for (name, _), minute in read_totals(db, since=since).items():
        if queue in {None, name}:
            by_queue.setdefault(name, Counter()).update(minute)
    depths = counts.count_pending_by_queue(open_tasks(db), sorted(by_queue), lane="retry")
    return [_build_statistics(name, by_queue[name], depth=depth) for name, depth in depths.items()]


def _build_statistics(queue: str, counts: Counter[str], *, depth: int) -> RetryStatistics:
    return RetryStatistics(
        queue=queue,
        retries=counts["retry_runs"],
        successful=counts["retry_successes"],
        exhausted=counts["exhausted"],
        backoffs=counts["retried"],
        time_in_backoff=counts["backoff_ms"] * _MILLISECOND,
        depth=Count(counted=depth),
        time_saved=counts["saved_ms"] * _MILLISECOND,
    )


def show_statistics(request: Stats, context: AdminContext) -> dict[str, Any]:
    """Return the retry statistics of each queue, or of one."""
    since = context.clock.now() - timedelta(seconds=request.since_sec)
    found = read_retry_statistics(context.db, since=since, queue=request.queue)
    return {
        "statistics": [queue_statistics.document() for queue_statistics in found],
        "warnings": [] if found else warn_no_executor(context),
    }


MAX_CURRENT: Final = 20
"""Maximum number of running tasks in an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentTask:
    """Running task. ``attempts`` includes this run; ``since`` is the time of the claim."""

    id: TaskId
    name: str
    attempts: int
    is_retry: bool
    since: datetime

    def document(self) -> dict[str, Any]:
        """Return the task in plain types."""
        return {
            "id": tasks.format_id(self.id),
            "name": self.name,
            "attempts": self.attempts,
            "is_retry": self.is_retry,
            "since": iso_timestamp(self.since),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatus:
    """Sizes of a queue.

    Attributes:
        queue_size: Pending tasks of the lane fresh, due or not.
        retry_queue_size: Pending tasks of the lane retry, due or in back-off.
        delayed: Pending tasks of both lanes that are not due yet.
        processing: Tasks under a lease.
        oldest_due_age: Time since the oldest due task became due; ``None`` without due tasks.
        current: Some of the tasks under a lease; ``None`` if they were not requested.
    """

    queue: str
    queue_size: Count
    retry_queue_size: Count
    delayed: Count
    processing: Count
    oldest_due_age: timedelta | None
    options: QueueOptions
    current: tuple[CurrentTask, ...] | None = None

    def document(self) -> dict[str, Any]:
        """Return the status in plain types, with counts above their limit as text."""
        counts = ("queue_size", "retry_queue_size", "delayed", "processing")
        current = {} if self.current is None else {"current": [task.document() for task in self.current]}
        return {
            "queue": self.queue,
            **{name: getattr(self, name).plain() for name in counts},
            "paused": self.options.paused,
            "oldest_due_age_sec": None if self.oldest_due_age is None else self.oldest_due_age.total_seconds(),
            **current,
        }


def read_status(db: Database[Any], queue: str, *, now: datetime) -> QueueStatus:
    """Return the sizes of *queue*, and its running tasks.

    Raises:
        InvalidRequestError: The queue is neither declared nor has tasks.
    """
    options = queues.load_options(db, queue)
    if options is None:
        known = queues.list_queues(db)
        if queue not in known:
            raise InvalidRequestError([Problem("queue", queues.describe_unknown_queue(queue, known))])
    tasks = open_tasks(db)
    [status] = _read_statuses(
        tasks, {queue: options or QueueOptions()}, leased=counts.count_leased_by_queue(tasks), now=now
    )
    return replace(status, current=tuple(_read_current(tasks, queue)))


def read_statuses(
    db: Database[Any], *, limit: int, after: str | None = None, now: datetime
) -> tuple[list[QueueStatus], str | None]:
    """Return the sizes of up to *limit* known queues by name, after the cursor *after*, and the next cursor.

    Running tasks are only counted. The number of commands is constant up to `QUEUES_PER_COMMAND` queues.
    """
    tasks, options = open_tasks(db), OptionsReader(db)
    leased = counts.count_leased_by_queue(tasks)
    known = queues.list_queues(db, listed=options.all_options(), leased=leased.by_queue)
    behind = [queue for queue in known if after is None or queue[:MAX_COMPARED_NAME] > after]
    options_by_queue = {queue: options.options(queue) for queue in behind[:limit]}
    next_cursor = behind[limit - 1][:MAX_COMPARED_NAME] if len(behind) > limit else None
    return _read_statuses(tasks, options_by_queue, leased=leased, now=now), next_cursor


def _read_statuses(
    tasks: Tasks, queues: Mapping[str, QueueOptions], *, leased: counts.LeasedCounts, now: datetime
) -> list[QueueStatus]:
    found = counts.measure_queues(tasks, list(queues), now=now)
    return [
        QueueStatus(
            queue=queue,
            queue_size=Count(counted=found[queue].fresh),
            retry_queue_size=Count(counted=found[queue].retry),
            delayed=Count(counted=found[queue].delayed),
            processing=Count(counted=leased.by_queue.get(queue, 0), may_be_more=not leased.is_all),
            oldest_due_age=_compute_age(found[queue].oldest_due, now),
            options=options,
        )
        for queue, options in queues.items()
    ]


def _compute_age(since: datetime | None, now: datetime) -> timedelta | None:
    return None if since is None else now - since


def _read_current(tasks: Tasks, queue: str) -> Iterable[CurrentTask]:
    for task in counts.list_leased(tasks, queue, limit=MAX_CURRENT):
        if isinstance(task, Task):
            yield CurrentTask(
                id=task.id,
                name=task.name,
                attempts=task.attempts,
                is_retry=task.lane == "retry",
                since=task.updated_at,
            )


_PressureT = TypeVar("_PressureT", Adaptive, Budget)


def list_queues(request: QueueList, context: AdminContext) -> dict[str, Any]:
    """Return the sizes of a page of queues, and the cursor of the next page."""
    page, behind = read_statuses(context.db, limit=request.limit, after=request.cursor, now=context.clock.now())
    return {"queues": [_build_status_document(queue) for queue in page], "next": behind}


def show_status(request: QueueStatusOf, context: AdminContext) -> dict[str, Any]:
    """Return the status of one queue."""
    return {"queue": _build_status_document(read_status(context.db, request.queue, now=context.clock.now()))}


def declare(request: QueueDeclare, context: AdminContext) -> dict[str, Any]:
    """Declare a queue, so that HTTP may enqueue into it."""
    return _build_options_document(
        request.queue, queues.declare_queue(context.db, request.queue, now=context.clock.now())
    )


def pause(request: QueuePause, context: AdminContext) -> dict[str, Any]:
    """Pause a queue: no more of its tasks start."""
    return _change_options(request.queue, context, lambda options: replace(options, paused=True))


def resume(request: QueueResume, context: AdminContext) -> dict[str, Any]:
    """Resume a queue: its tasks start again."""
    return _change_options(request.queue, context, lambda options: replace(options, paused=False))


def change(request: QueueSet, context: AdminContext) -> dict[str, Any]:
    """Change options of a queue."""
    return _change_options(request.queue, context, lambda options: apply_changes(options, request))


def apply_changes(options: QueueOptions, request: QueueSet) -> QueueOptions:
    """Return *options* with the changes of *request*."""
    given = request.model_fields_set
    own = {name: getattr(request, name) for name in ("selection", "retry_share", "max_in_flight_retries")}
    pressure = options.pressure
    if "adaptive" in given:
        pressure = replace(pressure, adaptive=_apply_switch(Adaptive, pressure.adaptive, request.adaptive))
    if "budget" in given:
        pressure = replace(pressure, budget=_apply_switch(Budget, pressure.budget, request.budget))
    return replace(options, pressure=pressure, **{name: value for name, value in own.items() if name in given})


def _apply_switch(
    kind: type[_PressureT], current: _PressureT | None, wanted: AdaptiveChange | BudgetChange | None
) -> _PressureT | None:
    return None if wanted is None else replace(current or kind(), **wanted.model_dump(exclude_unset=True))


def _change_options(
    queue: str, context: AdminContext, choose: Callable[[QueueOptions], QueueOptions]
) -> dict[str, Any]:
    # An undeclared queue has default options here; change_queue refuses it with its own message.
    former = queues.load_options(context.db, queue) or QueueOptions()
    options = queues.change_queue(context.db, queue, choose(former), was=former, now=context.clock.now())
    return _build_options_document(queue, options) | {"warnings": warn_no_executor(context)}


def _build_options_document(queue: str, options: QueueOptions) -> dict[str, Any]:
    return {"queue": {"queue": queue, "paused": options.paused, "options": asdict(options)}}


def _build_status_document(status: QueueStatus) -> dict[str, Any]:
    return status.document() | {"options": asdict(status.options)}
