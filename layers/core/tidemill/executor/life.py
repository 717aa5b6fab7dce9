"""How long an executor lives, and what follows from it: when it may claim, and for how long it leases."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from threading import Event
from typing import Final, Protocol

from tidemill.errors import TidemillError

LEASE_GRACE: Final = timedelta(seconds=5)
"""What a lease outlives its invocation by: nothing living is ever reclaimed."""

WORKER_LEASE: Final = timedelta(seconds=60)
EXTEND_SEC: Final = 20.0
"""How often a worker extends its leases; after a try in vain, four times as often."""

FOREVER: Final = timedelta(days=1)
"""What a worker has left, at any time: more than any task takes."""


class Life(Protocol):
    """The life of what executes."""

    @property
    def extend_sec(self) -> float:
        """How often leases are extended, in seconds; infinite where they are as long as the life."""

    @property
    def shun_sec(self) -> float:
        """How long a task that was given back is left to others."""

    @property
    def persists(self) -> bool:
        """Whether it goes on when there is nothing to do, or when MongoDB is away."""

    def remaining(self) -> timedelta:
        """Return what is left of it."""

    def left_for_tasks(self) -> timedelta:
        """Return what is left of it for tasks that have not started."""

    def may_claim(self) -> bool:
        """Tell whether whatever is claimed now can still be finished."""

    def lease_until(self, now: datetime) -> datetime:
        """Return when a lease that is taken or extended *now* ends."""

    def pause(self, seconds: float) -> None:
        """Wait, but not beyond its end."""

    def note(
        self, *, running: int, trouble: TidemillError | None, answered: bool, not_started: str | None = None
    ) -> None:
        """Hear how it stands, again and again: how many functions run, and what keeps it from its work.

        Without *answered*, no *trouble* says nothing: MongoDB was not asked. *not_started* tells why a function had
        nowhere to run, if one ever had not.
        """


class Invocation:
    """A Lambda invocation: it ends for certain, *remaining* after now, and so does every lease.

    It claims while *reserve* is left: the longest task, and what it takes to report.
    """

    extend_sec = math.inf
    shun_sec = math.inf
    persists = False

    def __init__(self, remaining: timedelta, *, reserve: timedelta, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._deadline = monotonic() + remaining.total_seconds()
        self._reserve = reserve

    def remaining(self) -> timedelta:
        """Return what is left until the platform ends it; negative afterwards."""
        return timedelta(seconds=self._deadline - self._monotonic())

    def left_for_tasks(self) -> timedelta:
        """Return what is left until the platform ends it."""
        return self.remaining()

    def may_claim(self) -> bool:
        """Tell whether the longest task still fits."""
        return self.remaining() >= self._reserve

    def lease_until(self, now: datetime) -> datetime:
        """Return when this invocation is certainly over."""
        return now + self.remaining() + LEASE_GRACE

    def pause(self, seconds: float) -> None:
        """Wait."""
        time.sleep(min(seconds, max(self.remaining().total_seconds(), 0.0)))

    def note(
        self, *, running: int, trouble: TidemillError | None, answered: bool, not_started: str | None = None
    ) -> None:
        """Do nothing: an invocation reports at its end."""


class Worker:
    """A process that runs until *stop* is set, then finishes what it has begun. Its leases are short and extended.

    Args:
        stop: May be set by any thread.
        stays: Whether it waits for work; otherwise it leaves when it ran dry, as an invocation does.
        lease: How long a lease lasts that is not extended.
        extend_sec: How often leases are extended. The lease less this is how long MongoDB may be away unnoticed.

    Attributes:
        running: How many functions run; for other threads to read.
        trouble: What keeps it from its work, as far as known; likewise.
        not_started: Why a function had nowhere to run, if one ever had not; likewise.
    """

    def __init__(
        self, stop: Event, *, stays: bool = True, lease: timedelta = WORKER_LEASE, extend_sec: float = EXTEND_SEC
    ) -> None:
        self._stop = stop
        self._lease = lease
        self.extend_sec = extend_sec
        self.shun_sec = lease.total_seconds()
        self.persists = stays
        self.running = 0
        self.trouble: TidemillError | None = None
        self.not_started: str | None = None

    def remaining(self) -> timedelta:
        """Return more than any task takes: what has begun may end."""
        return FOREVER

    def left_for_tasks(self) -> timedelta:
        """Return the same, and nothing once it is asked to stop."""
        return FOREVER if self.may_claim() else timedelta(0)

    def may_claim(self) -> bool:
        """Tell whether nobody has asked it to stop."""
        return not self._stop.is_set()

    def lease_until(self, now: datetime) -> datetime:
        """Return when others may take over if this process says nothing more."""
        return now + self._lease

    def pause(self, seconds: float) -> None:
        """Wait, or until it is asked to stop."""
        self._stop.wait(seconds)

    def note(
        self, *, running: int, trouble: TidemillError | None, answered: bool, not_started: str | None = None
    ) -> None:
        """Keep how it stands for whoever watches."""
        self.running = running
        self.not_started = not_started
        if answered or trouble is not None:
            self.trouble = trouble
