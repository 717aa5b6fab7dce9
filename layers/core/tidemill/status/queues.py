"""How full queues are, at a cost that does not grow with the number of tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from pymongo.database import Database

from tidemill import control
from tidemill.control import OptionsReader
from tidemill.errors import InvalidRequestError, Problem
from tidemill.model import Task, TaskId
from tidemill.policies import QueueOptions
from tidemill.status.counts import Count
from tidemill.store import Tasks, gauges, ids, open_tasks
from tidemill.wording import stamp

MAX_NAME: Final = 1000
"""Characters of a queue's name that tell it apart: what somebody wrote by hand may be longer."""

MAX_CURRENT: Final = 20
"""So many of the tasks that are being run are listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentTask:
    """One task that is being run. ``attempts`` counts this run; ``since`` is when it was claimed."""

    id: TaskId
    name: str
    attempts: int
    is_retry: bool
    since: datetime

    def document(self) -> dict[str, Any]:
        """Return it in plain types."""
        return {
            "id": ids.shown(self.id),
            "name": self.name,
            "attempts": self.attempts,
            "is_retry": self.is_retry,
            "since": stamp(self.since),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatus:
    """How full a queue is.

    Attributes:
        queue_size: Pending tasks of the lane fresh, due or not.
        retry_queue_size: Pending tasks of the lane retry, due or in back-off.
        delayed: Those of both that are not due yet.
        processing: Tasks under a lease.
        oldest_due_age: How long the task that waits longest has been due; ``None`` where none is.
        current: Some of the tasks under a lease; ``None`` where they were not asked for.
    """

    queue: str
    queue_size: Count
    retry_queue_size: Count
    delayed: Count
    processing: Count
    oldest_due_age: timedelta | None
    options: QueueOptions
    current: tuple[CurrentTask, ...] | None = None

    @property
    def paused(self) -> bool:
        """Whether none of its tasks is started."""
        return self.options.paused

    def document(self) -> dict[str, Any]:
        """Return the status in plain types, with counts beyond their limit as text."""
        counts = ("queue_size", "retry_queue_size", "delayed", "processing")
        current = {} if self.current is None else {"current": [one.document() for one in self.current]}
        return {
            "queue": self.queue,
            **{name: getattr(self, name).plain() for name in counts},
            "paused": self.paused,
            "oldest_due_age_sec": None if self.oldest_due_age is None else self.oldest_due_age.total_seconds(),
            **current,
        }


def queue_status(db: Database[Any], queue: str, *, now: datetime) -> QueueStatus:
    """Return how full *queue* is, and what it runs.

    Raises:
        InvalidRequestError: There is no such queue: it is not declared and holds nothing.
    """
    options = control.options_of(db, queue)
    if options is None:
        known = control.known_queues(db)
        if queue not in known:
            raise InvalidRequestError([Problem("queue", control.no_queue(queue, known))])
    tasks = open_tasks(db)
    [status] = _statuses(tasks, {queue: options or QueueOptions()}, leased=gauges.leased(tasks), now=now)
    return replace(status, current=tuple(_current(tasks, queue)))


def queue_statuses(
    db: Database[Any], *, limit: int, after: str | None = None, now: datetime
) -> tuple[list[QueueStatus], str | None]:
    """Return how full the known queues behind *after* are, *limit* of them by name, and what the others are behind.

    What is being run is only counted. As many commands whatever there is, up to ``gauges.QUEUES_AT_ONCE`` queues.
    """
    tasks, options = open_tasks(db), OptionsReader(db)
    leased = gauges.leased(tasks)
    known = control.known_queues(db, listed=options.of_all(), leased=leased.by_queue)
    behind = [queue for queue in known if after is None or queue[:MAX_NAME] > after]
    chosen = {queue: options.options(queue) for queue in behind[:limit]}
    others_behind = behind[limit - 1][:MAX_NAME] if len(behind) > limit else None
    return _statuses(tasks, chosen, leased=leased, now=now), others_behind


def _statuses(
    tasks: Tasks, queues: Mapping[str, QueueOptions], *, leased: gauges.Leased, now: datetime
) -> list[QueueStatus]:
    found = gauges.sizes(tasks, list(queues), now=now)
    return [
        QueueStatus(
            queue=queue,
            queue_size=Count(counted=found[queue].fresh),
            retry_queue_size=Count(counted=found[queue].retry),
            delayed=Count(counted=found[queue].delayed),
            processing=Count(counted=leased.by_queue.get(queue, 0), may_be_more=not leased.is_all),
            oldest_due_age=_age(found[queue].oldest_due, now),
            options=options,
        )
        for queue, options in queues.items()
    ]


def _age(since: datetime | None, now: datetime) -> timedelta | None:
    return None if since is None else now - since


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
