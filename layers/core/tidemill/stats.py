"""Counters per queue, name and minute: written beside the work, read by people and by pressure; nothing else."""

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
from tidemill.classify import bounded
from tidemill.documents import QUEUE_STATS, is_text
from tidemill.model import OUTCOME_NAMES, Failed, Retried, Snoozed, Succeeded, Task
from tidemill.selection import FRESH, time_saved
from tidemill.settlement import Settlement
from tidemill.store import Tasks, gauges, majority, translated

WRITE_SEC: Final = 1.0
MAX_WORD: Final = 100
MAX_COUNTED: Final = 10**15
"""Milliseconds of thirty thousand years."""

_MS: Final = timedelta(milliseconds=1)

COUNTERS: Final = (
    "runs",  # attempts that started and ended
    "run_ms",  # how long they took together
    "done",
    "retried",  # failed attempts that another follows
    "failed",
    "snoozed",
    "cancelled",
    "lost",  # attempts whose worker vanished
    "retry_runs",  # runs of tasks in the retry lane that ended in done, retried or failed
    "retry_successes",  # those of them that ended in done
    "exhausted",  # tasks that failed with all retries used
    "backoff_ms",  # the waits of what was retried, together
    "saved_ms",  # an estimate of what retries gained by going before fresh tasks
)


def counted(settlement: Settlement, *, now: datetime) -> dict[str, int]:
    """Return what one settled attempt adds to the counters."""
    outcome, run = settlement.outcome, settlement.run
    counts = {"lost": 1} if settlement.lost else {}
    if not (settlement.lost and isinstance(outcome, Snoozed)):  # the first loss of a worker is no snooze
        counts[OUTCOME_NAMES[type(outcome)]] = 1
    if run is not None and not settlement.lost:
        counts |= {"runs": 1, "run_ms": run.duration // _MS}
    is_retry = isinstance(settlement.task, Task) and settlement.task.lane == "retry"
    if is_retry and "runs" in counts and isinstance(outcome, Succeeded | Retried | Failed):
        counts |= {"retry_runs": 1, "retry_successes": int(isinstance(outcome, Succeeded))}
    if isinstance(outcome, Retried):
        counts["backoff_ms"] = max(outcome.next_retry_at - now, timedelta()) // _MS
    if isinstance(outcome, Failed) and outcome.reason in ("exhausted", "worker_lost"):
        counts["exhausted"] = 1
    return counts


class Tally:
    """The counters of one process on their way to MongoDB, at most once a second and when it is told to.

    What cannot be written is forgotten, since a part of it may have been: better to count less than more than once.
    What a process counted in its last second may go with it.
    """

    def __init__(self, tasks: Tasks, *, slots: int = 1, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._tasks = tasks
        self._stats = majority(tasks.database)[QUEUE_STATS]
        self._slots = slots
        self._monotonic = monotonic
        self._counts: defaultdict[tuple[str, datetime, str], Counter[str]] = defaultdict(Counter)
        self._run_times: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._overtakes: Counter[tuple[str, str]] = Counter()
        self._next_write = monotonic() + WRITE_SEC

    def settled(self, settlements: Iterable[Settlement], *, now: datetime) -> None:
        """Count attempts whose outcome is written."""
        for settlement in settlements:
            if isinstance(settlement.task, Task):
                counts = counted(settlement, now=now)
                self._counts[_key(settlement.task, now)].update(counts)
                self._run_times[settlement.task.queue].update(
                    {name: counts[name] for name in ("runs", "run_ms") if name in counts}
                )

    def overtook(self, retries: Iterable[Task]) -> None:
        """Count retries that were claimed before fresh tasks, whatever these have waited for."""
        self._overtakes.update((task.queue, task.name) for task in retries)

    def write(self, *, now: datetime, force: bool = False) -> None:
        """Write what was counted, if it is time to.

        Raises:
            TidemillError: Some, all or none was written.
        """
        if not force and self._monotonic() < self._next_write:
            return
        self._next_write = self._monotonic() + WRITE_SEC
        self._estimate_savings(now)
        if not self._counts:
            return
        writes = [
            UpdateOne({"_id": _id(*key)}, {"$inc": dict(counts), "$setOnInsert": {"minute": key[1]}}, upsert=True)
            for key, counts in self._counts.items()
        ]
        self._counts.clear()
        with translated(QUEUE_STATS):
            self._stats.bulk_write(writes, ordered=False)

    def _estimate_savings(self, now: datetime) -> None:
        overtakes = dict(self._overtakes)
        self._overtakes.clear()
        ahead = {queue: gauges.ready(self._tasks, queue, lanes=FRESH, now=now) for queue, _ in overtakes}
        for (queue, name), retries in overtakes.items():
            times = self._run_times[queue]
            mean_run = times["run_ms"] * _MS / max(times["runs"], 1)
            saved = time_saved(ahead=ahead[queue], mean_run=mean_run, slots=self._slots)
            if saved:
                self._counts[queue, minute_of(now), bounded(name, MAX_WORD)]["saved_ms"] += retries * saved // _MS


def retried_in_minute(db: Database[Any], queue: str, *, now: datetime) -> int:
    """Return how many retries of *queue* were scheduled in this minute of the clock, as far as it was written."""
    stages: list[dict[str, Any]] = [
        {"$match": _of_minute(queue, minute_of(now))},
        {"$group": {"_id": None, "retried": {"$sum": "$retried"}}},  # of what people edit, only numbers
    ]
    with translated(QUEUE_STATS):
        found = majority(db)[QUEUE_STATS].aggregate(stages)
        return sum(_number(one["retried"]) for one in found)


def totals(db: Database[Any], *, since: datetime) -> dict[tuple[str, str], Counter[str]]:
    """Return the counters from the minute of *since* on, by queue and name."""
    stages: list[dict[str, Any]] = [
        {"$match": {"minute": {"$gte": minute_of(since)}}},
        {
            "$group": {
                "_id": {"queue": "$_id.queue", "name": "$_id.name"},
                **{name: {"$sum": f"${name}"} for name in COUNTERS},
            }
        },
    ]
    with translated(QUEUE_STATS):
        found = list(majority(db)[QUEUE_STATS].aggregate(stages, hint=indexes.RETENTION))
    named = [one for one in found if all(is_text(one["_id"].get(field)) for field in ("queue", "name"))]
    return {
        (one["_id"]["queue"], one["_id"]["name"]): Counter({name: _number(one[name]) for name in COUNTERS})
        for one in named
    }


def _number(value: object) -> int:
    """Return a counter as the whole number it has to be: people, and other programs, may have written anything."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return 0
    return int(min(max(value, 0), MAX_COUNTED))


def _key(task: Task, now: datetime) -> tuple[str, datetime, str]:
    return task.queue, minute_of(now), bounded(task.name, MAX_WORD)


def _id(queue: str, minute: datetime, name: str) -> dict[str, Any]:
    return {"queue": bounded(queue, MAX_WORD), "minute": minute, "name": name}


def _of_minute(queue: str, minute: datetime) -> dict[str, Any]:
    """Return the filter of all names: a range on ``_id``, whose fields stand in this order for it."""
    start = {"queue": bounded(queue, MAX_WORD), "minute": minute}
    return {"_id": {"$gte": start | {"name": MinKey()}, "$lte": start | {"name": MaxKey()}}}


def minute_of(moment: datetime) -> datetime:
    """Return the minute of the clock that *moment* is counted in."""
    return moment.replace(second=0, microsecond=0)
