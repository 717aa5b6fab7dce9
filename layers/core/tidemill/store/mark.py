"""Tidemill's mark on a database, and the check for collections of another application.

An application's database may have a collection ``tasks`` before Tidemill is installed. Its documents must never be
swept, moved or removed, and its ``queues`` must not pause Tidemill's. The first start in a database therefore examines
the collections, and writes the mark only if they hold Tidemill's documents. Later starts find the mark.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from pymongo.database import Database

from tidemill.documents import (
    COLLECTIONS,
    CONTROL,
    DEAD_LETTERS,
    OCCURRENCES,
    QUEUE_STATS,
    QUEUES,
    STATUSES,
    TASK_TYPES,
    TASKS,
    is_text,
)
from tidemill.errors import ForeignCollectionError, NewerSchemaError
from tidemill.model import LANES
from tidemill.store.connection import translate_errors, with_lenient_decoding, with_majority

MARK_ID: Final = "tidemill"
"""``_id`` of the mark in ``control``."""

CALLERS_ID: Final = "callers"
"""``_id`` of the rights of API keys in ``control``; each other field is an array."""

SCHEMA_VERSION: Final = 1
"""Version of all documents. A database with the higher version of a later release is refused."""

MAX_EXAMINED_DOCUMENTS: Final = 100
"""Documents of each collection that are examined in a database without a mark."""

_BATCH_SIZE: Final = 10
_QUEUE_FIELDS: Final = frozenset(
    {"_id", "paused", "selection", "retry_share", "max_in_flight_retries", "pressure"}
    | {"undeclared", "declared_at", "updated_at"}
)


def require_mark(db: Database[Any], *, adopts: bool = False) -> None:
    """Find the mark in *db*, or write it if the collections are empty or hold only Tidemill's documents.

    With *adopts* the documents of another program (``payload``, ``status``, ``attempts``, ``next_retry_at``) count as
    tasks, because ``DEFAULT_TASK`` names their function. A database with the mark takes one command.

    Raises:
        ForeignCollectionError: A collection holds documents that are not Tidemill's. Nothing was changed.
        NewerSchemaError: A later release has changed the documents. Nothing was changed.
        UnavailableError: MongoDB did not answer; a repeat is safe.
    """
    if refuse_foreign(db, adopts=adopts):
        return
    mark = {"schema": SCHEMA_VERSION, "names": [db[name].name for name in COLLECTIONS]}
    with translate_errors(CONTROL):
        with_majority(db)[CONTROL].update_one({"_id": MARK_ID}, {"$setOnInsert": mark}, upsert=True)


def refuse_foreign(db: Database[Any], *, adopts: bool = False) -> bool:
    """Return True if *db* has the mark; raise the errors of `require_mark`. This function writes nothing."""
    with translate_errors(CONTROL):
        mark = with_lenient_decoding(db)[CONTROL].find_one({"_id": MARK_ID})
    if mark is not None and "schema" in mark:
        if isinstance(mark["schema"], int) and mark["schema"] <= SCHEMA_VERSION:
            return True
        raise NewerSchemaError(db.name)
    for name, is_ours in _PREDICATES.items():
        for document in _read_first_documents(db, name):
            may_be_adopted = name == TASKS and _is_adoptable(document)
            if not is_ours(document) and not (adopts and may_be_adopted):
                raise ForeignCollectionError(db[name].name, database=db.name, may_be_adopted=may_be_adopted)
    return False


def _read_first_documents(db: Database[Any], name: str) -> list[dict[str, Any]]:
    # A payload may have megabytes, and only its type is needed.
    stand_ins = {"payload": {"$type": "$payload"}, "result": "", "attempt_log": "", "error": ""}
    with translate_errors(name):
        stages: list[dict[str, Any]] = [
            {"$limit": MAX_EXAMINED_DOCUMENTS},
            *([{"$addFields": stand_ins}] if name == TASKS else []),
        ]
        return with_lenient_decoding(db)[name].aggregate(stages, batchSize=_BATCH_SIZE).to_list()


def _is_task(document: Mapping[str, Any]) -> bool:
    return (
        {"due_at", "attempts"} <= document.keys()
        and document.get("status") in STATUSES
        and document.get("lane") in LANES
        and is_text(document.get("queue"))
    )


def _is_adoptable(document: Mapping[str, Any]) -> bool:
    """Return True if *document* comes from another program and can be adopted as a task."""
    return (
        {"attempts", "next_retry_at"} <= document.keys()
        and document.get("status") in STATUSES
        and document.get("payload") == "object"
    )


def _is_dead_letter(document: Mapping[str, Any]) -> bool:
    return _has_compound_id(document, {"task", "redrives"}) and "dead_lettered_at" in document


def _is_queue(document: Mapping[str, Any]) -> bool:
    is_dated = "declared_at" in document or "updated_at" in document
    return is_text(document["_id"]) and is_dated and document.keys() <= _QUEUE_FIELDS


def _is_task_type(document: Mapping[str, Any]) -> bool:
    return is_text(document["_id"]) and {"http", "package", "release"} <= document.keys()


def _is_control(document: Mapping[str, Any]) -> bool:
    is_mark = document["_id"] == MARK_ID and "schema" in document  # written by another start meanwhile
    if document["_id"] == CALLERS_ID:
        return all(isinstance(rights, list) for name, rights in document.items() if name != "_id")
    return is_mark or (is_text(document["_id"]) and "holds" in document)


def _has_compound_id(document: Mapping[str, Any], fields: set[str]) -> bool:
    return isinstance(document["_id"], Mapping) and document["_id"].keys() == fields


_PREDICATES: Final[Mapping[str, Callable[[Mapping[str, Any]], bool]]] = {
    TASKS: _is_task,
    DEAD_LETTERS: _is_dead_letter,
    QUEUES: _is_queue,
    TASK_TYPES: _is_task_type,
    CONTROL: _is_control,
    QUEUE_STATS: lambda document: _has_compound_id(document, {"queue", "minute", "name"}),
    OCCURRENCES: lambda document: _has_compound_id(document, {"schedule", "at"}),
}
