"""How retries went, from the counters that executors keep."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from pymongo.database import Database

from tidemill.stats import totals
from tidemill.status.counts import Count
from tidemill.store import gauges, open_tasks

_MS: Final = timedelta(milliseconds=1)


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
            "retry_queue_size": self.depth.plain(),
            "time_saved_sec_estimate": self.time_saved.total_seconds(),
        }


def retry_statistics(db: Database[Any], *, since: datetime, queue: str | None = None) -> list[RetryStatistics]:
    """Return how retries went from the minute of *since* on: in every queue that counted anything, or in *queue*."""
    by_queue: dict[str, Counter[str]] = {}
    for (counted, _), counts in totals(db, since=since).items():
        if queue in {None, counted}:
            by_queue.setdefault(counted, Counter()).update(counts)
    depths = gauges.depths(open_tasks(db), sorted(by_queue), lane="retry")
    return [_statistics(name, by_queue[name], depth=depth) for name, depth in depths.items()]


def _statistics(queue: str, counts: Counter[str], *, depth: int) -> RetryStatistics:
    return RetryStatistics(
        queue=queue,
        retries=counts["retry_runs"],
        successful=counts["retry_successes"],
        exhausted=counts["exhausted"],
        backoffs=counts["retried"],
        time_in_backoff=counts["backoff_ms"] * _MS,
        depth=Count(counted=depth),
        time_saved=counts["saved_ms"] * _MS,
    )
