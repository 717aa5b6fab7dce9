"""Summoning: executors that are started at once where there is work, not at the next tick.

Nothing here asks MongoDB, and nothing raises: who summons has something better to do, and the next tick comes anyway.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event, Thread
from typing import Final

from tidemill.errors import TidemillError

QUIET_SEC: Final = 1.0
"""So long after a wake nobody is woken: an executor that was summoned looks for longer than that.

Nor after one in vain, however short executors look: each try may cost its caller `PATIENCE_SEC`.
"""

PATIENCE_SEC: Final = 0.3
"""What a wake may cost an enqueue, whatever happens to it."""

UNDER_WAY: Final = "the call before this one has not ended"
TOO_SLOW: Final = "no answer in time"
BROKEN_OFF: Final = "the call broke off"
NO_THREAD: Final = "no thread could be started"


class SummonError(TidemillError):
    """No executor was started; the message says why, without an address."""


class Debounce:
    """Decides when to wake; pure, in readings of the monotonic clock.

    An executor that was started at a time works or looks for longer than *quiet_sec* from then on, so it will see
    whatever is asked for until then. All other asking is owed a wake, until one is known to have started an executor;
    and after a try that is not known to have, there is quiet for `QUIET_SEC` at least.
    """

    def __init__(self, *, quiet_sec: float = QUIET_SEC) -> None:
        self._quiet_sec = quiet_sec
        self._tried_at: float | None = None
        self._came_at: float | None = None
        self._owed_at: float | None = None

    def ask(self, at: float) -> None:
        """Note that there is work for an executor."""
        if self._came_at is None or at - self._came_at >= self._quiet_sec:
            self._owed_at = at

    def is_due(self, at: float) -> bool:
        """Tell whether to wake one now."""
        if self._owed_at is None:
            return False
        return self._tried_at is None or at - self._tried_at >= max(self._quiet_sec, QUIET_SEC)

    def tried(self, at: float) -> None:
        """Note a try, before it is known what comes of it."""
        self._tried_at = at

    def came(self, at: float) -> None:
        """Note that an executor was started by a try that began *at* that time; this may be known late."""
        self._came_at = at
        if self._tried_at is not None and self._tried_at <= at:
            self._tried_at = None  # not in vain
        if self._owed_at is not None and self._owed_at - at < self._quiet_sec:
            self._owed_at = None


class Summoner:
    """Starts executors by calling *start* on a daemon thread, one at a time, and waits for each call, but not long.

    *start* raises `SummonError` where it could not. A thread that was frozen with its container goes on when that is
    thawed, and is nobody's worry until then.

    Attributes:
        trouble: Why the last call is not known to have started anybody; ``None`` where it is.
        came_at: When the last call began that did start somebody, on the monotonic clock.
    """

    def __init__(
        self,
        start: Callable[[], None],
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wait: Callable[[Event, float], bool] = Event.wait,
    ) -> None:
        self._start = start
        self._monotonic = monotonic
        self._wait = wait
        self._call: _Call | None = None
        self.trouble: str | None = None
        self.came_at: float | None = None

    def summon(self, count: int = 1, *, patience_sec: float) -> bool:
        """Start *count* executors; true if all were started within *patience_sec*, else `trouble` says why not.

        A call that takes longer goes on, and is heard of by `listen`.
        """
        until = self._monotonic() + patience_sec
        if self._call is not None:
            self._wait(self._call.ended, patience_sec)
        self.listen()
        if self._call is not None:
            self.trouble = UNDER_WAY
            return False
        self._call = _Call(self._start, count, began=self._monotonic())
        try:
            self._call.thread.start()
        except RuntimeError:
            self._call, self.trouble = None, NO_THREAD
            return False
        self._wait(self._call.ended, max(until - self._monotonic(), 0.0))
        self.trouble = TOO_SLOW
        self.listen()
        return self.trouble is None

    def listen(self) -> str | None:
        """Learn what has come of the last call, if it has ended; return `trouble`."""
        if self._call is not None and self._call.ended.is_set():
            call, self._call = self._call, None
            self.trouble = call.trouble
            self.came_at = call.began if call.started else self.came_at
        return self.trouble


class _Call:
    """One call on a thread of its own."""

    def __init__(self, start: Callable[[], None], count: int, *, began: float) -> None:
        self._start = start
        self._count = count
        self.began = began
        self.started = 0
        self.trouble: str | None = BROKEN_OFF
        self.ended = Event()
        self.thread = Thread(target=self._run, name="tidemill-summon", daemon=True)

    def _run(self) -> None:
        try:
            for _ in range(self._count):
                self._start()
                self.started += 1
            self.trouble = None
        except SummonError as error:
            self.trouble = str(error)
        finally:
            self.ended.set()


class Waker:
    """Wakes an executor from a container that takes tasks in, at most once in *quiet_sec*.

    After a wake in vain it is quiet for longer, where *quiet_sec* is less than `QUIET_SEC`.
    """

    def __init__(
        self,
        summoner: Summoner,
        *,
        quiet_sec: float = QUIET_SEC,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._summoner = summoner
        self._monotonic = monotonic
        self._debounce = Debounce(quiet_sec=quiet_sec)

    def wake(self) -> str | None:
        """See to it that an executor comes for what was just stored; return why none may come, or ``None``."""
        self._hear()
        self._debounce.ask(self._monotonic())
        return self.make_up()

    def make_up(self) -> str | None:
        """Wake one if that is owed since an earlier request; return why none may come, or ``None``."""
        self._hear()
        now = self._monotonic()
        if not self._debounce.is_due(now):
            return None
        self._debounce.tried(now)
        self._summoner.summon(patience_sec=PATIENCE_SEC)
        self._hear()
        return self._summoner.trouble

    def _hear(self) -> None:
        self._summoner.listen()
        if self._summoner.came_at is not None:
            self._debounce.came(self._summoner.came_at)
