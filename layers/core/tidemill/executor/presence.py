"""A worker lets others know that it is alive: it takes no seat by which they could see it."""

from __future__ import annotations

import math
from contextlib import suppress

from tidemill import control
from tidemill.errors import TidemillError
from tidemill.executor.life import Life
from tidemill.executor.runtime import Order, Runtime


class Present:
    """Says so as often as *life* has leases extended; an invocation, which never does, says nothing.

    People read it who ask why a task is not running. Nothing is decided by it, so what fails is left for next time.
    """

    def __init__(self, runtime: Runtime, order: Order, *, life: Life) -> None:
        self._db = runtime.tasks.database
        self._owner = order.owner
        self._service = runtime.service(order)
        self._life = life
        self._clock = runtime.clock
        self._monotonic = runtime.monotonic
        self._next = runtime.monotonic() if math.isfinite(life.extend_sec) else math.inf

    def say(self) -> None:
        """Say that it is alive, if it is time to."""
        if self._monotonic() < self._next:
            return
        self._next = self._monotonic() + self._life.extend_sec
        now = self._clock.now()
        with suppress(TidemillError):
            control.be_present(self._db, self._owner, self._service, until=self._life.lease_until(now), now=now)

    def leave(self) -> None:
        """Take it back."""
        if math.isfinite(self._next):
            with suppress(TidemillError):
                control.be_gone(self._db, self._owner)
