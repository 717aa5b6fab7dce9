"""Run due tasks with two executors at once, and reclaim leased tasks without waiting for their leases."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final

from tidemill.control.queues import OptionsReader
from tidemill.documents import id_key
from tidemill.executor.report import Report
from tidemill.model import QueueOptions, RetryPolicy, Task
from tidemill.policy.retry import DEFAULT, resolve_policy
from tidemill.reclaim import NAMES, ReclaimContext, reclaim
from tidemill.registry import REGISTRY, Registry
from tidemill.store.connection import Tasks, open_tasks, translate_errors
from tidemill.testing.clock import ManualClock, ShortestJitter, to_stored_time
from tidemill.testing.drain import Drained, Executor
from tidemill.testing.faults import Where, get_clock, get_database
from tidemill.testing.perform import watch

BARRIER_TIMEOUT_SEC: Final = 5.0

RECLAIM_TIMEOUT_SEC = 60.0


def double_tick(
    queue: Where,
    *,
    now: datetime | None = None,
    queues: Sequence[str] = (),
    registry: Registry = REGISTRY,
    concurrency: int = 1,
    timeout: timedelta | None = None,
) -> Drained:
    """Run due tasks with two executors at once, as when a schedule fires twice, and return the counts of both.

    ::

        queue.enqueue_many({"name": "charge", "payload": {"card": n}} for n in range(20))
        assert double_tick(queue).done == 20
        assert sorted(bank.charges) == list(range(20))

    Both start to claim at the same instant. Tasks that functions enqueue meanwhile are not waited for. Both may call a
    function at the same time, for different tasks. Arguments and behaviour are otherwise those of `drain`.

    Raises:
        AssertionError: An attempt was run twice.
        TidemillError: MongoDB failed.
    """
    at = get_clock(queue).now() if now is None else to_stored_time(now)
    report = Report()
    with watch(registry) as watched, ThreadPoolExecutor(2) as threads:
        executor = Executor(
            db=get_database(queue),
            registry=watched,
            queues=queues,
            concurrency=concurrency,
            timeout=timeout,
            stop=watched.enough,
        )
        barrier = threading.Barrier(2, timeout=BARRIER_TIMEOUT_SEC)
        for executor_report in threads.map(lambda _: _run(executor, at, barrier), range(2)):
            report.update(executor_report)
    runs = Counter((id_key(task_id), attempt) for task_id, attempt in watched.began)
    repeated = sum(count > 1 for count in runs.values())
    if repeated:
        raise AssertionError(f"{repeated} attempts were run twice")
    return Drained.of(report, watched, now=at)


def _run(executor: Executor, at: datetime, barrier: threading.Barrier) -> Report:
    try:
        return executor.run(at, options=_wait_first(barrier, OptionsReader(executor.db).options))
    finally:
        barrier.abort()  # so that the second executor does not wait for an ended one


def _wait_first(barrier: threading.Barrier, options: Callable[[str], QueueOptions]) -> Callable[[str], QueueOptions]:
    """Return *options* whose first call waits for the second executor. That call comes just before the first claim."""
    has_waited = threading.Event()

    def read_options(queue: str) -> QueueOptions:
        queue_options = options(queue)
        if not has_waited.is_set():
            has_waited.set()
            with suppress(threading.BrokenBarrierError):
                barrier.wait()
        return queue_options

    return read_options


def reclaim_now(queue: Where, *, now: datetime | None = None, registry: Registry = REGISTRY) -> dict[str, int]:
    """Reclaim every leased task, as if all executors had died; return the counts of reclaim.

    The tasks are treated as by ``reclaim`` after the platform reported a death. The first loss of a task is refunded;
    a later loss counts as a failed attempt. The wait after it is the shortest that jitter allows; after a first loss
    there is none.

    Args:
        queue: The queue, or the database it is in. For tests only: leases that have not expired are ignored.
        now: The time of the reclaim. Without it, the time of the queue.
        registry: Registry of the functions, whose retry policies apply.

    Raises:
        TidemillError: MongoDB failed.
    """
    tasks = open_tasks(get_database(queue))
    reclaim_context = ReclaimContext(
        tasks=tasks,
        clock=ManualClock(get_clock(queue).now() if now is None else now),
        policy=lambda task: _resolve_policy(task, registry),
        options=OptionsReader(tasks.database).options,
        rng=ShortestJitter(),
    )
    report = Counter[str]()
    for owner in (*_list_owners(tasks), None):
        report.update(reclaim(reclaim_context, until=time.monotonic() + RECLAIM_TIMEOUT_SEC, dead_owner=owner))
    return {name: report[name] for name in NAMES}


def _resolve_policy(task: Task, registry: Registry) -> RetryPolicy:
    task_type = registry.get(task.name)
    return resolve_policy(task, registered=None if task_type is None else task_type.retry, deployment=DEFAULT)


def _list_owners(tasks: Tasks) -> list[str]:
    with translate_errors():
        owners = tasks.distinct("lease.owner", {"status": "processing"})
    return [owner for owner in owners if isinstance(owner, str)]
