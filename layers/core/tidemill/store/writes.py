"""Ways to write: a changed document that is returned, bulks of guarded updates, inserts of tasks, transactions.

In a bulk a refused update does not stop the other updates. A repeated insert of the same task is no error.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from contextvars import Context
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from pymongo import ReadPreference, ReturnDocument, UpdateOne, WriteConcern
from pymongo.client_session import ClientSession
from pymongo.database import Database
from pymongo.errors import BulkWriteError, ConnectionFailure, DuplicateKeyError, PyMongoError
from pymongo.read_concern import ReadConcern

from tidemill import indexes
from tidemill.documents import RAW_OPTIONS, TASKS, decode
from tidemill.errors import RefusedError, UnavailableError
from tidemill.store.connection import (
    Tasks,
    is_name_refusal,
    keep_driver_errors,
    limit_time,
    run_server_command,
    translate_errors,
)

DUPLICATE_KEY_CODE = 11000

TRANSACTION_TIMEOUT_SEC: Final = 30.0
"""Seconds in which a transaction is repeated, unless its caller sets a limit."""

KILL_SESSION_TIMEOUT_SEC: Final = 0.5
"""Seconds to end the session of a failed transaction."""

_T = TypeVar("_T")


class TakenIdError(Exception):
    """A stored task has the id of the new task. The id follows from the request, so the request was stored before.

    The enqueue code catches this error and returns the stored task.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteCounts:
    """Numbers of updates that took effect and that the server refuses. The other updates matched nothing."""

    changed: int = 0
    refused: int = 0


def find_and_modify(
    tasks: Tasks,
    where: Mapping[str, Any],
    change: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    *,
    upsert: bool = False,
    hint: str | None = None,
    session: ClientSession | None = None,
) -> RawBSONDocument | None:
    """Change the document that *where* matches and return the new document, or ``None`` if nothing matches."""
    document: RawBSONDocument | None = tasks.with_options(codec_options=_ANSWERS).find_one_and_update(
        where, change, upsert=upsert, return_document=ReturnDocument.AFTER, hint=hint, session=session
    )
    return document


def write_each(tasks: Tasks, updates: Sequence[UpdateOne]) -> WriteCounts:
    """Write *updates* in one bulk.

    Raises:
        UnavailableError: Some, all or none were written.
    """
    if not updates:
        return WriteCounts()
    with translate_errors():
        try:
            return WriteCounts(changed=tasks.bulk_write(updates, ordered=False).matched_count)
        except BulkWriteError as error:
            return WriteCounts(refused=len(find_refused_writes(error)), changed=error.details["nMatched"])


def insert_each(tasks: Tasks, documents: Sequence[Mapping[str, Any]], *, collection: str = TASKS) -> dict[int, int]:
    """Insert *documents* in one bulk. Return the server's error codes of refused documents, by index.

    Raises:
        UnavailableError: Some, all or none were inserted.
    """
    with translate_errors(collection):
        try:
            tasks.insert_many(documents, ordered=False)
        except BulkWriteError as error:
            return {refusal["index"]: refusal["code"] for refusal in find_refused_writes(error)}
    return {}


def find_refused_writes(error: BulkWriteError) -> list[dict[str, Any]]:
    """Return the server's refusals of single writes, each with its ``index`` and ``code``.

    Raises:
        BulkWriteError: *error* itself: no write was refused, or no majority has confirmed the other writes, which may
            be rolled back.
    """
    details = error.details or {}
    refused: list[dict[str, Any]] = details.get("writeErrors", [])
    if not refused or details.get("writeConcernErrors"):
        raise error
    return refused


def insert_task(tasks: Tasks, document: dict[str, Any], *, session: ClientSession | None = None) -> None:
    """Insert *document* with its id. A second try makes a lost reply no error.

    With *session* the driver's own errors are raised: their labels let the caller's transaction be repeated.

    Raises:
        TakenIdError: A task has this id.
        UnavailableError: The effect is unknown.
    """
    if session is not None:
        tasks.insert_one(document, session=session)
        return
    with translate_errors():
        try:
            tasks.insert_one(document)
        except DuplicateKeyError as error:
            _raise_if_id_is_taken(error)
            raise
        except ConnectionFailure:
            insert_in_order(tasks, [document])  # succeeds if the first try took effect, once a majority has it


def insert_once(tasks: Tasks, document: dict[str, Any], *, session: ClientSession | None = None) -> RawBSONDocument:
    """Insert *document* unless a task has its ``idempotency_key``; return the stored task with that key.

    It is one upsert that writes only on insert. A taken key raises no error, so it aborts no transaction of the caller.
    If two upserts of a key collide, the server repeats one of them. With *session* the driver's own errors are raised.

    Raises:
        TakenIdError: The key is free, and the task that had it before has this id.
        UnavailableError: The effect is unknown.
    """
    if session is not None:
        with keep_driver_errors():
            return _upsert(tasks, document, session)
    try:
        with translate_errors():
            try:
                return _upsert(tasks, document, None)
            except ConnectionFailure:  # after a lost reply the second try finds the key
                return _upsert(tasks, document, None)
    except RefusedError as error:
        if not is_name_refusal(error):
            raise
    return _insert_and_read(tasks, document)


def insert_all(tasks: Tasks, documents: Sequence[Mapping[str, Any]], *, session: ClientSession) -> None:
    """Insert *documents* in a transaction; raise the driver's own errors.

    Raises:
        TakenIdError: A task has one of the ids.
    """
    if documents:
        with keep_driver_errors():
            try:
                tasks.insert_many(documents, session=session)
            except BulkWriteError as error:
                _raise_if_id_is_taken(error)
                raise


