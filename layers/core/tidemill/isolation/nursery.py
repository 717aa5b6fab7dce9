"""Isolation by a forkserver of our own: no semaphores, no shared memory, and nothing of the executor in a child."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from pathlib import Path

from tidemill.conclusions import Conclusion
from tidemill.errors import IsolationError
from tidemill.isolation.helper import Helper, HelperLostError
from tidemill.isolation.order import IsolatedRun
from tidemill.isolation.visit import Visit


class Nursery:
    """Runs each order in a child of its own, forked from one helper process with the functions of *package*.

    The helper is started by the first run, which takes as long as it takes to import the functions, and anew once
    it is lost. All ends with this process, however that ends, and with `close`. A run takes no longer than the
    timeout of its function with *begin_within* and *answer_within*.

    Args:
        package: What `registry.load` imports, in the helper.
        start_within: How long that may take, though no run waits for it longer than *begin_within*.
        begin_within: How late a function may start; later it does not.
        answer_within: How long the helper may be silent, when it was asked for something, before it is taken for
            frozen. It only forks and kills.
    """

    def __init__(
        self,
        package: str,
        *,
        start_within: timedelta = timedelta(seconds=15),
        begin_within: timedelta = timedelta(seconds=5),
        answer_within: timedelta = timedelta(seconds=3),
    ) -> None:
        # Where this process is now: a function may leave it anywhere, in a directory that is gone too.
        self._start = partial(
            Helper, package, directory=str(Path.cwd()), start_within=start_within, answer_within=answer_within
        )
        self._begin_within = begin_within
        self._lock = threading.Lock()
        self._helper: Future[Helper] | None = None
        self._is_closed = False

    def run(self, order: IsolatedRun, *, cancelled: threading.Event) -> Conclusion:
        """Run the function and return what became of it, as `Isolation` has it."""
        begin_by = time.monotonic() + self._begin_within.total_seconds()
        try:
            return self._visit(order, begin_by, cancelled)
        except HelperLostError:
            return self._visit(order, begin_by, cancelled)

    def close(self) -> None:
        """End the helper and whatever still runs. Further runs are refused."""
        with self._lock:
            self._is_closed = True
            helper = self._helper
        if helper is not None and helper.exception() is None:
            helper.result().close()

    def _visit(self, order: IsolatedRun, begin_by: float, cancelled: threading.Event) -> Conclusion:
        helper = self._ready(begin_by)
        try:
            return Visit(helper, order, begin_by=begin_by, cancelled=cancelled).conclude()
        except HelperLostError:
            helper.kill()  # it may be frozen, or about to die: the next is not to take it for alive
            raise

    def _ready(self, begin_by: float) -> Helper:
        """Return the helper; where there is none, one is started, for all that wait."""
        with self._lock:
            if self._is_closed:
                raise IsolationError("the nursery is closed")
            if self._helper is None or _is_in_vain(self._helper):
                self._helper = _in_background(self._start)
            helper = self._helper
        try:
            return helper.result(timeout=max(begin_by - time.monotonic(), 0))
        except TimeoutError:
            raise IsolationError("the helper process is not ready yet") from None


def _is_in_vain(helper: Future[Helper]) -> bool:
    if not helper.done() or helper.exception() is not None:
        return helper.done()
    return helper.result().is_gone()


def _in_background(start: Callable[[], Helper]) -> Future[Helper]:
    """Start a helper on a thread of its own, which nobody interrupts: whoever waits for it may give up sooner."""
    helper = Future[Helper]()

    def fulfil() -> None:
        try:
            helper.set_result(start())
        except IsolationError as error:
            helper.set_exception(error)

    try:
        threading.Thread(target=fulfil, name="tidemill-nursery", daemon=True).start()
    except RuntimeError as error:
        raise IsolationError("no thread can be started") from error
    return helper
