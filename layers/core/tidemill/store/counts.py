"""Counts of tasks by state, queue and lane. Each count reads one index and stops at a limit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias

from tidemill import indexes
from tidemill.documents import DEAD_LETTERS, decode, is_text, read_task
from tidemill.model import EARLIEST, LANES, Lane, Malformed, Status, Task
from tidemill.policy.scheduling import Lanes
from tidemill.store.connection import Tasks, open_tasks, translate_errors
from tidemill.store.scan import list_queues

COUNT_LIMIT: Final = 10_000
"""Limit of a count. A count of one more stands for any larger number."""

GAUGES: Final = (
    "due_fresh",  # due tasks in the lane fresh, over all queues, paused ones too; 10,000 means at least 10,000
    "due_retry",  # the same for the lane retry
    "oldest_due_sec",  # seconds since the oldest of them became due; 0 without any
    "dead_letters",  # dead letters, redriven or not; 10,000 means at least 10,000
)
"""Names of what `measure_gauges` measures."""

QUEUES_PER_COMMAND: Final = 100
"""Queues read by one command."""

_Stages: TypeAlias = list[dict[str, Any]]
_IS_DATE: Final = {"$eq": [{"$type": "$due_at"}, "date"]}  # the index finds an array by its elements
_OLDEST_STAGE: Final[dict[str, Any]] = {
    "$group": {"_id": None, "due_at": {"$min": {"$cond": [_IS_DATE, "$due_at", None]}}}
}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSizes:
    """Pending tasks of one queue.

    Attributes:
        fresh: Number of pending tasks of the lane ``fresh``, due or not.
        retry: Number of pending tasks of the lane ``retry``, due or not.
        delayed: Number of pending tasks that are not due yet.
        oldest_due: Due time of the task that has been due longest.
    """

    fresh: int = 0
    retry: int = 0
    delayed: int = 0
    oldest_due: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueCounts:
    """Number of leased or failed tasks of each queue that has any. Unless *is_all*, some tasks were not counted."""

    by_queue: Mapping[str, int]
    is_all: bool


def count_due(tasks: Tasks, queue: str, *, now: datetime, lanes: Lanes = LANES, limit: int = COUNT_LIMIT) -> int:
    """Return the number of due tasks of *lanes*, at most *limit* + 1."""
    return _count(tasks, _build_pending_filter(queue, lanes) | {"due_at": {"$lte": now}}, limit=limit)


def count_pending(tasks: Tasks, queue: str, *, lanes: Lanes = LANES, limit: int = COUNT_LIMIT) -> int:
    """Return the number of pending tasks of *lanes*, due or not, at most *limit* + 1."""
    return _count(tasks, _build_pending_filter(queue, lanes), limit=limit)


def count_ahead(
    tasks: Tasks, task: Task, *, now: datetime, in_order: Lanes, first: Lanes = (), limit: int = COUNT_LIMIT
) -> dict[Lane, int]:
    """Return the number of due tasks of its queue that are claimed before *task*, by lane; at most *limit* + 1 in all.

    In the lanes *in_order* it counts tasks that sort before *task*, in the lanes *first* all due tasks.
    """
    before: list[dict[str, Any]] = [
        {"priority": {"$gt": task.priority}, "due_at": {"$lte": now}},
        {"priority": task.priority, "due_at": {"$lt": min(task.due_at, now)}},
        {"priority": task.priority, "due_at": task.due_at, "_id": {"$lt": task.id}},
    ]
    ways = [_build_pending_filter(task.queue, in_order) | condition for condition in before]
    ways += [_build_pending_filter(task.queue, (lane,)) | {"due_at": {"$lte": now}} for lane in first]
    stages: list[dict[str, Any]] = [
        {"$match": {"$or": ways}},
        {"$limit": limit + 1},
        {"$group": {"_id": "$lane", "n": {"$sum": 1}}},
    ]
    groups = _aggregate(tasks, stages)
    return {lane: sum(group["n"] for group in groups if group["_id"] == lane) for lane in LANES}


def measure_gauges(tasks: Tasks, *, now: datetime) -> dict[str, int]:
    """Return the `GAUGES`, by three commands if nothing is due, else five with up to a hundred queues."""
    fresh, retry = (count_due_anywhere(tasks, lane, now=now) for lane in LANES)
    oldest = find_oldest_due(tasks, now=now) if fresh or retry else None
    return {
        "due_fresh": fresh,
        "due_retry": retry,
        "oldest_due_sec": 0 if oldest is None else int((now - oldest).total_seconds()),
        "dead_letters": count_dead_letters(open_tasks(tasks.database, DEAD_LETTERS)),
    }


def count_due_anywhere(tasks: Tasks, lane: Lane, *, now: datetime, limit: int = COUNT_LIMIT) -> int:
    """Return the number of due tasks of *lane* in all queues, also paused queues; at most *limit*."""
    return _count(tasks, {"status": "pending", "lane": lane, "due_at": {"$lte": now}}, limit=limit - 1)


def find_oldest_due(tasks: Tasks, *, now: datetime) -> datetime | None:
    """Return the due time of the task of any queue that has been due longest, or ``None`` if no task is due.

    It takes two commands for up to `QUEUES_PER_COMMAND` queues.
    """
    names = [queue for queue in list_queues(tasks) if is_text(queue)]
    times = [_find_oldest_due(tasks, part, now=now) for part in _split_queues(names)]
    return min((due_at for due_at in times if due_at is not None), default=None)


def measure_queues(
    tasks: Tasks, named: Sequence[str], *, now: datetime, limit: int = COUNT_LIMIT
) -> dict[str, QueueSizes]:
    """Return the pending tasks of each queue; each count is at most *limit* + 1.

    It takes one command for up to `QUEUES_PER_COMMAND` queues.
    """
    found: dict[str, QueueSizes] = {}
    for part in _split_queues(named):
        stages = [_build_sizes_stages(queue, tasks.name, now=now, limit=limit) for queue in part]
        fields: dict[str, dict[str, Any]] = {queue: {} for queue in part}
        for row in _aggregate(tasks, _join_pipelines(stages, tasks.name)):
            fields[row["queue"]][row["of"]] = row["is"]
        found |= {queue: QueueSizes(**values) for queue, values in fields.items()}
    return found


def count_pending_by_queue(
    tasks: Tasks, named: Sequence[str], *, lane: Lane, limit: int = COUNT_LIMIT
) -> dict[str, int]:
    """Return the number of pending tasks of *lane* in each queue; the limits are those of `measure_queues`."""
    found: dict[str, int] = dict.fromkeys(named, 0)
    for part in _split_queues(named):
        stages = [_build_lane_stages(queue, lane, limit=limit) for queue in part]
        found |= {row["queue"]: row["is"] for row in _aggregate(tasks, _join_pipelines(stages, tasks.name))}
    return found


def count_dead_letters(dead: Tasks, *, limit: int = COUNT_LIMIT) -> int:
    """Return the number of stored dead letters, at most *limit*. Redriven letters count: no index separates them."""
    with translate_errors(DEAD_LETTERS):
        return dead.count_documents({}, hint=indexes.BY_ID, limit=limit)


def count_processing(tasks: Tasks, queue: str, *, limit: int = COUNT_LIMIT) -> int:
    """Return the number of leased tasks of *queue*, at most *limit* + 1. It reads the leased tasks of all queues."""
    with translate_errors():
        return tasks.count_documents({"status": "processing", "queue": queue}, hint=indexes.LEASES, limit=limit + 1)


def count_leased_by_queue(tasks: Tasks, *, limit: int = COUNT_LIMIT) -> QueueCounts:
    """Return the number of leased tasks of each queue. It reads the *limit* + 1 tasks whose leases end first."""
    return _count_by_queue(tasks, "processing", indexes.LEASES, limit=limit)


def count_failed_by_queue(tasks: Tasks, *, limit: int = COUNT_LIMIT) -> QueueCounts:
    """Return the number of failed tasks of each queue that are no dead letters yet.

    It reads the *limit* + 1 tasks that failed first.
    """
    return _count_by_queue(tasks, "failed", indexes.FAILED, limit=limit)


def count_failed_by_name(
    tasks: Tasks, *, queue: str | None = None, name: str | None = None, limit: int = COUNT_LIMIT
) -> dict[str, int]:
    """Return the number of failed tasks that are no dead letters yet, by name; a malformed task counts as "malformed".

    It reads the *limit* tasks that failed first, and counts those of *queue* and *name*.
    """
    wanted = {field: {"$eq": value} for field, value in (("queue", queue), ("name", name)) if value is not None}
    stages: _Stages = [
        {"$match": {"status": "failed"}},
        {"$limit": limit},
        {"$match": wanted},
        {"$group": {"_id": "$name", "n": {"$sum": 1}}},
    ]
    found: Counter[str] = Counter()
    for group in _aggregate(tasks, stages, hint=indexes.FAILED):
        found[group["_id"] if is_text(group["_id"]) else "malformed"] += group["n"]
    return dict(sorted(found.items()))


def list_leased(tasks: Tasks, queue: str, *, limit: int) -> list[Task | Malformed]:
    """Return up to *limit* leased tasks of *queue* whose leases end first, without their payloads.

    It reads at most `COUNT_LIMIT` leased tasks of all queues.
    """
    stages: list[dict[str, Any]] = [
        {"$match": {"status": "processing"}},
        {"$sort": {"lease.expires_at": 1}},
        {"$limit": COUNT_LIMIT},
        {"$match": {"queue": queue}},
        {"$limit": limit},
        {"$set": {"payload": {"$literal": {}}}},
    ]
    with translate_errors():
        return [read_task(raw) for raw in tasks.aggregate(stages, hint=indexes.LEASES)]


def _build_pending_filter(queue: str, lanes: Lanes) -> dict[str, Any]:
    return {"status": "pending", "queue": queue, "lane": {"$in": list(lanes)}}


def _count(tasks: Tasks, where: dict[str, Any], *, limit: int) -> int:
    with translate_errors():
        return tasks.count_documents(where, hint=indexes.CLAIM, limit=limit + 1)


def _count_by_queue(tasks: Tasks, status: Status, index: str, *, limit: int) -> QueueCounts:
    stages: _Stages = [
        {"$match": {"status": status}},
        {"$limit": limit + 1},
        {"$group": {"_id": "$queue", "n": {"$sum": 1}}},
    ]
    groups = _aggregate(tasks, stages, hint=index)
    return QueueCounts(
        by_queue={group["_id"]: group["n"] for group in groups if is_text(group["_id"])},
        is_all=sum(group["n"] for group in groups) <= limit,
    )


def _aggregate(tasks: Tasks, stages: _Stages, *, hint: str = indexes.CLAIM) -> list[dict[str, Any]]:
    with translate_errors():
        return [decode(raw) for raw in tasks.aggregate(stages, hint=hint)]


def _split_queues(names: Sequence[str]) -> list[Sequence[str]]:
    return [names[start : start + QUEUES_PER_COMMAND] for start in range(0, len(names), QUEUES_PER_COMMAND)]


def _build_sizes_stages(queue: str, collection: str, *, now: datetime, limit: int) -> _Stages:
    """Return the stages that yield one row for each field of `QueueSizes` that *queue* has."""
    later = _build_pending_filter(queue, LANES) | {"due_at": {"$gt": now}}
    counts = [_build_lane_stages(queue, lane, limit=limit) for lane in LANES]
    counts += [_build_count_stages(queue, "delayed", later, limit=limit)]
    oldest = _join_pipelines([_build_firsts_stages(queue, lane, now=now) for lane in LANES], collection)
    row = {"queue": {"$literal": queue}, "of": "oldest_due", "is": "$due_at"}
    return _join_pipelines([*counts, [*oldest, _OLDEST_STAGE, {"$project": row}]], collection)


def _build_lane_stages(queue: str, lane: Lane, *, limit: int) -> _Stages:
    return _build_count_stages(queue, lane, _build_pending_filter(queue, (lane,)), limit=limit)


def _build_count_stages(queue: str, of: Literal["delayed"] | Lane, where: dict[str, Any], *, limit: int) -> _Stages:
    row = {"queue": {"$literal": queue}, "of": of, "is": "$n"}
    return [{"$match": where}, {"$limit": limit + 1}, {"$group": {"_id": None, "n": {"$sum": 1}}}, {"$project": row}]


def _join_pipelines(pipelines: Sequence[_Stages], collection: str) -> _Stages:
    first, *rest = pipelines
    return [*first, *({"$unionWith": {"coll": collection, "pipeline": stages}} for stages in rest)]


def _find_oldest_due(tasks: Tasks, names: Sequence[str], *, now: datetime) -> datetime | None:
    firsts = [_build_firsts_stages(queue, lane, now=now) for queue in names for lane in LANES]
    rows = _aggregate(tasks, [*_join_pipelines(firsts, tasks.name), _OLDEST_STAGE])
    return next((row["due_at"] for row in rows if isinstance(row["due_at"], datetime)), None)


def _build_firsts_stages(queue: str, lane: Lane, *, now: datetime) -> _Stages:
    """Return the stages that find the first due task of each priority. The index leads to each of them directly."""
    due = {"$gte": EARLIEST, "$lte": now}
    return [
        {"$match": {"status": "pending", "queue": queue, "lane": lane, "due_at": due}},
        {"$sort": {"priority": -1, "due_at": 1}},
        {"$group": {"_id": "$priority", "due_at": {"$first": "$due_at"}}},
    ]