def insert_in_order(tasks: Tasks, documents: Sequence[Mapping[str, Any]]) -> int:
    """Insert *documents* in order up to the first taken key, and return the number of stored documents.

    A document whose id is stored already counts: an earlier call with a lost reply inserted it.

    Raises:
        UnavailableError: Some of the first documents may be stored, the rest are not.
    """
    if not documents:
        return 0
    with translate_errors():
        try:
            _insert(tasks, documents)
        except BulkWriteError as error:
            refusal, *_ = find_refused_writes(error)
            if refusal["code"] != DUPLICATE_KEY_CODE:
                raise
            index = int(refusal["index"])
        else:
            return len(documents)
        ids = [document["_id"] for document in documents]
        stored = {raw["_id"] for raw in tasks.find({"_id": {"$in": ids}}, {"_id": 1}, batch_size=len(ids))}
    if documents[index]["_id"] not in stored:
        return index
    return len(stored) + insert_in_order(tasks, [document for document in documents if document["_id"] not in stored])


def find_key_holders(
    tasks: Tasks, keys: Collection[str], *, session: ClientSession | None = None
) -> dict[str, dict[str, Any]]:
    """Return ``_id``, ``status`` and ``request_hash`` of the tasks that have one of *keys*, by key."""
    where = {"idempotency_key": {"$gt": "", "$in": list(keys)}}
    fields = {"idempotency_key": 1, "request_hash": 1, "status": 1}
    with keep_driver_errors():
        documents = [
            decode(raw)
            for raw in tasks.find(where, fields, hint=indexes.KEY, batch_size=len(keys) + 1, session=session)
        ]
    return {document["idempotency_key"]: document for document in documents}


def has_transactions(db: Database[Any]) -> bool:
    """Return True if the server takes transactions. All servers do, except for a standalone server."""
    server_types = _read_server_types(db)
    if "Unknown" in server_types or not server_types:
        with translate_errors():
            run_server_command(db, "ping")
        server_types = _read_server_types(db)
    return "Standalone" not in server_types


def run_in_transaction(
    db: Database[Any], work: Callable[[ClientSession], _T], *, timeout_sec: float = TRANSACTION_TIMEOUT_SEC
) -> _T:
    """Run *work* in a transaction and return its result. A majority commits all of its writes, or none.

    *work* is called again after a conflict with another transaction, so it must keep no state. It must raise the
    driver's errors unchanged. It ends after *timeout_sec*, or at the caller's own ``pymongo.timeout``.

    Raises:
        UnavailableError: The effect is unknown: all or none of it was written.
    """
    with translate_errors(), limit_time(timeout_sec), db.client.start_session() as session:
        try:
            return session.with_transaction(
                work,
                read_concern=ReadConcern("snapshot"),
                write_concern=WriteConcern("majority"),
                read_preference=ReadPreference.PRIMARY,
            )
        except PyMongoError:
            Context().run(_kill_session, db, session)  # a context without the deadline, which may have passed
            raise


class _Answer(RawBSONDocument):
    """Part of a server's answer, to which the driver can add.

    If the primary changes before a majority has confirmed a write, the driver adds that the command can be repeated.
    It calls ``update``, which raw documents lack.
    """

    __slots__ = ("_added",)

    def __init__(self, data: bytes, options: CodecOptions[RawBSONDocument] | None = None) -> None:
        super().__init__(data, options)
        self._added: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - a mapping's
        return self._added[name] if name in self._added else super().__getitem__(name)

    def update(self, more: Mapping[str, Any]) -> None:
        self._added.update(more)


_ANSWERS: Final = RAW_OPTIONS.with_options(document_class=_Answer)


def _raise_if_id_is_taken(error: BulkWriteError | DuplicateKeyError) -> None:
    details = error.details or {}
    refused = details.get("writeErrors", [details])
    if any(list(refusal.get("keyPattern", ())) == ["_id"] for refusal in refused):
        raise TakenIdError from None


def _insert(tasks: Tasks, documents: Sequence[Mapping[str, Any]]) -> None:
    try:
        tasks.insert_many(documents)
    except ConnectionFailure:
        tasks.insert_many(documents)


def _insert_and_read(tasks: Tasks, document: dict[str, Any]) -> RawBSONDocument:
    where = {"idempotency_key": {"$gt": "", "$eq": document["idempotency_key"]}}
    with translate_errors():
        duplicate: DuplicateKeyError | None = None
        try:
            tasks.insert_one(document)
        except DuplicateKeyError as error:
            duplicate = error
        stored: RawBSONDocument | None = tasks.find_one(where, hint=indexes.KEY)
    if stored is None:
        if duplicate is not None:
            _raise_if_id_is_taken(duplicate)
        raise UnavailableError("the task with this idempotency key was just removed")
    return stored


def _upsert(tasks: Tasks, document: dict[str, Any], session: ClientSession | None) -> RawBSONDocument:
    key = document["idempotency_key"]
    try:
        stored = find_and_modify(
            tasks,
            {"idempotency_key": key},
            {"$setOnInsert": {name: value for name, value in document.items() if name != "idempotency_key"}},
            upsert=True,
            hint=indexes.KEY,
            session=session,
        )
    except DuplicateKeyError as error:
        _raise_if_id_is_taken(error)
        raise
    if stored is None:
        raise UnavailableError("MongoDB did not acknowledge the upsert")
    return stored


def _kill_session(db: Database[Any], session: ClientSession) -> None:
    """End the transaction on the server, which would otherwise keep it open, with its keys, for a minute."""
    with suppress(PyMongoError), limit_time(KILL_SESSION_TIMEOUT_SEC):
        db.client.admin.command("killSessions", [session.session_id])


def _read_server_types(db: Database[Any]) -> set[str]:
    return {server.server_type_name for server in db.client.topology_description.server_descriptions().values()}
