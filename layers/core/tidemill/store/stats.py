"""Counters of attempts per queue, name and minute. Operators and the pressure monitor read them, nothing else."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any, Final

from bson.max_key import MaxKey
from bson.min_key import MinKey
from pymongo import UpdateOne
from pymongo.database import Database

from tidemill import indexes
from tidemill.documents import QUEUE_STATS, is_text
from tidemill.model import OUTCOME_NAMES, Failed, Retried, Snoozed, Succeeded, Task
from tidemill.policy.failures import truncate_text
from tidemill.policy.scheduling import FRESH, time_saved
from tidemill.store import counts
from tidemill.store.connection import Tasks, translate_errors, with_majority
from tidemill.store.settle import Settlement

WRITE_INTERVAL_SEC: Final = 1.0
"""Seconds between two writes of the counters."""

MAX_NAME_CHARS: Final = 100
"""Characters of a queue or a name in an id."""

MAX_COUNTER: Final = 10**15
"""Largest value of a counter: thirty thousand years in milliseconds."""

COUNTERS: Final = (
    "runs",  # attempts that started and ended
    "run_ms",  # their total duration
    "done",
    "retried",  # failed attempts with another attempt to come
    "failed",
    "snoozed",
    "cancelled",
    "lost",  # attempts whose worker was lost
    "retry_runs",  # runs of tasks in the retry lane that ended in done, retried or failed
    "retry_successes",  # the part of retry_runs that ended in done
    "exhausted",  # tasks that failed with all retries used
    "backoff_ms",  # total delay of the retries
    "saved_ms",  # estimated time that retries gained by running before fresh tasks
)

_MS: Final = timedelta(milliseconds=1)


class StatsRecorder:
    """Counters of one process. They are due to be written to MongoDB once a second.

    Counters of a failed write are dropped, because a part of them may have been written: an attempt is never counted
    twice. A process that dies loses the counters of its last second.
    """

    def __init__(self, tasks: Tasks, *, slots: int = 1, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._tasks = tasks
        self._stats = with_majority(tasks.database)[QUEUE_STATS]
        self._slots = slots
        self._monotonic = monotonic
        self._counts: defaultdict[tuple[str, datetime, str], Counter[str]] = defaultdict(Counter)
        self._run_times: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._overtakes: Counter[tuple[str, str]] = Counter()
        self._next_write = monotonic() + WRITE_INTERVAL_SEC

    def count_settled(self, settlements: Iterable[Settlement], *, now: datetime) -> None:
        """Count attempts whose outcome is written."""
        for settlement in settlements:
            task, increments = settlement.task, count_attempt(settlement, now=now)
            if isinstance(task, Task):
                self._counts[task.queue, start_of_minute(now), task.name].update(increments)
                self._run_times[task.queue].update({name: increments.get(name, 0) for name in ("runs", "run_ms")})

    def count_overtakes(self, retries: Iterable[Task]) -> None:
        """Count retries that were claimed before the fresh tasks of their queue."""
        self._overtakes.update((task.queue, task.name) for task in retries)

    @property
    def is_due(self) -> bool:
        """True if a second has passed since the last write."""
        return self._monotonic() >= self._next_write

    def write(self, *, now: datetime) -> None:
        """Write the counters.

        Raises:
            TidemillError: Some, all or none were written.
        """
        self._next_write = self._monotonic() + WRITE_INTERVAL_SEC
        self._estimate_savings(now)
        if not self._counts:
            return
        writes = [
            UpdateOne(
                {"_id": _make_id(*key)}, {"$inc": dict(counters), "$setOnInsert": {"minute": key[1]}}, upsert=True
            )
            for key, counters in self._counts.items()
        ]
        self._counts.clear()
        with translate_errors(QUEUE_STATS):
            self._stats.bulk_write(writes, ordered=False)

    def _estimate_savings(self, now: datetime) -> None:
        overtakes = dict(self._overtakes)
        self._overtakes.clear()
        ahead = {queue: counts.count_due(self._tasks, queue, lanes=FRESH, now=now) for queue, _ in overtakes}
        for (queue, name), retries in overtakes.items():
            times = self._run_times[queue]
            mean_run = times["run_ms"] * _MS / max(times["runs"], 1)
            saved = time_saved(ahead=ahead[queue], mean_run=mean_run, slots=self._slots)
            if saved:
                self._counts[queue, start_of_minute(now), name]["saved_ms"] += retries * saved // _MS


def count_attempt(settlement: Settlement, *, now: datetime) -> dict[str, int]:
    """Return the increments of one settled attempt."""
    outcome, run = settlement.outcome, settlement.run
    increments = {"lost": 1} if settlement.lost else {}
    if not (settlement.lost and isinstance(outcome, Snoozed)):  # the first loss of a worker is no snooze
        increments[OUTCOME_NAMES[type(outcome)]] = 1
    if run is not None and not settlement.lost:
        increments |= {"runs": 1, "run_ms": run.duration // _MS}
    is_retry = isinstance(settlement.task, Task) and settlement.task.lane == "retry"
    if is_retry and "runs" in increments and isinstance(outcome, Succeeded | Retried | Failed):
        increments |= {"retry_runs": 1, "retry_successes": int(isinstance(outcome, Succeeded))}
    if isinstance(outcome, Retried):
        increments["backoff_ms"] = max(outcome.next_retry_at - now, timedelta()) // _MS
    if isinstance(outcome, Failed) and outcome.reason in ("exhausted", "worker_lost"):
        increments["exhausted"] = 1
    return increments


def count_retried_in_minute(db: Database[Any], queue: str, *, now: datetime) -> int:
    """Return the number of retries of *queue* scheduled in this minute. Counters not written yet are missing."""
    # A range on _id, which covers all names of the minute. Its fields need this order.
    start = {"queue": truncate_text(queue, MAX_NAME_CHARS), "minute": start_of_minute(now)}
    stages: list[dict[str, Any]] = [
        {"$match": {"_id": {"$gte": start | {"name": MinKey()}, "$lte": start | {"name": MaxKey()}}}},
        {"$group": {"_id": None, "retried": {"$sum": "$retried"}}},  # $sum ignores values that are no numbers
    ]
    with translate_errors(QUEUE_STATS):
        groups = with_majority(db)[QUEUE_STATS].aggregate(stages)
        return sum(_parse_counter(group["retried"]) for group in groups)


def read_totals(db: Database[Any], *, since: datetime) -> dict[tuple[str, str], Counter[str]]:
    """Return the counters by queue and name, from the minute of *since* on."""
    sums = {name: {"$sum": f"${name}"} for name in COUNTERS}
    stages: list[dict[str, Any]] = [
        {"$match": {"minute": {"$gte": start_of_minute(since)}}},
        {"$group": {"_id": {"queue": "$_id.queue", "name": "$_id.name"}, **sums}},
    ]
    with translate_errors(QUEUE_STATS):
        groups = list(with_majority(db)[QUEUE_STATS].aggregate(stages, hint=indexes.RETENTION))
    return {
        (group["_id"]["queue"], group["_id"]["name"]): Counter({name: _parse_counter(group[name]) for name in COUNTERS})
        for group in groups
        if all(is_text(group["_id"].get(field)) for field in ("queue", "name"))
    }


def start_of_minute(moment: datetime) -> datetime:
    """Return the start of the minute of *moment*."""
    return moment.replace(second=0, microsecond=0)


def _parse_counter(value: object) -> int:
    """Return a stored counter as a whole number from 0 to `MAX_COUNTER`; the document may have been edited by hand."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return 0
    return int(min(max(value, 0), MAX_COUNTER))


def _make_id(queue: str, minute: datetime, name: str) -> dict[str, Any]:
    queue, name = truncate_text(queue, MAX_NAME_CHARS), truncate_text(name, MAX_NAME_CHARS)
    return {"queue": queue, "minute": minute, "name": name}
