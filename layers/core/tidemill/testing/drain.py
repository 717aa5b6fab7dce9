"""Run due tasks in the test's process, by one executor or two at once, with the executor and store of production."""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from threading import Event
from typing import Any, Final, Self

from pymongo.database import Database

from tidemill.clock import Clock
from tidemill.control.queues import OptionsReader
from tidemill.documents import decode, id_key
from tidemill.executor.context import ExecutionOptions, Report, Runtime
from tidemill.executor.execution import work
from tidemill.executor.lifetime import Worker
from tidemill.model import QueueOptions, Task
from tidemill.policy.scheduling import Limits
from tidemill.registry import REGISTRY, Registry
from tidemill.requests.tasks import MAX_TIMEOUT_SEC
from tidemill.settings import Settings
from tidemill.store.connection import Tasks, open_tasks, translate_errors
from tidemill.testing.clock import LongestJitter, ManualClock, to_stored_time
from tidemill.testing.faults import Where, get_clock, get_database
from tidemill.testing.perform import FailedRun, WatchedRegistry, explain_unregistered, watch

SETTINGS: Final = Settings(linger=timedelta(0), max_task_timeout=timedelta(seconds=MAX_TIMEOUT_SEC))
"""No linger, so that it ends once nothing is due, and the longest timeout, since no invocation ends it."""

MAX_CLOCK_SKEW: Final = timedelta(seconds=1)
"""Largest difference of the clocks of two queues of one database."""

BARRIER_TIMEOUT_SEC: Final = 5.0


