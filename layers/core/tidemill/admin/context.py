"""Context of administration operations: database, clock, retry policy, and bounds of an answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pymongo.database import Database

from tidemill.client import Queue
from tidemill.clock import Clock
from tidemill.control import task_types
from tidemill.control.task_types import Directory
from tidemill.dead_letters import groups
from tidemill.dead_letters.export_format import PutObject
from tidemill.dead_letters.groups import GroupLimits
from tidemill.documents import DEAD_LETTERS
from tidemill.errors import TidemillError
from tidemill.model import RetryPolicy
from tidemill.policy.failures import truncate_text
from tidemill.store import counts, tasks
from tidemill.store.connection import Tasks, open_tasks
from tidemill.store.tasks import PageLimits

MAX_ANSWER_BYTES: Final = 5_000_000
_TEXT_LIMITS: Final = (2000, 500, 100, 40)
"""Limits to try, in this order: maximum characters of a text, and maximum elements of a list.

The lowest keeps times and usual ids whole.
"""

_UNCUT_FIELDS: Final = frozenset({"next"})
"""Fields that are never cut: a part of a cursor is useless."""


def bound_answer(answer: dict[str, Any]) -> dict[str, Any]:
    """Return *answer*; if it is too large, cut its texts and lists and set ``truncated``."""
    if _measure(answer) <= MAX_ANSWER_BYTES:
        return answer
    shorter = answer
    for limit in _TEXT_LIMITS:
        cut = {name: _cut(value, limit) for name, value in answer.items() if name not in _UNCUT_FIELDS}
        shorter = answer | cut | {"truncated": True}
        if _measure(shorter) <= MAX_ANSWER_BYTES:
            break
    return shorter


def _measure(document: object) -> int:
    return len(json.dumps(document))


def _cut(value: Any, limit: int) -> Any:  # noqa: ANN401 - JSON
    match value:
        case str():
            return truncate_text(value, limit)
        case list():
            # Keep the first element, which tells the start, and the newest ones.
            kept = value if len(value) <= limit else [value[0], *value[1 - limit :]]
            return [_cut(element, limit) for element in kept]
        case dict():
            return {name: _cut(field, limit) for name, field in value.items()}
        case _:
            return value


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminContext:
    """Context of an operation.

    Attributes:
        db: The database.
        clock: The clock of the database.
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
    group_limits: GroupLimits = groups.DEFAULT_LIMITS
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

    def read_registered_names(self) -> frozenset[str]:
        """Return the names of the registered functions, read now."""
        return task_types.list_registered_names(self.db)

    @property
    def queue(self) -> Queue:
        """The public API for applications."""
        return Queue(self.db, clock=self.clock)


def collect_warnings(look: Callable[[], list[str]], *, of: str) -> list[str]:
    """Return the warnings of *look*; if it fails, return the warning that the subject *of* is unknown."""
    try:
        return look()
    except TidemillError as error:
        return [describe_unknown(of, error)]


def describe_unknown(what: str, error: TidemillError) -> str:
    """Return the warning that *what* is unknown because of *error*."""
    return f"{what} is unknown: {error}"


def warn_no_executor(context: AdminContext) -> list[str]:
    """Warn if no executor ever registered in the database."""
    return collect_warnings(lambda: _warn_if_no_types(context), of="whether an executor ever was at work here")


def _warn_if_no_types(context: AdminContext) -> list[str]:
    if context.directory.has_types():
        return []
    return [f"no executor has ever registered its functions in {context.db.name}: is MONGODB_DATABASE right?"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """Number that may have a limit. If it was not counted to the end, its text ends in a plus sign.

    This is so above `COUNT_LIMIT`, and if it *may_be_more* than was read.
    """

    counted: int
    may_be_more: bool = False

    def __str__(self) -> str:
        is_complete = self.counted <= counts.COUNT_LIMIT and not self.may_be_more
        return str(self.counted) if is_complete else f"{min(self.counted, counts.COUNT_LIMIT)}+"

    def plain(self) -> int | str:
        """Return the number, or its text if it was not counted to the end."""
        return self.counted if str(self) == str(self.counted) else str(self)
