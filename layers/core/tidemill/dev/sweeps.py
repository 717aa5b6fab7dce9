"""Sweeps of `tidemill dev`: take back, expire and adopt tasks, and move failed ones to the dead letters."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Final

from tidemill.bootstrap import Deployment
from tidemill.clock import read_monotonic
from tidemill.dead_letters.archive import archive
from tidemill.errors import TidemillError
from tidemill.reclaim import reclaim
from tidemill.store import recovery
from tidemill.store.connection import open_tasks

INTERVAL_SEC: Final = 5.0
"""Time between two sweeps."""

SWEEP_TIMEOUT_SEC: Final = 50.0
LAST_SWEEP_TIMEOUT_SEC: Final = 2.0
"""Limit of the wait for a running sweep at the end."""

OWNER_PREFIX: Final = "dev-"
"""Beginning of the names of all executors of `tidemill dev`."""

_SHOWN_COUNTS: Final = {
    "reclaimed": "taken back from a dead executor",
    "failed": "failed with a dead executor",
    "cancelled": "cancelled",
    "expired": "expired",
    "adopted": "adopted",
    "quarantined": "quarantined",
    "moved": "moved to the dead letters",
}


class Sweeps:
    """Sweeps at an interval, on a thread of their own. *say* gets a line for each sweep that did something."""

    def __init__(
        self, deployment: Deployment, *, say: Callable[[str], object], interval_sec: float = INTERVAL_SEC
    ) -> None:
        self._deployment = deployment
        self._say = say
        self._interval_sec = interval_sec
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._error = ""

    def prepare(self) -> None:
        """Create the missing indexes, and sweep once.

        Raises:
            TidemillError: MongoDB failed, or the collections belong to another program.
        """
        for sentence in self._deployment.create_missing_indexes():
            self._say(f"warning: an index is missing: {sentence}")
        self._sweep(None)

    def take_back_all(self) -> None:
        """Take back the tasks of all executors of earlier starts, of which none runs.

        Raises:
            TidemillError: MongoDB failed.
        """
        for owner in recovery.list_owners(open_tasks(self._deployment.database("reclaim"))):
            if owner.startswith(OWNER_PREFIX):
                self._sweep(owner)

    def take_back(self, owner: str) -> None:
        """Take back the tasks of *owner*, which is dead. An error is printed; the leases then end by themselves."""
        try:
            self._sweep(owner)
        except TidemillError as error:
            self._say(f"cannot take back the tasks of a dead executor now: {error}")

    @contextmanager
    def run(self) -> Iterator[None]:
        """Sweep until the block ends."""
        thread = threading.Thread(target=self._sweep_repeatedly, name="tidemill-sweeps", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            thread.join(LAST_SWEEP_TIMEOUT_SEC)

    def _sweep_repeatedly(self) -> None:
        while not self._stopping.wait(self._interval_sec):
            error = ""
            try:
                self._sweep(None)
            except TidemillError as problem:
                error = str(problem)
            if error != self._error and not self._stopping.is_set():
                self._say(f"sweep failed: {error}; trying again" if error else "sweeps work again")
            self._error = error

    def _sweep(self, dead_owner: str | None) -> None:
        with self._lock:
            until = read_monotonic() + SWEEP_TIMEOUT_SEC
            counts = reclaim(self._deployment.reclaim_context, until=until, dead_owner=dead_owner)
            counts |= asdict(archive(self._deployment.archive_context, until=until))
        done = [f"{counts[name]} {label}" for name, label in _SHOWN_COUNTS.items() if counts.get(name)]
        if done and not self._stopping.is_set():
            self._say(f"sweep: {', '.join(done)}")
