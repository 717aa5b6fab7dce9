"""Leases of an executor that outlives them: extended while their tasks are in hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tidemill.clock import Clock
from tidemill.errors import TidemillError
from tidemill.executor.held import Held
from tidemill.executor.life import Life
from tidemill.executor.report import Report
from tidemill.executor.retry_caps import RetryCaps
from tidemill.slots import Running
from tidemill.store import Tasks, settles


class Leases:
    """Extends what is *held*, all at once, as often as *life* says."""

    def __init__(
        self,
        tasks: Tasks,
        *,
        life: Life,
        held: Held,
        caps: RetryCaps,
        clock: Clock,
        report: Report,
        monotonic: Callable[[], float],
    ) -> None:
        self._tasks = tasks
        self._life = life
        self._held = held
        self._caps = caps
        self._clock = clock
        self._report = report
        self._monotonic = monotonic
        self.next_extension = monotonic() + life.extend_sec

    def extend(self, running: Iterable[Running]) -> bool:
        """Extend the leases if it is time to; drop what was lost, and ask its functions to stop.

        What fails is tried again after a quarter of the time. True where it was time and did not fail.
        """
        at = self._monotonic()
        if at < self.next_extension:
            return False
        self.next_extension = at + self._life.extend_sec
        held = self._held.tasks
        if not held:
            return True
        now = self._clock.now()
        try:
            lost = settles.extend(self._tasks, held, until=self._life.lease_until(now))
        except TidemillError:
            self._report["errors"] += 1
            self.next_extension = at + self._life.extend_sec / 4
            return False
        self._caps.renew(now=now)
        self._held.drop(lost)
        for one in running:
            if any(one.task is task for task in lost):
                one.cancel.set()
        return True
