"""What an executor does that ran dry: wait for more, try again after trouble, or leave."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from tidemill.errors import TidemillError
from tidemill.executor.claimer import Claimer
from tidemill.executor.life import Life
from tidemill.executor.linger import POLL_SEC, lingers_until
from tidemill.executor.runtime import Order, Runtime
from tidemill.store import lookups

FIRST_PAUSE_SEC: Final = 0.02
LAST_PAUSE_SEC: Final = 0.5
MAX_INTERRUPTIONS: Final = 12
"""So many stamps in a row may fail: enough for a fail-over, and to single out one bad document in a batch."""

MANY: Final = 100
"""So many delayed tasks are looked through for one of the queues and lanes that are served."""


def pause_after(in_vain: int, *, draw: float) -> float:
    """Return how many seconds to pause after so many claims in a row in vain: longer each time, up to a limit.

    *draw* is a number in [0, 1), so that those who were in vain together do not come back together.
    """
    longest = min(FIRST_PAUSE_SEC * 2.0 ** min(in_vain - 1, MAX_INTERRUPTIONS), LAST_PAUSE_SEC)
    return longest * (1 + draw) / 2


class Waiting:
    """Decides for one execution how long it waits, and does."""

    def __init__(self, runtime: Runtime, order: Order, life: Life) -> None:
        self._runtime = runtime
        self._order = order
        self._life = life
        self._started = runtime.monotonic()
        self._worked_at: float | None = None
        self._next_due: float | None = None
        self._knows_next = False

    def worked(self) -> None:
        """Note that there was something to do."""
        self._worked_at = self._runtime.monotonic()
        self._knows_next = False

    def waits(self, claimer: Claimer) -> bool:
        """Pause before the next look; false where there is nothing to wait for."""
        if self._life.persists:
            self._life.pause(LAST_PAUSE_SEC if claimer.trouble else POLL_SEC)
            return True
        if not self._runtime.settings.linger or claimer.trouble is not None or claimer.interrupted:
            return False
        now = self._runtime.monotonic()
        knew = self._knows_next
        left = self._until(claimer) - now
        if left <= 0 and knew:  # it came and went: others may have had it, or the clock was set
            self._knows_next = False
            left = self._until(claimer) - now
        if left <= 0:
            return False
        soon = pause_after(claimer.beaten, draw=self._runtime.rng.random()) if claimer.beaten else POLL_SEC
        self._life.pause(min(left, POLL_SEC, soon))
        return True

    def tries_again(self, claimer: Claimer) -> bool:
        """Pause after a claim that failed or came too late, longer each time; false where none did or too many."""
        in_vain = max(claimer.interrupted, claimer.beaten)
        if not 0 < in_vain <= MAX_INTERRUPTIONS or not self._life.may_claim():
            return False
        self._life.pause(pause_after(in_vain, draw=self._runtime.rng.random()))
        return True

    def _until(self, claimer: Claimer) -> float:
        if claimer.has_pending and not self._knows_next:
            self._next_due = self._look_ahead()
            self._knows_next = True
        return lingers_until(
            started=self._started,
            worked_at=self._worked_at,
            summoned=self._order.source != "tick",
            next_due=self._next_due,
            longest=self._runtime.settings.linger.total_seconds(),
        )

    def _look_ahead(self) -> float | None:
        """Return when, on the monotonic clock, the next delayed task is due that this execution may run."""
        now, monotonic = self._runtime.clock.now(), self._runtime.monotonic()
        longest = self._runtime.settings.linger
        try:
            found = lookups.next_due(self._runtime.tasks, now=now, until=now + longest, limit=MANY)
            due = [at for at, queue, lane in found if self._serves(queue, lane)]
        except TidemillError:
            return None
        return monotonic + (due[0] - now) / timedelta(seconds=1) if due else None

    def _serves(self, queue: str, lane: str) -> bool:
        is_asked = queue in self._order.queues or not self._order.queues
        return is_asked and lane in self._order.lanes and not self._runtime.serving(queue, self._order).paused
