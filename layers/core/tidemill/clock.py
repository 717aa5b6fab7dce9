"""Clock of MongoDB's primary, which due times and leases are compared with, and the clock that measures durations."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, Protocol

from pymongo.database import Database

from tidemill.errors import TidemillError
from tidemill.store.connection import run_server_command, translate_errors, with_majority

RESAMPLE_AFTER_SEC = 60.0
MAX_DRIFT_SEC = 1.0
"""Largest difference between wall clock and monotonic clock that is no sign of a frozen process."""

RETRY_AFTER_SEC = 5.0
"""Seconds from a failed sample to the next try."""

SLOW_SAMPLE_SEC = 0.1
"""Duration of a sample above which a second sample is taken."""


read_monotonic: Final[Callable[[], float]] = (
    time.monotonic
    if sys.platform == "win32"
    else partial(time.clock_gettime, getattr(time, "CLOCK_UPTIME_RAW", time.CLOCK_MONOTONIC))
)
"""Returns the reading of ``time.monotonic``, also if a test has frozen or moved the time of its process.

Tools for that replace `time.monotonic`. Limits of attempts would never be reached, or all at once. macOS has
``CLOCK_UPTIME_RAW``.
"""


class Uptime:
    """Seconds that never go back, and that include the time in which the process was frozen.

    Lambda freezes a process between two calls, and its monotonic clock may stop meanwhile. If the wall clock advanced
    by over a second more than the monotonic clock since the last call, the difference is added.
    """

    def __init__(
        self, *, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._frozen = 0.0
        self._last = wall(), monotonic()

    def __call__(self) -> float:
        """Return the seconds since an arbitrary moment."""
        wall, monotonic = self._wall(), self._monotonic()
        gap = (wall - self._last[0]) - (monotonic - self._last[1])
        self._last = wall, monotonic
        if gap > MAX_DRIFT_SEC:
            self._frozen += gap
        return monotonic + self._frozen


class Clock(Protocol):
    """Source of the time. Tests use their own."""

    def now(self) -> datetime:
        """Return the time as aware UTC, truncated to milliseconds as MongoDB stores it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sample:
    server: datetime
    wall: float
    monotonic: float
    duration: float
    primary: tuple[str, int] | None


class ServerClock:
    """Time of MongoDB's primary: a sample of ``hello``, advanced by the monotonic clock.

    A new sample is taken after 60 s and after a change of primary. It is also taken when wall clock and monotonic clock
    disagree on the age of the sample: then the process was frozen, or the wall clock was set.
    """

    def __init__(
        self,
        db: Database[Any],
        *,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._db = with_majority(db)
        self._wall = wall
        self._monotonic = monotonic
        self._uptime = Uptime(wall=wall, monotonic=monotonic)
        self._sample: _Sample | None = None
        self._topology: object = None
        self._next_try = 0.0

    def now(self) -> datetime:
        """Return the server's time.

        Raises:
            UnavailableError: There is no sample yet, and the server does not answer.
        """
        sample = self._sample
        if sample is None:
            sample = self._sample = self._take_sample()
        elif self._is_stale(sample) and self._uptime() >= self._next_try:
            sample = self._sample = self._renew(sample)
        return truncate_to_ms(sample.server + timedelta(seconds=self._measure_age(sample)))

    @property
    def skew(self) -> timedelta | None:
        """Server's clock minus this machine's clock at the last sample; ``None`` before the first sample."""
        sample = self._sample
        return None if sample is None else sample.server - datetime.fromtimestamp(sample.wall, UTC)

    def _renew(self, old: _Sample) -> _Sample:
        try:
            return self._take_sample()
        except TidemillError:  # no write can succeed either: the old sample is enough until the server is back
            self._next_try = self._uptime() + RETRY_AFTER_SEC
            return old

    def _measure_age(self, sample: _Sample) -> float:
        passed, by_wall = self._monotonic() - sample.monotonic, self._wall() - sample.wall
        # The later time: with the earlier one, claims before the next sample would get leases that have already ended.
        return by_wall if by_wall - passed > MAX_DRIFT_SEC else passed

    def _is_stale(self, sample: _Sample) -> bool:
        passed = self._monotonic() - sample.monotonic
        drift = abs((self._wall() - sample.wall) - passed)
        return passed > RESAMPLE_AFTER_SEC or drift > MAX_DRIFT_SEC or self._has_moved(sample)

    def _has_moved(self, sample: _Sample) -> bool:
        topology = self._db.client.topology_description
        if topology is self._topology:  # the driver replaces it on each change, and to find its primary takes time
            return False
        has_moved = self._db.client.primary not in (None, sample.primary)
        self._topology = None if has_moved else topology
        return has_moved

    def _take_sample(self) -> _Sample:
        sample = self._ask_server()
        if sample.duration > SLOW_SAMPLE_SEC:  # perhaps with a connect: then the server read its clock after half-way
            sample = min(sample, self._ask_server(), key=lambda candidate: candidate.duration)
        return sample

    def _ask_server(self) -> _Sample:
        wall_before, before = self._wall(), self._monotonic()
        with translate_errors():
            server: datetime = run_server_command(self._db, "hello")["localTime"]
        wall_after, after = self._wall(), self._monotonic()
        return _Sample(
            # The server read its clock about half-way between question and answer.
            server=server.replace(tzinfo=UTC) if server.tzinfo is None else server.astimezone(UTC),
            wall=(wall_before + wall_after) / 2,
            monotonic=(before + after) / 2,
            duration=max(after - before, wall_after - wall_before),  # they differ if the process was frozen meanwhile
            primary=self._db.client.primary,
        )


def truncate_to_ms(moment: datetime) -> datetime:
    """Return *moment* in whole milliseconds, rounded down."""
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)
