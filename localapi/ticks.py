"""Ticks: call `execute`, `reclaim` and `archive` as the schedules and the wakes of a deployment do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from types import ModuleType
from typing import Any, Final, TypeAlias

from demo.functions import death_of, event
from tidemill.runner.worker_thread import ABANDONED_THREADS
from tidemill.testing import FakeContext

Handler: TypeAlias = Callable[[Mapping[str, Any], FakeContext], dict[str, Any]]

EXECUTES_PER_RECLAIM: Final = 3
"""Ticks of `execute` between two of `reclaim` and `archive`."""

EXECUTE_TIMEOUT: Final = timedelta(seconds=120)
RECLAIM_TIMEOUT: Final = timedelta(seconds=50)
ARCHIVE_TIMEOUT: Final = timedelta(seconds=240)

LAST_TICK_TIMEOUT_SEC: Final = 1.0
"""Limit of the wait for running ticks at the end."""

_SHOWN_COUNTS: Final = ("done", "retried", "failed", "snoozed", "cancelled", "timed_out", "lost", "reclaimed", "moved")


class Ticks:
    """Calls `execute` at the interval *every* and after each wake, `reclaim` and `archive` less often.

    *say* gets a line for each tick that did something. `execute` has a thread of its own, so that a long task does not
    delay `reclaim`.
    """

    def __init__(
        self,
        execute: ModuleType,
        reclaim: ModuleType,
        archive: ModuleType,
        *,
        every: timedelta,
        say: Callable[[str], None],
    ) -> None:
        self._execute = partial(execute.lambda_handler, on_recycle=self._report_recycling)
        self._reclaim: Handler = reclaim.lambda_handler
        self._archive: Handler = archive.lambda_handler
        self._every = every.total_seconds()
        self._say = say
        self._woken = threading.Event()
        self._stopping = threading.Event()
        self._reported: set[object] = set()

    def wake(self) -> None:
        """Call `execute` now, or once more after the running tick."""
        self._woken.set()

    def prepare(self) -> None:
        """Create the indexes and declare the task types, before the first enqueue.

        Raises:
            TidemillError: A handler failed.
        """
        self._reclaim(event("reclaim"), FakeContext(RECLAIM_TIMEOUT))
        self._execute(event("tick"), FakeContext(EXECUTE_TIMEOUT))

    @contextmanager
    def run(self) -> Iterator[None]:
        """Tick until the block ends."""
        threads = [
            threading.Thread(target=loop, daemon=True) for loop in (self._execute_repeatedly, self._reclaim_repeatedly)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            self._woken.set()
            deadline = time.monotonic() + LAST_TICK_TIMEOUT_SEC
            for thread in threads:
                thread.join(max(0.0, deadline - time.monotonic()))

    def _execute_repeatedly(self) -> None:
        while not self._stopping.is_set():
            context = FakeContext(EXECUTE_TIMEOUT)
            if not self._tick("execute", self._execute, event("tick"), context):
                # Lambda, too, reports a failed invocation, so that its tasks need not wait for their leases to end.
                self._tick("reclaim", self._reclaim, death_of(context.aws_request_id), FakeContext(RECLAIM_TIMEOUT))
            self._woken.wait(self._every)
            self._woken.clear()

    def _reclaim_repeatedly(self) -> None:
        while not self._stopping.wait(self._every * EXECUTES_PER_RECLAIM):
            self._tick("reclaim", self._reclaim, event("reclaim"), FakeContext(RECLAIM_TIMEOUT))
            self._tick("archive", self._archive, event("archive"), FakeContext(ARCHIVE_TIMEOUT))

    def _tick(self, name: str, handler: Handler, cause: Mapping[str, Any], context: FakeContext) -> bool:
        """Call a handler and say what it did; return false if it failed."""
        try:
            report = handler(cause, context)
        except Exception as error:  # noqa: BLE001 - as the Lambda runtime does; the next tick continues
            if not self._stopping.is_set():
                self._say(f"{name} failed: {type(error).__name__}")
            return False
        done = [f"{report[count]} {count.replace('_', ' ')}" for count in _SHOWN_COUNTS if report.get(count)]
        if done and not self._stopping.is_set():
            self._say(f"{name}: {', '.join(done)}")
        return True

    def _report_recycling(self, error: BaseException | None) -> None:
        """Say why Lambda would end the process; this process continues."""
        left = set(ABANDONED_THREADS.task_ids())
        if error is not None or not left <= self._reported:
            what = f"the function of task {', '.join(map(str, left))} does not stop" if left else "it is out of threads"
            self._say(f"execute: {what}; Lambda would go on in a new process, this one stays")
        self._reported |= left
