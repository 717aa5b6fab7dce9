"""One isolated run as the executor lives through it: a fork, an order, an answer or a death."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Final

from tidemill.conclusions import Conclusion, Crashed, Lost, Overran
from tidemill.errors import IsolationError
from tidemill.isolation.helper import Helper, HelperLostError
from tidemill.isolation.line import Line
from tidemill.isolation.order import IsolatedRun
from tidemill.isolation.patience import SLICE_SEC

LOST: Final = "its process was lost with the helper process"


class Visit:
    """Sends *order* to a child of *helper* and sees to it that nothing is left of that. To be used once.

    The function is called by *begin_by*, on the monotonic clock, or not at all.
    """

    def __init__(self, helper: Helper, order: IsolatedRun, *, begin_by: float, cancelled: threading.Event) -> None:
        self._helper = helper
        self._order = order
        self._deadline = begin_by
        self._cancelled = cancelled
        self._is_told = False
        self._line = _opened(helper)

    def conclude(self) -> Conclusion:
        """Return what became of the function.

        Raises:
            HelperLostError: The helper was lost before the function started.
            IsolationError: The function did not start, for another reason.
        """
        with self._line as line:
            self._fork()
            line.order(self._order)
            self._wait(lambda: line.has_begun)
            if line.has_begun:
                self._deadline = time.monotonic() + self._order.timeout.total_seconds()
                self._wait(lambda: False)
            line.hear_out()
            is_cut_short = not line.is_decided
            self._dismiss()
        if is_cut_short and line.has_begun and line.conclusion is None:
            return Overran()
        return _verdict(line)

    def _fork(self) -> None:
        line = self._line
        line.ask_for_child()
        for _ in self._helper.silence():
            line.listen(SLICE_SEC)
            if line.refusal is not None:
                raise IsolationError(line.refusal)
            if time.monotonic() >= self._deadline:
                raise IsolationError("the helper process is too busy")
            if line.is_forked:
                return
            if self._helper.is_gone():
                break
        raise HelperLostError

    def _wait(self, is_enough: Callable[[], bool]) -> None:
        line = self._line
        while not (line.is_decided or is_enough()) and (left := self._deadline - time.monotonic()) > 0:
            if line.has_begun and self._cancelled.is_set() and not self._is_told:
                line.cancel()
                self._is_told = True
            line.listen(min(SLICE_SEC, left))

    def _dismiss(self) -> None:
        """Have everything killed and hear the last of it: until then, a function may still start."""
        line = self._line
        line.hang_up()
        for _ in self._helper.silence():
            if line.is_over and (line.has_begun or line.is_silent):
                break
            line.listen(SLICE_SEC)
        else:
            if line.conclusion is None:
                self._helper.kill()
        line.hear_out()


def _opened(helper: Helper) -> Line:
    try:
        return Line(helper)
    except OSError as error:
        raise IsolationError(f"no socket can be opened ({error.strerror})") from error


def _verdict(line: Line) -> Conclusion:
    if line.conclusion is not None:
        return line.conclusion
    if line.is_garbled:
        return Crashed("its process sent something that is no answer")
    if line.has_begun or not line.is_silent:  # where nobody can tell, it counts as run
        return Lost(LOST) if line.status is None else Crashed(_death(line.status))
    if line.refusal is not None:
        raise IsolationError(line.refusal)
    if line.status is None:
        raise HelperLostError
    raise IsolationError(f"{_death(line.status)} before it called the function")


def _death(status: int) -> str:
    """Say how a process ended with *status*, as `os.waitpid` has it."""
    code = os.waitstatus_to_exitcode(status)
    if code == 0:
        return "its process exited with code 0 without an answer"
    if code > 0:
        return f"its process exited with code {code}"
    cause = " (out of memory?)" if -code == signal.SIGKILL else ""
    return f"its process was killed by {_signal_name(-code)}{cause}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # the real-time signals but the first and the last
        return f"signal {number}"
