"""Running what is due, here and now, with the executor and the store that production has."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from tidemill.registry import REGISTRY, Registry
from tidemill.store import open_tasks
from tidemill.testing.clock import moment
from tidemill.testing.drained import Drained
from tidemill.testing.executor import Executor
from tidemill.testing.target import Where, clock_of, database_of
from tidemill.testing.upcoming import Upcoming
from tidemill.testing.watched import watching


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
    """Run the tasks that are due, with the real executor on the real database, and return what became of them.

    ::

        shop.place_order("order-7")                       # enqueues send_invoice
        assert drain(queue).done == 1

        drained = drain(queue)                            # the mail server is down: it fails
        assert drained.retried == 1
        drain(queue, now=drained.now + timedelta(seconds=5))          # later that day

        drain(queue, until=queue.now() + timedelta(days=1))           # all of tomorrow's, retries and delays included

    Time stands still meanwhile: nothing is slept through, and a retry is run only if its back-off has ended at *now*.
    Jitter is always at its longest, so a policy of 5 s that doubles means 5, 10, 20 s. What functions enqueue without
    a delay is run, too. Functions are called one at a time, in the order of the queue, on a thread of this process:
    mocks and breakpoints work, and ``isolate=True`` has no effect. What a function raises is not raised here, as it
    would not be in production; see `Drained`. It is logged, so that a test that fails shows it.

    Args:
        queue: The queue, or the database it is in. For a test alone: it takes whatever is due there.
        now: What is due by then is run, at that time. Without it, the time of the queue.
        until: Go on from one due time to the next up to this one: through delays, back-offs and snoozes, each at its
            time.
        queues: The names of the queues to drain; none are all.
        registry: Where the functions are registered; without it, where `tidemill.task` registers them. The modules
            that have them must have been imported.
        concurrency: How many functions to run at a time.
        timeout: What every run may take, whatever its task or its registration says: long for a breakpoint, short to
            see a function run into it.

    Raises:
        AssertionError: There seems to be no end to it: a function may enqueue itself.
        TidemillError: MongoDB failed.
    """
    clock, db = clock_of(queue), database_of(queue)
    at = clock.now() if now is None else moment(now)
    upcoming = Upcoming(
        tasks=open_tasks(db),
        queues=queues,
        until=None if until is None else moment(until),
        clock=clock if now is None else None,
    )
    with watching(registry) as watched:
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
