"""Wakes of executors by applications: at most one a second, from any thread, also in an event loop and after a fork."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections.abc import Callable
from importlib.util import find_spec
from threading import Event, Lock
from typing import Final

from tidemill.aws.lambda_functions import Starter
from tidemill.errors import SettingsError
from tidemill.executor.scaling import (
    LAUNCH_IN_PROGRESS,
    LAUNCH_UNANSWERED,
    WAKE_DEBOUNCE_SEC,
    WAKE_TIMEOUT_SEC,
    Launcher,
    Waker,
)

_FUNCTION: Final = r"(arn:[\w-]+:lambda:[\w-]+:\d{12}:function:)?[\w-]{1,140}(:[\w$-]+)?"
_UNANSWERED: Final = frozenset({LAUNCH_IN_PROGRESS, LAUNCH_UNANSWERED})

_logger = logging.getLogger(__name__)


def get_waker(function: str) -> ApplicationWaker:
    """Return the waker of *function*. All queues of this process share it: each would wake an executor of its own.

    Raises:
        SettingsError: As `ApplicationWaker` raises it.
    """
    waker = _wakers.get(str(function))
    return waker or _wakers.setdefault(str(function), ApplicationWaker(function))


class ApplicationWaker:
    """Wakes *function*, the name or ARN of the execute function, for tasks that this process has stored.

    A process that was forked makes its own client. Threads do not wait for each other: an executor that another thread
    has just woken finds the task of this one.

    Args:
        function: Name or ARN of the function.
        monotonic: The clock for the time between two wakes.
        wait: Waits for the end of a call, in seconds.

    Raises:
        SettingsError: *function* is no name of a function, or boto3 is not installed.
    """

    def __init__(
        self,
        function: str,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wait: Callable[[Event, float], bool] = Event.wait,
    ) -> None:
        if re.fullmatch(_FUNCTION, str(function)) is None:
            raise SettingsError("wake must be the name or the ARN of the execute function")
        if find_spec("boto3") is None:
            raise SettingsError("wake needs the extra lambda: pip install 'tidemill[lambda]'")
        self._function = function
        self._monotonic = monotonic
        self._wait = wait
        self._process = 0
        self._prepare_process()

    def wake(self) -> None:
        """Wake an executor, unless one was woken less than a second ago. It raises nothing, and logs a failure.

        It takes at most `WAKE_TIMEOUT_SEC`. On a thread that runs an event loop it does not wait for Lambda at all.
        """
        if self._process != os.getpid():
            self._prepare_process()
        if not self._lock.acquire(blocking=False):
            return
        try:
            is_in_loop = _runs_event_loop()
            error = self._waker.wake(timeout_sec=0.0 if is_in_loop else WAKE_TIMEOUT_SEC)
        finally:
            self._lock.release()
        if error is not None and not (is_in_loop and error in _UNANSWERED):
            _logger.warning("no executor was woken: %s", error)

    def _prepare_process(self) -> None:
        """Make what another process or thread may have left in the middle of its use."""
        self._lock = Lock()
        launcher = Launcher(Starter(self._function, source="wake").start, monotonic=self._monotonic, wait=self._wait)
        self._waker = Waker(launcher, quiet_sec=WAKE_DEBOUNCE_SEC, monotonic=self._monotonic)
        self._process = os.getpid()


_wakers: Final[dict[str, ApplicationWaker]] = {}


def _runs_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
