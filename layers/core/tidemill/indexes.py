"""Indexes of all collections. Queries hint them by name.

``reclaim`` makes missing indexes of small collections; ``tidemill indexes`` makes them at any size.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from pymongo import IndexModel
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.errors import OperationFailure

from tidemill.documents import DEAD_LETTERS, OCCURRENCES, QUEUE_STATS, TASKS
from tidemill.errors import RetentionError

CLAIM: Final = "claim"
DELAYED: Final = "delayed"
LEASES: Final = "leases"
OWNERS: Final = "owners"
EXPIRY: Final = "expiry"
FAILED: Final = "failed"
KEY: Final = "key"
RETENTION: Final = "retention"
EXPORT: Final = "export"
GROUPS: Final = "groups"
RECENT: Final = "recent"
REDRIVES: Final = "redrives"
BY_ID: Final = "_id_"
"""Name of the index that each collection has."""

MAX_DOCUMENTS_MADE_AT_START: Final = 100_000
"""Largest number of documents for which an invocation can wait until an index is made."""

OCCURRENCE_RETENTION: Final = timedelta(days=15)
"""Longer than any delivery of an occurrence: EventBridge Scheduler retries for a day, SQS keeps it up to 14 days."""

_UNAUTHORIZED: Final = 13
_INDEX_NOT_FOUND: Final = 27
_IS_DATE: Final = {"$type": "date"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Times to keep done and cancelled *tasks*, and *dead_letters* from the moment they may be removed."""

    tasks: timedelta = timedelta(days=7)
    dead_letters: timedelta = timedelta(days=30)


