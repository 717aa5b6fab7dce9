"""Context of administration operations: database, clock and retry policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pymongo.database import Database

from tidemill.client import Queue
from tidemill.clock import Clock
from tidemill.control import queues
from tidemill.control.task_types import Directory
from tidemill.dead_letters import queries
from tidemill.dead_letters.export_format import PutObject
from tidemill.dead_letters.queries import GroupLimits
from tidemill.documents import DEAD_LETTERS
from tidemill.errors import TidemillError
from tidemill.model import RetryPolicy
from tidemill.store import tasks
from tidemill.store.connection import Tasks, open_tasks
from tidemill.store.tasks import PageLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminContext:
    """Context of an operation.

    Attributes:
        retry: Retry policy of tasks and functions that have none of their own.
        is_deployed: *retry* is the policy of the deployment for certain, not an assumption of another machine.
        put: Stores an object in the archive bucket; ``None`` without a bucket.
        group_limits: Limits of the dead letters that are counted for their groups.
        page_limits: Limits of the tasks behind one page of a list.
    """

    db: Database[Any]
    clock: Clock
    retry: RetryPolicy
    is_deployed: bool = False
    put: PutObject | None = None
    group_limits: GroupLimits = queries.DEFAULT_LIMITS
    page_limits: PageLimits = tasks.DEFAULT_LIMITS

    @property
    def tasks(self) -> Tasks:
        """The collection of living tasks."""
        return open_tasks(self.db)

    @property
    def dead(self) -> Tasks:
        """The collection of dead letters."""
        return open_tasks(self.db, DEAD_LETTERS)

    @property
    def directory(self) -> Directory:
        """Registered functions, read now."""
        return Directory(self.db)

    @property
    def queue(self) -> Queue:
        """The public API for applications."""
        return Queue(self.db, clock=self.clock)


def collect_warnings(look: Callable[[], list[str]], *, of: str) -> tuple[str, ...]:
    """Return the warnings of *look*; if it fails, return the warning that the subject *of* is unknown."""
    try:
        return tuple(look())
    except TidemillError as error:
        return (describe_unknown(of, error),)


def describe_unknown(what: str, error: TidemillError) -> str:
    """Return the warning that *what* is unknown because of *error*."""
    return f"{what} is unknown: {error}"


def warn_no_executor(context: AdminContext) -> tuple[str, ...]:
    """Warn if no executor ever registered in the database."""
    warning = f"no executor has ever registered its functions in {context.db.name}: is MONGODB_DATABASE right?"
    return collect_warnings(
        lambda: [] if context.directory.read_declarations().types else [warning],
        of="whether an executor ever was at work here",
    )


def find_unknown_queue(queue: str | None, context: AdminContext) -> list[str]:
    """Return the warning that *queue* does not exist, or nothing if it does or is not given."""
    if queue is None or queue in (known := queues.list_queues(context.db)):
        return []
    return [queues.describe_unknown_queue(queue, known)]
