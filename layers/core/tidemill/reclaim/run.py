"""One run of reclaim: every step for itself, in batches, until done or out of time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from tidemill import control
from tidemill.errors import CredentialsError, TidemillError
from tidemill.reclaim.keeper import Keeper
from tidemill.reclaim.lost_tasks import LostTasks
from tidemill.reclaim.measures import measured
from tidemill.reclaim.strays import Strays
from tidemill.store import within

NAMES: Final = (
    "reclaimed",  # taken back, to be run again
    "failed",  # taken back for the last time
    "cancelled",  # taken back, and somebody had asked them to stop
    "expired",
    "adopted",
    "quarantined",
    "raced",  # somebody else was quicker
    "stuck",  # MongoDB refuses the write
    "errors",  # steps that failed
)

OPERATION_SEC: Final = 5.0
"""What one batch may take,"""

LESS_SEC: Final = 1.0
"""and what it may take once MongoDB failed one: a server that is away costs seconds, not the whole invocation."""

SHARE_OF_WORK: Final = 0.8
"""Of the time; the rest is for the statistics and the gauges, which matter most when there is too much to do."""


def reclaim(keeper: Keeper, *, until: float, dead_owner: str | None = None) -> dict[str, int]:
    """Take back lost leases, expire, adopt, quarantine and measure, until done or *until* (monotonic) is past.

    Every step is guarded and can be stopped, repeated and run twice at once. What *dead_owner* holds is lost now,
    without waiting for its leases. A step that fails is counted and not repeated, and keeps no other from being run.
    Returns the counts of `NAMES`, and the `GAUGES` where they could be taken.

    Raises:
        TidemillError: No step succeeded; CredentialsError at once.
    """
    return _Run(keeper, until=until).reclaim(dead_owner)


class _Run:
    def __init__(self, keeper: Keeper, *, until: float) -> None:
        now = keeper.monotonic()
        self._keeper = keeper
        self._until = until
        self._until_work = now + (until - now) * SHARE_OF_WORK
        self._report: Counter[str] = Counter()
        self._measures: dict[str, int] = {}
        self._trouble: TidemillError | None = None
        self._has_succeeded = False

    def reclaim(self, dead_owner: str | None) -> dict[str, int]:
        lost, strays = LostTasks(self._keeper, self._report), Strays(self._keeper, self._report)
        if dead_owner is not None and self._work_off(lambda: lost.held_by(dead_owner)):
            # Not before: it would be as if what it holds were nobody's.
            self._once(lambda: control.let_go(self._keeper.tasks.database, dead_owner))
        for step in (lost.expired, lost.leaseless, strays.expire, strays.adopt):
            self._work_off(step)
        self._once(lambda: lost.tally.write(now=self._keeper.clock.now(), force=True))
        self._once(self._measure)
        if self._trouble is not None and not self._has_succeeded:
            raise self._trouble
        return {name: self._report[name] for name in NAMES} | self._measures

    def _work_off(self, step: Callable[[], bool]) -> bool:
        """Call *step* until it says that nothing is left; false where it failed, or the time is up before."""
        while self._keeper.monotonic() < self._until_work:
            try:
                with within(self._patience(self._until_work)):
                    may_go_on = step()
            except TidemillError as error:
                self._note(error)
                return False
            self._has_succeeded = True
            if not may_go_on:
                return True
        return False

    def _once(self, step: Callable[[], None]) -> None:
        if self._keeper.monotonic() >= self._until:
            return
        try:
            with within(self._patience(self._until)):
                step()
        except TidemillError as error:
            self._note(error)

    def _measure(self) -> None:
        self._measures = measured(self._keeper.tasks, now=self._keeper.clock.now())
        self._has_succeeded = True

    def _note(self, error: TidemillError) -> None:
        if isinstance(error, CredentialsError) and not self._has_succeeded:
            raise error  # every other step would wait for a server that knows us
        self._report["errors"] += 1
        self._trouble = self._trouble or error

    def _patience(self, until: float) -> float:
        longest = OPERATION_SEC if self._trouble is None else LESS_SEC
        return min(until - self._keeper.monotonic(), longest)
