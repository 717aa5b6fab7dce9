"""What people ask about queues: how full they are now, and how their retries went."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from pymongo.database import Database

from tidemill.control import DEFAULT_QUEUE, OptionsReader, listed_queues, options_of
from tidemill.errors import InvalidRequestError, Problem
from tidemill.model import Task, TaskId
from tidemill.policies import QueueOptions
from tidemill.selection import FRESH, RETRY
from tidemill.stats import totals
from tidemill.store import Tasks, claims, gauges, open_tasks

MAX_CURRENT: Final = 20
"""So many of the tasks that are being run are listed."""

_MS: Final = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """A number that may have been counted only up to ``gauges.MANY``: then its text ends in a plus sign."""

    counted: int

    def __str__(self) -> str:
        return f"{gauges.MANY}+" if self.counted > gauges.MANY else str(self.counted)


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentTask:
    """One task that is being run. ``attempts`` counts this run; ``since`` is when it was claimed."""

    id: TaskId
    name: str
    attempts: int
    is_retry: bool
    since: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatus:
    """How full a queue is.

    Attributes:
        queue_size: Pending tasks of the lane fresh, due or not.
        retry_queue_size: Pending tasks of the lane retry, due or in back-off.
        delayed: Those of both that are not due yet.
        processing: Tasks under a lease.
        oldest_due_age: How long the task that waits longest has been due; ``None`` where none is.
        current: Some of the tasks under a lease.
    """

    queue: str
    queue_size: Count
    retry_queue_size: Count
    delayed: Count
    processing: Count
    paused: bool
    oldest_due_age: timedelta | None
    current: tuple[CurrentTask, ...]
    options: QueueOptions

    def document(self) -> dict[str, Any]:
        """Return the status in plain types, with counts beyond the limit as text and times with an offset."""
        return {
            "queue": self.queue,
            **{name: _plain(getattr(self, name)) for name in ("queue_size", "retry_queue_size", "delayed")},
            "processing": _plain(self.processing),
            "paused": self.paused,
            "oldest_due_age_sec": None if self.oldest_due_age is None else self.oldest_due_age.total_seconds(),
            "current": [
                {
                    "id": str(one.id),
                    "name": one.name,
                    "attempts": one.attempts,
                    "is_retry": one.is_retry,
                    "since": one.since.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
                }
                for one in self.current
            ],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryStatistics:
    """How retries went, from counters; spans are sums unless they say otherwise.

    Attributes:
        retries: Attempts beyond a task's first that ended in done, retried or failed.
        successful: Those of them that ended in done.
        exhausted: Tasks that failed with all their retries used.
        backoffs, time_in_backoff: How many waits were imposed, and how long they are together.
        depth: Pending tasks of the lane retry, now.
        time_saved: An estimate of what retries gained by going before fresh tasks.
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
        """The successful part of all retries, or ``None`` where there were none."""
        return self.successful / self.retries if self.retries else None

    @property
    def mean_backoff(self) -> timedelta | None:
        """The mean wait, or ``None`` where there was none."""
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
            "retry_queue_size": _plain(self.depth),
            "time_saved_sec_estimate": self.time_saved.total_seconds(),
        }


def queue_status(db: Database[Any], queue: str, *, now: datetime) -> QueueStatus:
    """Return how full *queue* is. Its cost does not grow with the number of tasks.

    Raises:
        InvalidRequestError: There is no such queue: it is not declared and holds nothing.
    """
    options = options_of(db, queue)
    if options is None:
        known = known_queues(db)
        if queue not in known:
            raise InvalidRequestError([Problem("queue", no_queue(queue, known))])
    return _status(open_tasks(db), queue, options or QueueOptions(), now=now)


def queue_statuses(db: Database[Any], *, now: datetime) -> list[QueueStatus]:
    """Return how full each of the known queues is, in the order of their names."""
    tasks, options = open_tasks(db), OptionsReader(db).options
    return [_status(tasks, queue, options(queue), now=now) for queue in known_queues(db)]


def known_queues(db: Database[Any]) -> list[str]:
    """Return the names of all queues that are declared or have pending or leased tasks, in order."""
    tasks = open_tasks(db)
    pending = [name for name in claims.queues(tasks) if isinstance(name, str)]
    return sorted({DEFAULT_QUEUE, *listed_queues(db), *pending, *gauges.leased_queues(tasks)})


def no_queue(queue: str, known: Sequence[str]) -> str:
    """Return the sentence that says that *queue* is none of the *known* ones, and which may be meant."""
    close = difflib.get_close_matches(queue, known, n=1)
    return f"there is no queue {queue}" + (f", did you mean {close[0]}?" if close else "")


def retry_statistics(db: Database[Any], *, since: datetime) -> list[RetryStatistics]:
    """Return how retries went in every queue from the minute of *since* on."""
    by_queue: dict[str, Counter[str]] = {}
    for (queue, _), counts in totals(db, since=since).items():
        by_queue.setdefault(queue, Counter()).update(counts)
    tasks = open_tasks(db)
    return [_statistics(tasks, queue, counts) for queue, counts in sorted(by_queue.items())]


def _status(tasks: Tasks, queue: str, options: QueueOptions, *, now: datetime) -> QueueStatus:
    oldest = gauges.oldest_due(tasks, queue, now=now)
    return QueueStatus(
        queue=queue,
        queue_size=Count(counted=gauges.pending(tasks, queue, lanes=FRESH)),
        retry_queue_size=Count(counted=gauges.pending(tasks, queue, lanes=RETRY)),
        delayed=Count(counted=gauges.delayed(tasks, queue, now=now)),
        processing=Count(counted=gauges.processing(tasks, queue)),
        paused=options.paused,
        oldest_due_age=None if oldest is None else now - oldest,
        current=tuple(_current(tasks, queue)),
        options=options,
    )


def _statistics(tasks: Tasks, queue: str, counts: Counter[str]) -> RetryStatistics:
    return RetryStatistics(
        queue=queue,
        retries=counts["retry_runs"],
        successful=counts["retry_successes"],
        exhausted=counts["exhausted"],
        backoffs=counts["retried"],
        time_in_backoff=counts["backoff_ms"] * _MS,
        depth=Count(counted=gauges.pending(tasks, queue, lanes=RETRY)),
        time_saved=counts["saved_ms"] * _MS,
    )


def _current(tasks: Tasks, queue: str) -> Iterable[CurrentTask]:
    for one in gauges.current(tasks, queue, limit=MAX_CURRENT):
        if isinstance(one, Task):
            yield CurrentTask(
                id=one.id,
                name=one.name,
                attempts=one.attempts,
                is_retry=one.lane == "retry",
                since=one.updated_at,
            )


def _plain(count: Count) -> int | str:
    return count.counted if str(count) == str(count.counted) else str(count)
