"""What operations are carried out with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pymongo.database import Database

from tidemill import control
from tidemill.client import Queue
from tidemill.clock import Clock
from tidemill.control import Directory
from tidemill.documents import DEAD_LETTERS
from tidemill.export import Put
from tidemill.policies import RetryPolicy
from tidemill.store import Tasks, open_tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """The database, its time, and how tasks are retried that say nothing of it.

    ``is_deployed``: the policy is the deployment's for certain, not what another machine takes for it. ``put``: stores
    an object in the archive bucket; ``None`` where none is known here.
    """

    db: Database[Any]
    clock: Clock
    retry: RetryPolicy
    is_deployed: bool = False
    put: Put | None = None

    @property
    def tasks(self) -> Tasks:
        """The living tasks."""
        return open_tasks(self.db)

    @property
    def dead(self) -> Tasks:
        """The dead letters."""
        return open_tasks(self.db, DEAD_LETTERS)

    @property
    def directory(self) -> Directory:
        """What is declared, as it is now."""
        return Directory(self.db)

    def registered(self) -> frozenset[str]:
        """Return the names of the functions that executors have, as they are now."""
        return control.registered_names(self.db)

    @property
    def queue(self) -> Queue:
        """The tasks as applications see them."""
        return Queue(self.db, clock=self.clock)
