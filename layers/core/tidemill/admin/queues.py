"""Operations on queues, and statistics of their retries.

A change returns the options of the queue, without its sizes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from pymongo.database import Database

from tidemill.admin import requests, responses
from tidemill.admin.context import AdminContext, warn_no_executor
from tidemill.control import queues
from tidemill.control.queues import MAX_COMPARED_NAME, OptionsReader
from tidemill.errors import InvalidRequestError, Problem
from tidemill.model import Adaptive, Budget, QueueOptions, Task
from tidemill.store import counts
from tidemill.store.connection import Tasks, open_tasks
from tidemill.store.counts import COUNT_LIMIT
from tidemill.store.stats import read_totals
from tidemill.store.tasks import format_id

_MILLISECOND: Final = timedelta(milliseconds=1)


def read_retry_statistics(
    db: Database[Any], *, since: datetime, queue: str | None = None
) -> list[responses.QueueStatistics]:
    """Return retry statistics from the minute of *since* on, for every queue with counters, or only for *queue*."""
    by_queue: dict[str, Counter[str]] = {}
    for (name, _), minute in read_totals(db, since=since).items():
        if queue in {None, name}:
            by_queue.setdefault(name, Counter()).update(minute)
    depths = counts.count_pending_by_queue(open_tasks(db), sorted(by_queue), lane="retry")
    return [_build_statistics(name, by_queue[name], depth=depth) for name, depth in depths.items()]


def _build_statistics(queue: str, counts: Counter[str], *, depth: int) -> responses.QueueStatistics:
    retries, backoffs = counts["retry_runs"], counts["retried"]
    time_in_backoff = counts["backoff_ms"] * _MILLISECOND
    return responses.QueueStatistics(
        queue=queue,
        total_retries=retries,
        successful_retries=counts["retry_successes"],
        retry_success_rate=counts["retry_successes"] / retries if retries else None,
        retries_exhausted=counts["exhausted"],
        backoff_sec_sum=time_in_backoff.total_seconds(),
        backoff_sec_mean=(time_in_backoff / backoffs).total_seconds() if backoffs else None,
        retry_queue_size=limit_count(depth),
        time_saved_sec_estimate=(counts["saved_ms"] * _MILLISECOND).total_seconds(),
    )


def limit_count(counted: int, *, may_be_more: bool = False) -> responses.Count:
    """Return *counted*, or text with a plus sign above `COUNT_LIMIT` and if there *may_be_more*."""
    is_complete = counted <= COUNT_LIMIT and not may_be_more
    return counted if is_complete else f"{min(counted, COUNT_LIMIT)}+"


def show_statistics(request: requests.Stats, context: AdminContext) -> responses.StatisticsResponse:
    """Return the retry statistics of each queue, or of one."""
    since = context.clock.now() - timedelta(seconds=request.since_sec)
    found = read_retry_statistics(context.db, since=since, queue=request.queue)
    return responses.StatisticsResponse(statistics=tuple(found), warnings=() if found else warn_no_executor(context))


MAX_CURRENT: Final = 20
"""Maximum number of running tasks in an answer."""


def read_status(db: Database[Any], queue: str, *, now: datetime) -> responses.QueueView:
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
    options_by_queue = {queue: options or QueueOptions()}
    leased, failed = counts.count_leased_by_queue(tasks), counts.count_failed_by_queue(tasks)
    [view] = _read_views(tasks, options_by_queue, leased=leased, failed=failed, now=now)
    return view.model_copy(update={"current": tuple(_read_current(tasks, queue))})


def _read_views(
    tasks: Tasks,
    queues: Mapping[str, QueueOptions],
    *,
    leased: counts.QueueCounts,
    failed: counts.QueueCounts,
    now: datetime,
) -> tuple[responses.QueueView, ...]:
    found = counts.measure_queues(tasks, list(queues), now=now)
    return tuple(
        responses.QueueView(
            queue=queue,
            queue_size=limit_count(found[queue].fresh),
            retry_queue_size=limit_count(found[queue].retry),
            delayed=limit_count(found[queue].delayed),
            processing=limit_count(leased.by_queue.get(queue, 0), may_be_more=not leased.is_all),
            failed=limit_count(failed.by_queue.get(queue, 0), may_be_more=not failed.is_all),
            paused=options.paused,
            oldest_due_age_sec=(now - due).total_seconds() if (due := found[queue].oldest_due) else None,
            options=options,
        )
        for queue, options in queues.items()
    )


def _read_current(tasks: Tasks, queue: str) -> Iterable[responses.RunningTask]:
    for task in counts.list_leased(tasks, queue, limit=MAX_CURRENT):
        if isinstance(task, Task):
            yield responses.RunningTask(
                id=format_id(task.id),
                name=task.name,
                attempts=task.attempts,
                is_retry=task.lane == "retry",
                since=task.updated_at,
            )


def list_queues(request: requests.QueueList, context: AdminContext) -> responses.QueuePage:
    """Return the sizes of a page of queues by name, and the cursor of the next page.

    Running and failed tasks are only counted. The number of commands is constant up to `QUEUES_PER_COMMAND` queues.
    """
    now, tasks, options = context.clock.now(), context.tasks, OptionsReader(context.db)
    leased, failed = counts.count_leased_by_queue(tasks), counts.count_failed_by_queue(tasks)
    unpending = {**leased.by_queue, **failed.by_queue}
    known = queues.list_queues(context.db, listed=options.all_options(), unpending=unpending)
    behind = [queue for queue in known if request.cursor is None or queue[:MAX_COMPARED_NAME] > request.cursor]
    page = behind[: request.limit]
    views = _read_views(tasks, {queue: options.options(queue) for queue in page}, leased=leased, failed=failed, now=now)
    return responses.QueuePage(queues=views, next=page[-1][:MAX_COMPARED_NAME] if len(behind) > len(page) else None)


def show_status(request: requests.QueueStatusOf, context: AdminContext) -> responses.QueueResponse:
    """Return the status of one queue."""
    return responses.QueueResponse(queue=read_status(context.db, request.queue, now=context.clock.now()))


def declare(request: requests.QueueDeclare, context: AdminContext) -> responses.QueueChangeResponse:
    """Declare a queue, so that HTTP may enqueue into it."""
    options = queues.declare_queue(context.db, request.queue, now=context.clock.now())
    return responses.QueueChangeResponse(queue=_build_changed_queue(request.queue, options))


def set_paused(
    request: requests.QueuePause | requests.QueueResume, context: AdminContext
) -> responses.QueueChangeResponse:
    """Pause a queue, so that no more of its tasks start, or resume it."""
    is_paused = isinstance(request, requests.QueuePause)
    return _change_options(request.queue, context, lambda options: replace(options, paused=is_paused))


def change(request: requests.QueueSet, context: AdminContext) -> responses.QueueChangeResponse:
    """Change options of a queue."""
    return _change_options(request.queue, context, lambda options: apply_changes(options, request))


def apply_changes(options: QueueOptions, request: requests.QueueSet) -> QueueOptions:
    """Return *options* with the changes of *request*."""
    changes, pressure = request.model_dump(exclude_unset=True, exclude={"op", "queue"}), options.pressure
    for name, kind in (("adaptive", Adaptive), ("budget", Budget)):
        if name in changes:
            wanted, former = changes.pop(name), getattr(pressure, name) or kind()
            switch: dict[str, Any] = {name: None if wanted is None else replace(former, **wanted)}
            pressure = replace(pressure, **switch)
    return replace(options, pressure=pressure, **changes)


def _change_options(
    queue: str, context: AdminContext, choose: Callable[[QueueOptions], QueueOptions]
) -> responses.QueueChangeResponse:
    # An undeclared queue has default options here; change_queue refuses it with its own message.
    former = queues.load_options(context.db, queue) or QueueOptions()
    options = queues.change_queue(context.db, queue, choose(former), was=former, now=context.clock.now())
    return responses.QueueChangeResponse(queue=_build_changed_queue(queue, options), warnings=warn_no_executor(context))


def _build_changed_queue(queue: str, options: QueueOptions) -> responses.ChangedQueue:
    return responses.ChangedQueue(queue=queue, paused=options.paused, options=options)
