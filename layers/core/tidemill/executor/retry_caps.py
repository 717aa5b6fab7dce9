"""How many retries this execution holds of each queue, and the permits for those of queues that bound them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Final

from pymongo.database import Database

from tidemill import control
from tidemill.errors import TidemillError
from tidemill.executor.report import Report
from tidemill.model import Malformed, Task
from tidemill.store.claims import Claim

FULL_SEC: Final = 0.5
"""How long retries of a queue are left alone after its limit was found reached."""


class RetryCaps:
    """Permits of *owner*: taken before retries are leased, given back once their outcomes are written.

    A permit that cannot be given back ends with the lease, at *until*.
    """

    def __init__(
        self,
        db: Database[Any],
        *,
        owner: str,
        until: Callable[[datetime], datetime],
        report: Report,
        monotonic: Callable[[], float],
    ) -> None:
        self._db = db
        self._owner = owner
        self._until = until
        self._report = report
        self._monotonic = monotonic
        self._held: Counter[str] = Counter()
        self._limits: dict[str, int] = {}
        self._full_since: dict[str, float] = {}

    def is_full(self, queue: str) -> bool:
        """Tell whether the limit of *queue* was found reached a moment ago."""
        since = self._full_since.get(queue)
        return since is not None and self._monotonic() - since < FULL_SEC

    def grant(self, queue: str, wanted: int, *, limit: int | None, now: datetime) -> int:
        """Return how many of *wanted* retries may be leased now.

        Raises:
            UnavailableError: MongoDB did not say.
        """
        if limit is None:
            self._limits.pop(queue, None)
            return wanted
        self._limits[queue] = limit
        granted = self._hold(queue, wanted, now=now)
        if granted < wanted:
            self._full_since[queue] = self._monotonic()
        return granted

    def took(self, queue: str, claim: Claim, *, granted: int, now: datetime) -> None:
        """Note the retries that *claim* brought of those *granted*, and give back the permits it did not need."""
        taken = granted if claim.error is not None else sum(_is_retry(one) for one in claim.tasks)
        taken = min(taken, granted)  # a malformed one may have been a fresh one
        self._held[queue] += taken
        if taken < granted:
            self._give_back(queue, now=now)

    def ended(self, tasks: Iterable[Task | Malformed], *, now: datetime) -> None:
        """Give back the permits of retries that this execution holds no longer."""
        ended = Counter(task.queue for task in tasks if isinstance(task, Task) and task.lane == "retry")
        for queue, count in ended.items():
            self._held[queue] = max(self._held[queue] - count, 0)
            self._full_since.pop(queue, None)
            self._give_back(queue, now=now)

    def _give_back(self, queue: str, *, now: datetime) -> None:
        if queue not in self._limits:
            return
        try:
            self._hold(queue, 0, now=now)
        except TidemillError:  # the next call, or the end of the lease, sets it right
            self._report["errors"] += 1

    def _hold(self, queue: str, wanted: int, *, now: datetime) -> int:
        return control.hold(
            self._db,
            f"retries:{queue}",
            owner=self._owner,
            held=self._held[queue],
            wanted=wanted,
            limit=self._limits[queue],
            until=self._until(now),
            now=now,
        )


def _is_retry(one: Task | Malformed) -> bool:
    return not isinstance(one, Task) or one.lane == "retry"
