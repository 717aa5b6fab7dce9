"""Permits for retries of queues that bound how many are leased at once."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

from pymongo.database import Database

from tidemill import control
from tidemill.errors import TidemillError
from tidemill.executor.held import key
from tidemill.executor.report import Report
from tidemill.model import Malformed, Task
from tidemill.store.claims import Claim

FULL_SEC: Final = 0.5
"""How long retries of a queue are left alone after its limit was found reached."""

DOUBT_SEC: Final = 10.0
"""How long a stamp whose answer was lost may still take effect: as long as an operation may take."""

HOLD_GRACE: Final = timedelta(seconds=5)
"""What a permit outlives its lease by."""

_OneClaim: TypeAlias = tuple[bytes, str | None]


class RetryCaps:
    """Permits of one execution of *owner*: taken before retries are leased, given back once that has ended.

    What cannot be given back ends a little after the lease, whose end *lease_until* tells.
    """

    def __init__(
        self,
        db: Database[Any],
        *,
        owner: str,
        lease_until: Callable[[], datetime],
        report: Report,
        monotonic: Callable[[], float],
    ) -> None:
        self._db = db
        self._holder = control.Holder(owner=owner, execution=uuid.uuid4().hex)
        self._lease_until = lease_until
        self._report = report
        self._monotonic = monotonic
        self._limits: dict[str, int] = {}
        self._leased: defaultdict[str, set[_OneClaim]] = defaultdict(set)
        self._doubtful: list[tuple[float, str, int]] = []
        self._full_since: dict[str, float] = {}
        self._unsure: set[str] = set()
        self.failed = False

    def is_full(self, queue: str) -> bool:
        """Tell whether the limit of *queue* was found reached a moment ago."""
        since = self._full_since.get(queue)
        return since is not None and self._monotonic() - since < FULL_SEC

    def grant(self, queue: str, wanted: int, *, limit: int | None, now: datetime) -> int:
        """Return how many of *wanted* retries may be leased now; none where MongoDB does not say."""
        if limit is None:
            return wanted
        self._limits[queue] = limit
        try:
            granted = self._hold(queue, wanted, now=now)
        except TidemillError:
            self._report["errors"] += 1
            self.failed = True
            granted = 0
        if granted < wanted:
            self._full_since[queue] = self._monotonic()
        return granted

    def took(self, queue: str, claim: Claim, *, granted: int, limit: int | None, now: datetime) -> None:
        """Note the retries that *claim* brought of those *granted*, and give back the permits it did not need."""
        if limit is None or not granted:
            return
        retries = set(map(key, claim.retries))
        self._leased[queue].update(_one_claim(task) for task in claim.tasks if key(task.id) in retries)
        unused = granted - len(claim.retries)
        if claim.is_doubtful:
            self._doubtful.append((self._monotonic() + DOUBT_SEC, queue, unused))
        elif unused > 0:
            self._give_back(queue, now=now)

    def ended(self, tasks: Iterable[Task | Malformed], *, now: datetime) -> bool:
        """Give back the permits of claims that are over; true where there were any.

        Another claim of the same task keeps its own.
        """
        over = {_one_claim(task) for task in tasks} if any(self._leased.values()) else set()
        freed = [queue for queue, leased in self._leased.items() if leased & over]
        for queue in freed:
            self._leased[queue] -= over
            self._full_since.pop(queue, None)
            self._give_back(queue, now=now)
        return bool(freed)

    def renew(self, *, now: datetime) -> None:
        """Move the end of all permits to that of the leases."""
        for queue in [queue for queue, leased in self._leased.items() if leased]:
            self._give_back(queue, now=now)

    def close(self, *, now: datetime) -> None:
        """Give back what was doubtful, once nothing is leased that this execution does not know of."""
        queues = {queue for _, queue, _ in self._doubtful} | self._unsure
        self._doubtful.clear()
        for queue in queues:
            self._give_back(queue, now=now)

    def _give_back(self, queue: str, *, now: datetime) -> None:
        try:
            self._hold(queue, 0, now=now)
        except TidemillError:  # the next call, or the end of the lease, sets it right
            self._report["errors"] += 1

    def _hold(self, queue: str, wanted: int, *, now: datetime) -> int:
        self._doubtful = [one for one in self._doubtful if one[0] > self._monotonic()]
        self._unsure.add(queue)
        granted = control.hold(
            self._db,
            f"retries:{queue}",
            self._holder,
            held=len(self._leased[queue]) + sum(count for _, its, count in self._doubtful if its == queue),
            wanted=wanted,
            limit=self._limits[queue],
            until=self._lease_until() + HOLD_GRACE,
            now=now,
        )
        self._unsure.discard(queue)
        return granted


def _one_claim(task: Task | Malformed) -> _OneClaim:
    return key(task.id), task.lease.token if task.lease is not None else None
