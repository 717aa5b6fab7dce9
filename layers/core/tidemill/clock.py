"""One clock: due times and leases are judged on the database's time, whatever this machine believes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from pymongo.database import Database

from tidemill.errors import TidemillError
from tidemill.store import asked, majority, translated

RESAMPLE_AFTER_SEC = 60.0
MAX_DRIFT_SEC = 1.0
TRY_AGAIN_AFTER_SEC = 5.0
SLOW_SEC = 0.1


class Uptime:
    """Seconds that only go on, for what a warm process remembers: also while it was frozen.

    Lambda freezes a process between two calls, and nobody promises that its monotonic clock goes on meanwhile. By how
    much the wall clock got ahead of it since the last look, if by more than a second, is added.
    """

    def __init__(
        self, *, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._wall = wall
        self._monotonic = monotonic
        self._frozen = 0.0
        self._last = wall(), monotonic()

    def __call__(self) -> float:
        """Return the seconds since a moment that means nothing."""
        wall, monotonic = self._wall(), self._monotonic()
        unseen = (wall - self._last[0]) - (monotonic - self._last[1])
        self._last = wall, monotonic
        if unseen > MAX_DRIFT_SEC:
            self._frozen += unseen
        return monotonic + self._frozen


class Clock(Protocol):
    """Tells the time. Tests bring their own."""

    def now(self) -> datetime:
        """Return the time as aware UTC, truncated to milliseconds as MongoDB stores it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sample:
    server: datetime
    wall: float
    monotonic: float
    took: float
    primary: tuple[str, int] | None


class ServerClock:
    """The time of MongoDB's primary, sampled with ``hello`` and carried on by the monotonic clock.

    It is sampled again after 60 s, after a change of primary, and where wall and monotonic clock disagree on
    how long ago the sample was: then the process was frozen, or somebody set the clock.
    """

    def __init__(
        self,
        db: Database[Any],
        *,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._db = majority(db)
        self._wall = wall
        self._monotonic = monotonic
        self._uptime = Uptime(wall=wall, monotonic=monotonic)
        self._sample: _Sample | None = None
        self._topology: object = None
        self._next_try = 0.0

    def now(self) -> datetime:
        """Return the server's time.

        Raises:
            UnavailableError: It was never sampled and the server does not answer.
        """
        sample = self._sample
        if sample is None:
            sample = self._sample = self._take_sample()
        elif self._is_stale(sample) and self._uptime() >= self._next_try:
            sample = self._sample = self._renewed(sample)
        return truncated(sample.server + timedelta(seconds=self._passed(sample)))

    @property
    def skew(self) -> timedelta | None:
        """By how much the server's clock was ahead of this machine's when last asked; ``None`` before that."""
        sample = self._sample
        return None if sample is None else sample.server - datetime.fromtimestamp(sample.wall, UTC)

    def _renewed(self, old: _Sample) -> _Sample:
        try:
            return self._take_sample()
        except TidemillError:  # nothing can be written either: the old sample does until the server is back
            self._next_try = self._uptime() + TRY_AGAIN_AFTER_SEC
            return old

    def _passed(self, sample: _Sample) -> float:
        passed, by_wall = self._monotonic() - sample.monotonic, self._wall() - sample.wall
        # Late rather than early: else what is claimed before the next sample is under leases that have ended.
        return by_wall if by_wall - passed > MAX_DRIFT_SEC else passed

    def _is_stale(self, sample: _Sample) -> bool:
        passed = self._monotonic() - sample.monotonic
        drift = abs((self._wall() - sample.wall) - passed)
        return passed > RESAMPLE_AFTER_SEC or drift > MAX_DRIFT_SEC or self._has_moved(sample)

    def _has_moved(self, sample: _Sample) -> bool:
        topology = self._db.client.topology_description
        if topology is self._topology:  # it is never changed but replaced, and finding the primary in it takes time
            return False
        has_moved = self._db.client.primary not in (None, sample.primary)
        self._topology = None if has_moved else topology
        return has_moved

    def _take_sample(self) -> _Sample:
        sample = self._ask()
        if sample.took > SLOW_SEC:  # perhaps it had to connect first, and the server looked late, not half-way
            sample = min(sample, self._ask(), key=lambda one: one.took)
        return sample

    def _ask(self) -> _Sample:
        wall_before, before = self._wall(), self._monotonic()
        with translated():
            server: datetime = asked(self._db, "hello")["localTime"]
        wall_after, after = self._wall(), self._monotonic()
        return _Sample(
            # The server looked at its clock about half-way between question and answer.
            server=server.replace(tzinfo=UTC) if server.tzinfo is None else server.astimezone(UTC),
            wall=(wall_before + wall_after) / 2,
            monotonic=(before + after) / 2,
            took=max(after - before, wall_after - wall_before),  # which differ where it was frozen in between
            primary=self._db.client.primary,
        )


def truncated(moment: datetime) -> datetime:
    """Return *moment* in whole milliseconds, rounded down."""
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)
