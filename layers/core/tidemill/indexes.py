"""Every index, once: named, hinted by the queries, made by ``reclaim`` while small and by ``tidemill indexes``."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from pymongo import ASCENDING, DESCENDING, IndexModel
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
"""The index that every collection has."""

SMALL: Final = 100_000
"""Up to so many tasks, making an index takes no longer than an invocation can wait."""

OCCURRENCE_KEPT: Final = timedelta(hours=48)
"""Longer than anything delivers an occurrence: EventBridge Scheduler for 24 hours, then Lambda for another 6."""

_UNAUTHORIZED: Final = 13
_INDEX_NOT_FOUND: Final = 27
_A_DATE: Final = {"$type": "date"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long done and cancelled *tasks* are kept, and *dead_letters* once they may be removed at all."""

    tasks: timedelta = timedelta(days=7)
    dead_letters: timedelta = timedelta(days=30)


KEPT: Final = Retention()
"""What holds where nobody says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """One index of *collection*.

    ``expires`` marks those whose entries MongoDB removes after the retention; with ``after`` it is after that time.
    """

    collection: str
    name: str
    keys: tuple[tuple[str, int], ...]
    partial: Mapping[str, Any] | None = None
    unique: bool = False
    expires: bool = False
    after: timedelta | None = None

    def model(self, retention: Retention) -> IndexModel:
        """Return what ``create_indexes`` takes."""
        options: dict[str, Any] = {"name": self.name}
        if self.partial is not None:
            options["partialFilterExpression"] = self.partial
        if self.unique:
            options["unique"] = True
        if self.expires:
            options["expireAfterSeconds"] = self.seconds(retention)
        return IndexModel(list(self.keys), **options)

    def is_as_made(self, made: Mapping[str, Any]) -> bool:
        """Tell whether *made*, as ``index_information`` has it, is this index, but for its retention."""
        return (
            tuple((name, order) for name, order in made["key"]) == self.keys
            and made.get("partialFilterExpression") == self.partial
            and bool(made.get("unique")) == self.unique
        )

    def seconds(self, retention: Retention) -> int:
        """Return how long its entries are kept."""
        kept = retention.dead_letters if self.collection == DEAD_LETTERS else retention.tasks
        return int((kept if self.after is None else self.after).total_seconds())


INDEXES: Final = (
    Index(
        collection=TASKS,
        name=CLAIM,
        keys=(
            ("status", ASCENDING),
            ("queue", ASCENDING),
            ("lane", ASCENDING),
            ("priority", DESCENDING),
            ("due_at", ASCENDING),
            ("_id", ASCENDING),
        ),
        partial={"status": "pending"},
    ),
    Index(
        collection=TASKS,
        name=DELAYED,
        keys=(("next_retry_at", ASCENDING),),
        partial={"status": "pending", "next_retry_at": _A_DATE},
    ),
    Index(
        collection=TASKS,
        name=LEASES,
        keys=(("lease.expires_at", ASCENDING),),
        partial={"status": "processing"},
    ),
    Index(collection=TASKS, name=OWNERS, keys=(("lease.owner", ASCENDING),), partial={"status": "processing"}),
    Index(
        collection=TASKS,
        name=EXPIRY,
        keys=(("expires_at", ASCENDING),),
        partial={"status": "pending", "expires_at": _A_DATE},
    ),
    Index(collection=TASKS, name=FAILED, keys=(("finished_at", ASCENDING),), partial={"status": "failed"}),
    Index(
        collection=TASKS,
        name=KEY,
        keys=(("idempotency_key", ASCENDING),),
        partial={"idempotency_key": {"$gt": ""}},
        unique=True,
    ),
    Index(
        collection=TASKS,
        name=RETENTION,
        keys=(("retain_from", ASCENDING),),
        partial={"status": {"$lte": "done"}},  # done and cancelled: what somebody makes pending again is not removed
        expires=True,
    ),
    Index(
        collection=DEAD_LETTERS,
        name=EXPORT,
        keys=(("archived_at", ASCENDING), ("retain_from", ASCENDING), ("dead_lettered_at", ASCENDING)),
    ),
    Index(
        collection=DEAD_LETTERS,
        name=GROUPS,
        keys=(
            ("fingerprint", ASCENDING),
            ("dead_lettered_at", ASCENDING),
            ("_id", ASCENDING),
            ("redriven_at", ASCENDING),
        ),
    ),
    Index(collection=DEAD_LETTERS, name=RECENT, keys=(("dead_lettered_at", ASCENDING), ("_id", ASCENDING))),
    Index(
        collection=DEAD_LETTERS,
        name=REDRIVES,
        keys=(("redrive_started_at", ASCENDING),),
        partial={"redrive_started_at": _A_DATE},
    ),
    Index(
        collection=DEAD_LETTERS,
        name=RETENTION,
        keys=(("retain_from", ASCENDING),),
        partial={"redrive_started_at": None},  # one that is on its way back is the only copy
        expires=True,
    ),
    Index(collection=QUEUE_STATS, name=RETENTION, keys=(("minute", ASCENDING),), expires=True),
    Index(
        collection=OCCURRENCES,
        name=RETENTION,
        keys=(("created_at", ASCENDING),),
        expires=True,
        after=OCCURRENCE_KEPT,
    ),
)
COLLECTIONS: Final = (TASKS, DEAD_LETTERS, QUEUE_STATS, OCCURRENCES)


def missing(db: Database[Any]) -> tuple[Index, ...]:
    """Return the indexes that *db* lacks, or has as an earlier release made them."""
    made = _made(db)
    return tuple(index for index in INDEXES if not _is_there(index, made))


def maintain(db: Database[Any], *, retention: Retention) -> tuple[Index, ...]:
    """Make what is missing while its collection is small, and return what is left for `create` to make."""
    lacking = missing(db)
    large = {name for name in {one.collection for one in lacking} if db[name].estimated_document_count() > SMALL}
    left = tuple(one for one in lacking if one.collection in large)
    create(db, tuple(one for one in INDEXES if one not in left), retention=retention)
    # As an earlier release made them: their time holds.
    _change_retentions(db, [one for one in left if one.name in _made(db)[one.collection]], retention)
    return left


def create(db: Database[Any], indexes: tuple[Index, ...] = INDEXES, *, retention: Retention = KEPT) -> None:
    """Make *indexes* where they are missing and give the expiring ones their *retention*.

    One that an earlier release made otherwise is replaced; a shorter retention removes documents at once. Safe to
    repeat and to stop half-way. May take minutes on millions of tasks; nothing is blocked meanwhile, but what needs an
    index that is replaced fails until it is there. What cannot be made keeps nothing else from being made or changed.

    Raises:
        RetentionError: All is there, but the user may not change a retention.
        OperationFailure: The database refuses an index.
    """
    trouble: OperationFailure | None = None
    made = _made(db)
    lacking = [index for index in indexes if not _is_there(index, made)]
    for collection in COLLECTIONS:
        ours = [index for index in lacking if index.collection == collection]
        try:
            for index in ours:
                if index.name in made[collection]:
                    _drop(db[collection], index.name)
            _make(db[collection], [index.model(retention) for index in ours])
        except OperationFailure as error:
            trouble = trouble or error
    try:
        _change_retentions(db, [index for index in indexes if index not in lacking], retention)
    finally:
        if trouble is not None:
            raise trouble


def _made(db: Database[Any]) -> dict[str, Mapping[str, Any]]:
    return {name: db[name].index_information() for name in COLLECTIONS}


def _is_there(index: Index, made: Mapping[str, Mapping[str, Any]]) -> bool:
    return index.name in made[index.collection] and index.is_as_made(made[index.collection][index.name])


def _drop(collection: Collection[Any], name: str) -> None:
    try:
        collection.drop_index(name)
    except OperationFailure as error:
        if error.code != _INDEX_NOT_FOUND:  # somebody else was quicker
            raise


def _make(collection: Collection[Any], new: list[IndexModel]) -> None:
    if not new:
        return
    try:
        collection.create_indexes(new)
    except OperationFailure as together:
        # One that cannot be made, for keys that are taken twice perhaps, must not keep the others away.
        for index in new:
            with contextlib.suppress(OperationFailure):
                collection.create_indexes([index])
        raise together from None


def _change_retentions(db: Database[Any], indexes: Sequence[Index], retention: Retention) -> None:
    """Give those of *indexes* that expire their *retention*.

    Raises:
        RetentionError: The database does not let its user change one; the others are changed.
    """
    made = _made(db)
    refused: OperationFailure | None = None
    for index in indexes:
        seconds = index.seconds(retention)
        if not index.expires or made[index.collection][index.name].get("expireAfterSeconds") == seconds:
            continue
        try:
            db.command("collMod", index.collection, index={"name": index.name, "expireAfterSeconds": seconds})
        except OperationFailure as error:
            if error.code != _UNAUTHORIZED:
                raise
            refused = error
    if refused is not None:
        raise RetentionError from None
