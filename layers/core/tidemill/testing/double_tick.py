"""Two executors at once."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Final

from tidemill.control import OptionsReader
from tidemill.executor import Report
from tidemill.executor.held import key
from tidemill.policies import QueueOptions
from tidemill.registry import REGISTRY, Registry
from tidemill.testing.clock import moment
from tidemill.testing.drained import Drained
from tidemill.testing.executor import Executor
from tidemill.testing.target import Where, clock_of, database_of
from tidemill.testing.watched import watching

MEET_WITHIN_SEC: Final = 5.0


def double_tick(
    queue: Where,
    *,
    now: datetime | None = None,
    queues: Sequence[str] = (),
    registry: Registry = REGISTRY,
    concurrency: int = 1,
    timeout: timedelta | None = None,
) -> Drained:
    """Run the tasks that are due with two executors at once, as when a schedule fires twice, and return what they did.

    ::

        queue.enqueue_many({"name": "charge", "payload": {"card": n}} for n in range(20))
        assert double_tick(queue).done == 20
        assert sorted(bank.charges) == list(range(20))

    They start to claim at the same instant. What functions enqueue meanwhile is not waited for, and a function may be
    called by both for different tasks at the same time. The arguments, and all else, are those of `drain`.

    Raises:
        AssertionError: An attempt was run twice.
        TidemillError: MongoDB failed.
    """
    at = clock_of(queue).now() if now is None else moment(now)
    report = Report()
    with watching(registry) as watched, ThreadPoolExecutor(2) as threads:
        executor = Executor(
            db=database_of(queue),
            registry=watched,
            queues=queues,
            concurrency=concurrency,
            timeout=timeout,
            stop=watched.enough,
        )
        meeting = threading.Barrier(2, timeout=MEET_WITHIN_SEC)
        for one in threads.map(lambda _: _run(executor, at, meeting), range(2)):
            report.update(one)
    runs = Counter((key(task_id), attempt) for task_id, attempt in watched.began)
    twice = sum(count > 1 for count in runs.values())
    if twice:
        raise AssertionError(f"{twice} attempts were run twice")
    return Drained.of(report, watched, now=at)


def _run(executor: Executor, at: datetime, meeting: threading.Barrier) -> Report:
    try:
        return executor.run(at, options=_after(meeting, OptionsReader(executor.db).options))
    finally:
        meeting.abort()  # the other need not wait for one that has gone


def _after(meeting: threading.Barrier, options: Callable[[str], QueueOptions]) -> Callable[[str], QueueOptions]:
    """Return *options* that wait for the other executor when first asked, which is just before the first claim."""
    has_met = threading.Event()

    def met(queue: str) -> QueueOptions:
        found = options(queue)
        if not has_met.is_set():
            has_met.set()
            with suppress(threading.BrokenBarrierError):
                meeting.wait()
        return found

    return met