def drain(
    queue: Where,
    *,
    now: datetime | None = None,
    until: datetime | None = None,
    queues: Sequence[str] = (),
    registry: Registry = REGISTRY,
    concurrency: int = 1,
    timeout: timedelta | None = None,
) -> Drained:
    """Run due tasks with the real executor on the real database, and return the counts of their outcomes.

    ::

        shop.place_order("order-7")                       # enqueues send_invoice
        assert drain(queue).done == 1

        drained = drain(queue)                            # the mail server is down: it fails
        assert drained.retried == 1
        drain(queue, now=drained.now + timedelta(seconds=5))          # later that day

        drain(queue, until=queue.now() + timedelta(days=1))           # all of tomorrow's, retries and delays included

    Time stands still meanwhile: back-offs are not waited for, and a retry runs only if its back-off has ended at *now*.
    Jitter is always at its longest, so a policy of 5 s that doubles means 5, 10, 20 s. Tasks that functions enqueue
    without a delay are run, too. Functions are called one at a time, in the order of the queue, on a thread of this
    process. Mocks and breakpoints work, and ``isolate=True`` has no effect. As in production, the error of a function
    is not raised here; see `Drained`. It is logged, so that a failed test shows it.

    Args:
        queue: The queue, or the database it is in. For tests only: every due task there is run.
        now: The time at which due tasks are run. Without it, the time of the queue.
        until: Run at each further due time up to this one, so that delays, back-offs and snoozes end at their time.
        queues: The names of the queues to drain; none: all.
        registry: The registry of the functions; without it, the one of `tidemill.task`. The modules of the functions
            must have been imported.
        concurrency: Number of functions to run at a time.
        timeout: Timeout of every run, in place of the one of its task or registration: long for a breakpoint, short
            to test a timeout.

    Raises:
        AssertionError: Too many runs: a function may enqueue itself.
        TidemillError: MongoDB failed.
    """
    clock, db = get_clock(queue), get_database(queue)
    at = clock.now() if now is None else to_stored_time(now)
    upcoming = UpcomingTimes(
        tasks=open_tasks(db),
        queues=queues,
        until=None if until is None else to_stored_time(until),
        clock=clock if now is None else None,
    )
    with watch(registry) as watched:
        executor = Executor(
            db=db,
            registry=watched,
            queues=queues,
            concurrency=concurrency,
            timeout=timeout,
            stop=watched.enough,
        )
        report = executor.run(at)
        while not watched.enough.is_set() and (following := upcoming.after(at)) is not None:
            at = following
            report.update(executor.run(at))
    return Drained.of(report, watched, now=at)


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
        for executor_report in threads.map(lambda _: _run_beside(executor, at, barrier), range(2)):
            report.update(executor_report)
    runs = Counter((id_key(task_id), attempt) for task_id, attempt in watched.began)
    repeated = sum(count > 1 for count in runs.values())
    if repeated:
        raise AssertionError(f"{repeated} attempts were run twice")
    return Drained.of(report, watched, now=at)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Drained:
    """Counts of ended attempts by outcome, and the failures.

    Attributes:
        done: Tasks that are done.
        retried: Attempts that failed and will be retried.
        failed: Tasks that failed for good.
        snoozed: Tasks that were snoozed.
        cancelled: Tasks that were cancelled while they ran, or before.
        timed_out: Attempts that ran into their timeout; also counted as retried or failed.
        report: Every count of an executor, by name.
        failures: The errors of functions, in the order of their ends.
        unregistered: Task names without a function. Executors wait for one, since it may be about to be deployed, so
            these tasks are counted as snoozed.
        now: The time at the end.
    """

    done: int
    retried: int
    failed: int
    snoozed: int
    cancelled: int
    timed_out: int
    report: Report
    failures: tuple[FailedRun, ...]
    unregistered: tuple[str, ...]
    now: datetime

    @classmethod
    def of(cls, report: Report, watched: WatchedRegistry, *, now: datetime) -> Self:
        """Return the counts of *report* with the failures of *watched*."""
        return cls(
            done=report["done"],
            retried=report["retried"],
            failed=report["failed"],
            snoozed=report["snoozed"],
            cancelled=report["cancelled"],
            timed_out=report["timed_out"],
            report=report,
            failures=tuple(watched.failures),
            unregistered=tuple(watched.unregistered),
            now=now,
        )

    def raise_failures(self) -> Self:
        """Raise the first error of a function; return this if there is none.

        ::

            drain(queue).raise_failures()

        Raises:
            AssertionError: The error was an exit or a timeout, an attempt failed without an error, or a function is
                not registered.
        """
        __tracebackhide__ = True
        if self.failures:
            first = self.failures[0]
            if isinstance(first.error, SystemExit) or not isinstance(first.error, Exception):
                raise AssertionError(str(first)) from first.error  # an exit itself would end the test runner
            raise first.error
        if self.unregistered or self.retried or self.failed:
            raise AssertionError(repr(self))
        return self

    def __repr__(self) -> str:
        """Return the counts that are not zero, and every problem."""
        counts = ", ".join(f"{name} {count}" for name, count in self.report.as_dict().items() if count)
        problems = [explain_unregistered(name) for name in self.unregistered] + [
            str(failure) for failure in self.failures
        ]
        return f"<drained: {'; '.join([counts or 'nothing was due', *problems])}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Executor:
    """Runs due tasks of *queues* (none: of all), *concurrency* functions at a time, until *stop* is set.

    A *timeout* replaces the timeout of every task and registration.
    """

    db: Database[Any]
    registry: Registry
    queues: Sequence[str] = ()
    concurrency: int = 1
    timeout: timedelta | None = None
    stop: Event = field(default_factory=Event)

    def run(self, at: datetime, *, options: Callable[[str], QueueOptions] | None = None) -> Report:
        """Run tasks that are due at *at*, including those that become due at that time meanwhile; return the counts.

        *options* returns the options of a queue; without it they are read from the database.
        """
        runtime = _Runtime(
            tasks=open_tasks(self.db),
            registry=self.registry,
            settings=SETTINGS,
            clock=ManualClock(at),
            options=options or OptionsReader(self.db).options,
            rng=LongestJitter(),
            timeout=self.timeout,
        )
        worker = Worker(self.stop, stays=False)
        order = ExecutionOptions(
            owner=f"test-{uuid.uuid4().hex}",
            remaining=worker.remaining(),
            queues=tuple(self.queues),
            concurrency=self.concurrency,
        )
        return work(runtime, order, worker)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runtime(Runtime):
    timeout: timedelta | None

    def limits(self, task: Task) -> Limits:
        limits = Runtime.limits(self, task)
        return limits if self.timeout is None else replace(limits, timeout=self.timeout, max_timeout=self.timeout)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpcomingTimes:
    """Due times of pending *tasks* in *queues* (none: in all). Reads every pending task, so not for production.

    With *until*, every due time up to it. Without it but with a *clock*, due times up to its time, of tasks enqueued
    without a delay and not retried or snoozed since. Without both, none.
    """

    tasks: Tasks
    queues: Sequence[str] = ()
    until: datetime | None = None
    clock: Clock | None = None

    def after(self, at: datetime) -> datetime | None:
        """Return the next time to run at after *at*, or ``None`` if there is none."""
        if self.until is not None:
            return self._find_due_at({"$gt": at, "$lte": self.until}, order=1)
        if self.clock is not None:
            until = self.clock.now() + MAX_CLOCK_SKEW
            return self._find_due_at({"$gt": at, "$lte": until}, order=-1, next_retry_at=None)
        return None

    def _find_due_at(self, due_at: Mapping[str, datetime], *, order: int, **fields: Any) -> datetime | None:  # noqa: ANN401
        criteria: dict[str, Any] = {"status": "pending", "due_at": due_at} | fields
        if self.queues:
            criteria["queue"] = {"$in": list(self.queues)}
        with translate_errors():
            task = self.tasks.find_one(criteria, {"due_at": 1}, sort=[("due_at", order)])
        return None if task is None else decode(task)["due_at"]


def _run_beside(executor: Executor, at: datetime, barrier: threading.Barrier) -> Report:
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
