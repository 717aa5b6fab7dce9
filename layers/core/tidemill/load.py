"""What presses on a queue now: looked up at most once a second, and only where its pressure is switched on."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from tidemill.errors import TidemillError
from tidemill.policies import Pressure, QueueOptions
from tidemill.pressure import CALM, Load
from tidemill.stats import minute_of, retried_in_minute
from tidemill.store import Tasks, gauges

LOOK_SEC: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    at: float
    minute: datetime
    load: Load


class Loads:
    """The load of every queue, for one process. Where MongoDB does not answer, the last that was known."""

    def __init__(
        self,
        tasks: Tasks,
        options: Callable[[str], QueueOptions],
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tasks = tasks
        self._options = options
        self._monotonic = monotonic
        self._looks: dict[str, _Look] = {}

    def of(self, queue: str, *, now: datetime) -> Load:
        """Return the load of *queue*; without pressure nothing is asked for."""
        known = self._looks.get(queue)
        if known is not None and self._monotonic() - known.at < LOOK_SEC and known.minute == minute_of(now):
            return known.load
        is_same_minute = known is not None and known.minute == minute_of(now)
        before = CALM if known is None else known.load
        counted = before.retries if is_same_minute else 0
        try:
            load = self._measured(queue, self._options(queue).pressure, now=now)
        except TidemillError:
            load = before
        # Within a minute the number only grows; what this process has scheduled last is not written yet.
        load = replace(load, retries=max(load.retries, counted) if load is not before else counted)
        self._looks[queue] = _Look(at=self._monotonic(), minute=minute_of(now), load=load)
        return load

    def retried(self, queue: str) -> None:
        """Count a retry that this process has just scheduled and not written yet."""
        known = self._looks.get(queue)
        if known is not None and known.load.pressure.budget is not None:
            self._looks[queue] = replace(known, load=replace(known.load, retries=known.load.retries + 1))

    def _measured(self, queue: str, pressure: Pressure, *, now: datetime) -> Load:
        return Load(
            pressure=pressure,
            ready=0 if pressure.adaptive is None else gauges.ready(self._tasks, queue, now=now),
            retries=0 if pressure.budget is None else retried_in_minute(self._tasks.database, queue, now=now),
        )
