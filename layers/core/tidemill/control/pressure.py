"""The load of queues: measured at most once a second, and only for queues whose pressure options are on."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from tidemill.errors import TidemillError
from tidemill.model import Pressure, QueueOptions
from tidemill.policy.retry import NO_LOAD, Load
from tidemill.store import counts
from tidemill.store.connection import Tasks
from tidemill.store.stats import count_retried_in_minute, start_of_minute

LOAD_CACHE_SEC: Final = 1.0
"""Age in seconds up to which a measured load is used again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measurement:
    at: float
    minute: datetime
    load: Load


class PressureMonitor:
    """The load of every queue, for one process. If MongoDB does not answer, the last known load is used."""

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
        self._measurements: dict[str, _Measurement] = {}

    def current_load(self, queue: str, *, now: datetime) -> Load:
        """Return the load of *queue*. Without pressure options MongoDB is not asked for counts."""
        known = self._measurements.get(queue)
        if known is not None and self._monotonic() - known.at < LOAD_CACHE_SEC and known.minute == start_of_minute(now):
            return known.load
        is_same_minute = known is not None and known.minute == start_of_minute(now)
        before = NO_LOAD if known is None else known.load
        counted = before.retries if is_same_minute else 0
        try:
            load = self._measure(queue, self._options(queue).pressure, now=now)
        except TidemillError:
            load = before
        # The number only grows within a minute, and the newest retries of this process are not written yet.
        load = replace(load, retries=max(load.retries, counted) if load is not before else counted)
        self._measurements[queue] = _Measurement(at=self._monotonic(), minute=start_of_minute(now), load=load)
        return load

    def count_retry(self, queue: str) -> None:
        """Count a retry that this process has scheduled and not written yet."""
        known = self._measurements.get(queue)
        if known is not None and known.load.pressure.budget is not None:
            self._measurements[queue] = replace(known, load=replace(known.load, retries=known.load.retries + 1))

    def _measure(self, queue: str, pressure: Pressure, *, now: datetime) -> Load:
        return Load(
            pressure=pressure,
            ready=0 if pressure.adaptive is None else counts.count_due(self._tasks, queue, now=now),
            retries=0 if pressure.budget is None else count_retried_in_minute(self._tasks.database, queue, now=now),
        )
