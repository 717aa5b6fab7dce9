"""Process pool for isolated runs, on a forkserver of our own.

It needs no semaphores and no shared memory, which Lambda lacks, and children inherit nothing of the executor.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from pathlib import Path

from tidemill.errors import IsolationError
from tidemill.runner.child_session import ChildSession
from tidemill.runner.forkserver_client import ForkserverClient
from tidemill.runner.process_protocol import ForkserverLostError, RunSpec
from tidemill.runner.results import RunResult


class ProcessPool:
    """Runs each run spec in a child of its own, forked from one forkserver that has imported *package*.

    The first run starts the forkserver, which takes as long as importing the functions. A lost forkserver is
    replaced. All processes end with this process, however it ends, and with `close`. A run takes at most the timeout
    of its function plus *begin_within* and *answer_within*.

    Args:
        package: The package that the forkserver imports with `registry.load`.
        start_within: Time limit for that import. No run waits for it longer than *begin_within*.
        begin_within: Latest start of a function, counted from `run`; later it is not started.
        answer_within: Longest silence of the forkserver after a request. After that it counts as unresponsive,
            since it only forks and kills.
    """

    def __init__(
        self,
        package: str,
        *,
        start_within: timedelta = timedelta(seconds=15),
        begin_within: timedelta = timedelta(seconds=5),
        answer_within: timedelta = timedelta(seconds=3),
    ) -> None:
        # The directory of now: a function may change it later, even to a folder that is deleted.
        self._start = partial(
            ForkserverClient,
            package,
            directory=str(Path.cwd()),
            start_within=start_within,
            answer_within=answer_within,
        )
        self._begin_within = begin_within
        self._lock = threading.Lock()
        self._forkserver: Future[ForkserverClient] | None = None
        self._is_closed = False

    def run(self, spec: RunSpec, *, cancelled: threading.Event) -> RunResult:
        """Run the function and return its result, as `IsolatedRunner` defines it."""
        begin_by = time.monotonic() + self._begin_within.total_seconds()
        try:
            return self._run_in_child(spec, begin_by, cancelled)
        except ForkserverLostError:
            return self._run_in_child(spec, begin_by, cancelled)

    def close(self) -> None:
        """End the forkserver and every run. Later runs are refused."""
        with self._lock:
            self._is_closed = True
            forkserver = self._forkserver
        if forkserver is not None and forkserver.exception() is None:
            forkserver.result().close()

    def _run_in_child(self, spec: RunSpec, begin_by: float, cancelled: threading.Event) -> RunResult:
        forkserver = self._await_forkserver(begin_by)
        try:
            return ChildSession(forkserver, spec, begin_by=begin_by, cancelled=cancelled).run()
        except ForkserverLostError:
            forkserver.kill()  # unresponsive or about to exit: the next run needs another one
            raise

    def _await_forkserver(self, begin_by: float) -> ForkserverClient:
        """Return the forkserver. Start a new one if there is none or it failed; all runs wait for the same start."""
        with self._lock:
            if self._is_closed:
                raise IsolationError("the process pool is closed")
            if self._forkserver is None or _has_failed(self._forkserver):
                self._forkserver = _start_in_background(self._start)
            forkserver = self._forkserver
        try:
            return forkserver.result(timeout=max(begin_by - time.monotonic(), 0))
        except TimeoutError:
            raise IsolationError("the helper process is not ready yet") from None


def _has_failed(forkserver: Future[ForkserverClient]) -> bool:
    if not forkserver.done() or forkserver.exception() is not None:
        return forkserver.done()
    return forkserver.result().is_gone()


def _start_in_background(start: Callable[[], ForkserverClient]) -> Future[ForkserverClient]:
    """Start a forkserver on a thread of its own, so that the start goes on when a waiting run times out."""
    forkserver = Future[ForkserverClient]()

    def start_forkserver() -> None:
        try:
            forkserver.set_result(start())
        except IsolationError as error:
            forkserver.set_exception(error)

    try:
        threading.Thread(target=start_forkserver, name="tidemill-process-pool", daemon=True).start()
    except RuntimeError as error:
        raise IsolationError("no thread can be started") from error
    return forkserver