DEFAULT_RETENTION: Final = Retention()
"""Default retention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """Index of a collection, over *keys*: 1 is ascending, -1 descending.

    With ``expires`` MongoDB removes documents after the retention, or after the time ``after``.
    """

    collection: str
    name: str
    keys: Mapping[str, int]
    partial: Mapping[str, Any] | None = None
    unique: bool = False
    expires: bool = False
    after: timedelta | None = None

    def model(self, retention: Retention) -> IndexModel:
        """Return the argument of ``create_indexes``."""
        options: dict[str, Any] = {"name": self.name}
        if self.partial is not None:
            options["partialFilterExpression"] = self.partial
        if self.unique:
            options["unique"] = True
        if self.expires:
            options["expireAfterSeconds"] = self.seconds(retention)
        return IndexModel(self.keys, **options)

    def seconds(self, retention: Retention) -> int:
        """Return the seconds after which MongoDB removes a document."""
        default = retention.dead_letters if self.collection == DEAD_LETTERS else retention.tasks
        return int((default if self.after is None else self.after).total_seconds())


INDEXES: Final = (
    Index(
        collection=TASKS,
        name=CLAIM,
        keys={"status": 1, "queue": 1, "lane": 1, "priority": -1, "due_at": 1, "_id": 1},
        partial={"status": "pending"},
    ),
    Index(
        collection=TASKS,
        name=DELAYED,
        keys={"next_retry_at": 1},
        partial={"status": "pending", "next_retry_at": _IS_DATE},
    ),
    Index(collection=TASKS, name=LEASES, keys={"lease.expires_at": 1}, partial={"status": "processing"}),
    Index(collection=TASKS, name=OWNERS, keys={"lease.owner": 1}, partial={"status": "processing"}),
    Index(collection=TASKS, name=EXPIRY, keys={"expires_at": 1}, partial={"status": "pending", "expires_at": _IS_DATE}),
    Index(collection=TASKS, name=FAILED, keys={"finished_at": 1}, partial={"status": "failed"}),
    Index(
        collection=TASKS,
        name=KEY,
        keys={"idempotency_key": 1},
        partial={"idempotency_key": {"$gt": ""}},
        unique=True,
    ),
    Index(
        collection=TASKS,
        name=RETENTION,
        keys={"retain_from": 1},
        partial={"status": {"$lte": "done"}},  # done and cancelled: a task made pending again stays
        expires=True,
    ),
    Index(collection=DEAD_LETTERS, name=EXPORT, keys={"archived_at": 1, "retain_from": 1, "dead_lettered_at": 1}),
    Index(
        collection=DEAD_LETTERS,
        name=GROUPS,
        keys={"fingerprint": 1, "dead_lettered_at": 1, "_id": 1, "redriven_at": 1},
    ),
    Index(collection=DEAD_LETTERS, name=RECENT, keys={"dead_lettered_at": 1, "_id": 1}),
    Index(
        collection=DEAD_LETTERS,
        name=REDRIVES,
        keys={"redrive_started_at": 1},
        partial={"redrive_started_at": _IS_DATE},
    ),
    Index(
        collection=DEAD_LETTERS,
        name=RETENTION,
        keys={"retain_from": 1},
        partial={"redrive_started_at": None},  # during a redrive the dead letter may be the only copy
        expires=True,
    ),
    Index(collection=QUEUE_STATS, name=RETENTION, keys={"minute": 1}, expires=True),
    Index(collection=OCCURRENCES, name=RETENTION, keys={"created_at": 1}, expires=True, after=OCCURRENCE_RETENTION),
)
COLLECTIONS: Final = (TASKS, DEAD_LETTERS, QUEUE_STATS, OCCURRENCES)


def find_missing(db: Database[Any]) -> tuple[Index, ...]:
    """Return the indexes that *db* lacks, or that an earlier release made differently."""
    made = _read_indexes(db)
    return tuple(index for index in INDEXES if not _is_there(index, made))


def read_task_retention(db: Database[Any]) -> timedelta:
    """Return the time for which MongoDB keeps done tasks in *db*, whatever the settings of this process say.

    Without the index that removes them it is the longest time there is.
    """
    seconds = db[TASKS].index_information().get(RETENTION, {}).get("expireAfterSeconds")
    return timedelta(seconds=seconds) if isinstance(seconds, int) else timedelta.max


def maintain(db: Database[Any], *, retention: Retention) -> tuple[Index, ...]:
    """Make the missing indexes of small collections; return those of large collections, left for `create`."""
    lacking = find_missing(db)
    names = {index.collection for index in lacking}
    large = {name for name in names if db[name].estimated_document_count() > MAX_DOCUMENTS_MADE_AT_START}
    left = tuple(index for index in lacking if index.collection in large)
    create(db, tuple(index for index in INDEXES if index not in left), retention=retention)
    # An index of an earlier release gets the retention, too.
    _change_retentions(db, [index for index in left if index.name in _read_indexes(db)[index.collection]], retention)
    return left


def create(
    db: Database[Any], indexes: tuple[Index, ...] = INDEXES, *, retention: Retention = DEFAULT_RETENTION
) -> None:
    """Make the missing indexes among *indexes*, and set the *retention* of expiring indexes.

    An index that an earlier release made differently is replaced. A shorter retention removes documents at once. The
    call may be repeated, and stopped half-way.

    It may take minutes for millions of tasks. It blocks no other command, but queries that hint a replaced index fail
    until it exists again. An index that cannot be made does not stop the rest.

    Raises:
        RetentionError: All indexes exist, but the user may not change a retention.
        OperationFailure: The database refuses an index.
    """
    refused: OperationFailure | None = None
    made = _read_indexes(db)
    lacking = [index for index in indexes if not _is_there(index, made)]
    for collection in COLLECTIONS:
        ours = [index for index in lacking if index.collection == collection]
        try:
            for index in ours:
                if index.name in made[collection]:
                    _drop_index(db[collection], index.name)
            _create_indexes(db[collection], [index.model(retention) for index in ours])
        except OperationFailure as error:
            refused = refused or error
    try:
        _change_retentions(db, [index for index in indexes if index not in lacking], retention)
    finally:
        if refused is not None:
            raise refused


def _read_indexes(db: Database[Any]) -> dict[str, Mapping[str, Any]]:
    return {name: db[name].index_information() for name in COLLECTIONS}


def _is_there(index: Index, made: Mapping[str, Mapping[str, Any]]) -> bool:
    """Return True if *made* has the definition of *index*. The retention may differ."""
    found = made[index.collection].get(index.name)
    return (
        found is not None
        and list(found["key"]) == list(index.keys.items())
        and found.get("partialFilterExpression") == index.partial
        and bool(found.get("unique")) == index.unique
    )


def _drop_index(collection: Collection[Any], name: str) -> None:
    try:
        collection.drop_index(name)
    except OperationFailure as error:
        if error.code != _INDEX_NOT_FOUND:  # not found: another process dropped the index first
            raise


def _create_indexes(collection: Collection[Any], new: list[IndexModel]) -> None:
    if not new:
        return
    try:
        collection.create_indexes(new)
    except OperationFailure as error:
        # An index that cannot be made, perhaps because of duplicate keys, must not stop the rest.
        for index in new:
            with contextlib.suppress(OperationFailure):
                collection.create_indexes([index])
        raise error from None


def _change_retentions(db: Database[Any], indexes: Sequence[Index], retention: Retention) -> None:
    """Set the *retention* of the expiring indexes among *indexes*.

    Raises:
        RetentionError: The user may not change a retention; all permitted changes were made.
    """
    made = _read_indexes(db)
    refused: OperationFailure | None = None
    for index in indexes:
        seconds = index.seconds(retention)
        if not index.expires or made[index.collection][index.name].get("expireAfterSeconds") == seconds:
            continue
        try:
            db.command("collMod", db[index.collection].name, index={"name": index.name, "expireAfterSeconds": seconds})
        except OperationFailure as error:
            if error.code != _UNAUTHORIZED:
                raise
            refused = error
    if refused is not None:
        raise RetentionError from None
