"""Connections of an `AsyncQueue`, its inserts and its transactions.

Written by tools/async_twins.py from the sync sources; do not edit.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import Context
from typing import Any, TypeAlias

from bson.raw_bson import RawBSONDocument
from pymongo import ReadPreference, ReturnDocument, WriteConcern
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import (
    AutoReconnect,
    BulkWriteError,
    ConnectionFailure,
    DuplicateKeyError,
    NetworkTimeout,
    PyMongoError,
    ServerSelectionTimeoutError,
)
from pymongo.read_concern import ReadConcern

from tidemill import indexes
from tidemill.documents import LENIENT_OPTIONS, PREFIX_PATTERN, PREFIX_RULE, RAW_OPTIONS, TASKS, decode, is_text
from tidemill.errors import (
    RefusedError,
    SettingsError,
    UnavailableError,
)
from tidemill.store.connection import (
    is_name_refusal,
    keep_driver_errors,
    limit_time,
    translate_errors,
)
from tidemill.store.writes import (
    _ANSWERS,
    _T,
    DUPLICATE_KEY_CODE,
    KILL_SESSION_TIMEOUT_SEC,
    TRANSACTION_TIMEOUT_SEC,
    _raise_if_id_is_taken,
    find_refused_writes,
)

AsyncTasks: TypeAlias = AsyncCollection[Any]


class AsyncPrefixedDatabase(AsyncDatabase[Any]):
    """Database that adds *prefix* to the names of its collections: ``db["tasks"]`` is the collection ``tm_tasks``.

    All code opens collections with `get_collection`, so no other code needs the prefix.
    """

    def __init__(self, db: AsyncDatabase[Any], *, prefix: str) -> None:
        super().__init__(db.client, db.name, db.codec_options, db.read_preference, db.write_concern, db.read_concern)
        self.prefix = prefix

    def with_options(self, *options: Any, **named_options: Any) -> AsyncDatabase[Any]:
        """Return a copy with other options and the same prefix."""
        return AsyncPrefixedDatabase(super().with_options(*options, **named_options), prefix=self.prefix)

    def get_collection(self, name: str, *options: Any, **named_options: Any) -> AsyncCollection[Any]:
        """Return the collection called prefix + *name*."""
        is_internal = name.startswith("$")
        return super().get_collection(name if is_internal else self.prefix + name, *options, **named_options)

    def __getitem__(self, name: str) -> AsyncCollection[Any]:
        """Return the collection called prefix + *name*."""
        return self.get_collection(name)


def with_prefix(db: AsyncDatabase[Any], prefix: str) -> AsyncDatabase[Any]:
    """Return *db* with *prefix* before the names of its collections. An empty prefix changes nothing.

    Raises:
        SettingsError: No collection name can begin with *prefix*.
    """
    if not prefix:
        return db
    if not re.fullmatch(PREFIX_PATTERN, prefix):
        raise SettingsError(f"the prefix of the collections {PREFIX_RULE}")
    return AsyncPrefixedDatabase(db, prefix=prefix)


def with_majority(db: AsyncDatabase[Any]) -> AsyncDatabase[Any]:
    """Return *db* with majority writes and primary reads. They override the options of the URI."""
    return db.with_options(
        read_preference=ReadPreference.PRIMARY,
        write_concern=WriteConcern(w="majority"),
        read_concern=ReadConcern("local"),
    )


def with_lenient_decoding(db: AsyncDatabase[Any]) -> AsyncDatabase[Any]:
    """Return *db* with a decoding that never raises."""
    return with_majority(db).with_options(codec_options=LENIENT_OPTIONS)


def open_tasks(db: AsyncDatabase[Any], name: str = TASKS) -> AsyncTasks:
    """Return the collection of tasks, or the collection of dead letters by its *name*, with raw documents."""
    return with_majority(db).get_collection(name, codec_options=RAW_OPTIONS)


async def read_by_name(collection: AsyncCollection[Any], *, without: str | None = None) -> dict[str, Mapping[str, Any]]:
    """Return the documents of a small *collection* whose ids are names, without the large field *without*."""
    fields = None if without is None else {without: 0}
    return {document["_id"]: document async for document in collection.find({}, fields) if is_text(document["_id"])}


async def run_server_command(
    db: AsyncDatabase[Any], question: str, *, session: AsyncClientSession | None = None
) -> dict[str, Any]:
    """Return the server's answer to ``hello`` or ``ping``; repeat the command once after a lost connection.

    Connections get lost when the primary changes, and when the process was frozen: then the driver closes all of them.
    """
    try:
        return dict(await db.client.admin.command(question, session=session))
    except (NetworkTimeout, ServerSelectionTimeoutError):
        raise
    except AutoReconnect:
        return dict(await db.client.admin.command(question, session=session))


@asynccontextmanager
async def majority_read(
    collection: AsyncCollection[Any],
) -> AsyncIterator[tuple[AsyncCollection[Any], AsyncClientSession]]:
    """Yield *collection* and a session for reads of the primary's present state, once a majority has that state.

    A primary that was cut off without noticing has writes that no other member will ever get. A read there waits and
    then fails. This block is not needed before a write, which waits for a majority itself.
    """
    db = collection.database
    async with db.client.start_session() as session:
        await run_server_command(db, "ping", session=session)
        has_members = session.operation_time is not None
        yield (collection.with_options(read_concern=ReadConcern("majority" if has_members else "local")), session)


async def find_and_modify(
    tasks: AsyncTasks,
    where: Mapping[str, Any],
    change: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    *,
    upsert: bool = False,
    hint: str | None = None,
    session: AsyncClientSession | None = None,
) -> RawBSONDocument | None:
    """Change the document that *where* matches and return the new document, or ``None`` if nothing matches."""
    document: RawBSONDocument | None = await tasks.with_options(codec_options=_ANSWERS).find_one_and_update(
        where, change, upsert=upsert, return_document=ReturnDocument.AFTER, hint=hint, session=session
    )
    return document


async def insert_task(
    tasks: AsyncTasks, document: dict[str, Any], *, session: AsyncClientSession | None = None
) -> None:
    """Insert *document* with its id. A second try makes a lost reply no error.

    With *session* the driver's own errors are raised: their labels let the caller's transaction be repeated.

    Raises:
        TakenIdError: A task has this id.
        UnavailableError: The effect is unknown.
    """
    if session is not None:
        await tasks.insert_one(document, session=session)
        return
    with translate_errors():
        try:
            await tasks.insert_one(document)
        except DuplicateKeyError as error:
            _raise_if_id_is_taken(error)
            raise
        except ConnectionFailure:
            await insert_in_order(tasks, [document])


async def insert_once(
    tasks: AsyncTasks, document: dict[str, Any], *, session: AsyncClientSession | None = None
) -> RawBSONDocument:
    """Insert *document* unless a task has its ``idempotency_key``; return the stored task with that key.

    It is one upsert that writes only on insert. A taken key raises no error, so it aborts no transaction of the caller.
    If two upserts of a key collide, the server repeats one of them. With *session* the driver's own errors are raised.

    Raises:
        TakenIdError: The key is free, and the task that had it before has this id.
        UnavailableError: The effect is unknown.
    """
    if session is not None:
        with keep_driver_errors():
            return await _upsert(tasks, document, session)
    try:
        with translate_errors():
            try:
                return await _upsert(tasks, document, None)
            except ConnectionFailure:
                return await _upsert(tasks, document, None)
    except RefusedError as error:
        if not is_name_refusal(error):
            raise
    return await _insert_and_read(tasks, document)


async def insert_all(tasks: AsyncTasks, documents: Sequence[Mapping[str, Any]], *, session: AsyncClientSession) -> None:
    """Insert *documents* in a transaction; raise the driver's own errors.

    Raises:
        TakenIdError: A task has one of the ids.
    """
    if documents:
        with keep_driver_errors():
            try:
                await tasks.insert_many(documents, session=session)
            except BulkWriteError as error:
                _raise_if_id_is_taken(error)
                raise


async def insert_in_order(tasks: AsyncTasks, documents: Sequence[Mapping[str, Any]]) -> int:
    """Insert *documents* in order up to the first taken key, and return the number of stored documents.

    A document whose id is stored already counts: an earlier call with a lost reply inserted it.

    Raises:
        UnavailableError: Some of the first documents may be stored, the rest are not.
    """
    if not documents:
        return 0
    with translate_errors():
        try:
            await _insert(tasks, documents)
        except BulkWriteError as error:
            refusal, *_ = find_refused_writes(error)
            if refusal["code"] != DUPLICATE_KEY_CODE:
                raise
            index = int(refusal["index"])
        else:
            return len(documents)
        ids = [document["_id"] for document in documents]
        stored = {raw["_id"] async for raw in tasks.find({"_id": {"$in": ids}}, {"_id": 1}, batch_size=len(ids))}
    if documents[index]["_id"] not in stored:
        return index
    return len(stored) + await insert_in_order(
        tasks, [document for document in documents if document["_id"] not in stored]
    )


async def find_key_holders(
    tasks: AsyncTasks, keys: Collection[str], *, session: AsyncClientSession | None = None
) -> dict[str, dict[str, Any]]:
    """Return ``_id``, ``status`` and ``request_hash`` of the tasks that have one of *keys*, by key."""
    where = {"idempotency_key": {"$gt": "", "$in": list(keys)}}
    fields = {"idempotency_key": 1, "request_hash": 1, "status": 1}
    with keep_driver_errors():
        documents = [
            decode(raw)
            async for raw in tasks.find(where, fields, hint=indexes.KEY, batch_size=len(keys) + 1, session=session)
        ]
    return {document["idempotency_key"]: document for document in documents}


async def has_transactions(db: AsyncDatabase[Any]) -> bool:
    """Return True if the server takes transactions. All servers do, except for a standalone server."""
    server_types = _read_server_types(db)
    if "Unknown" in server_types or not server_types:
        with translate_errors():
            await run_server_command(db, "ping")
        server_types = _read_server_types(db)
    return "Standalone" not in server_types


async def run_in_transaction(
    db: AsyncDatabase[Any],
    work: Callable[[AsyncClientSession], Coroutine[Any, Any, _T]],
    *,
    timeout_sec: float = TRANSACTION_TIMEOUT_SEC,
) -> _T:
    """Run *work* in a transaction and return its result. A majority commits all of its writes, or none.

    *work* is called again after a conflict with another transaction, so it must keep no state. It must raise the
    driver's errors unchanged. It ends after *timeout_sec*, or at the caller's own ``pymongo.timeout``.

    Raises:
        UnavailableError: The effect is unknown: all or none of it was written.
    """
    with translate_errors():
        with limit_time(timeout_sec):
            async with db.client.start_session() as session:
                try:
                    return await session.with_transaction(
                        work,
                        read_concern=ReadConcern("snapshot"),
                        write_concern=WriteConcern("majority"),
                        read_preference=ReadPreference.PRIMARY,
                    )
                except PyMongoError:
                    await asyncio.create_task(_kill_session(db, session), context=Context())
                    raise


async def _insert(tasks: AsyncTasks, documents: Sequence[Mapping[str, Any]]) -> None:
    try:
        await tasks.insert_many(documents)
    except ConnectionFailure:
        await tasks.insert_many(documents)


async def _insert_and_read(tasks: AsyncTasks, document: dict[str, Any]) -> RawBSONDocument:
    where = {"idempotency_key": {"$gt": "", "$eq": document["idempotency_key"]}}
    with translate_errors():
        duplicate: DuplicateKeyError | None = None
        try:
            await tasks.insert_one(document)
        except DuplicateKeyError as error:
            duplicate = error
        stored: RawBSONDocument | None = await tasks.find_one(where, hint=indexes.KEY)
    if stored is None:
        if duplicate is not None:
            _raise_if_id_is_taken(duplicate)
        raise UnavailableError("the task with this idempotency key was just removed")
    return stored


async def _upsert(tasks: AsyncTasks, document: dict[str, Any], session: AsyncClientSession | None) -> RawBSONDocument:
    key = document["idempotency_key"]
    try:
        stored = await find_and_modify(
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


async def _kill_session(db: AsyncDatabase[Any], session: AsyncClientSession) -> None:
    """End the transaction on the server, which would otherwise keep it open, with its keys, for a minute."""
    with suppress(PyMongoError):
        with limit_time(KILL_SESSION_TIMEOUT_SEC):
            await db.client.admin.command("killSessions", [session.session_id])


def _read_server_types(db: AsyncDatabase[Any]) -> set[str]:
    return {server.server_type_name for server in db.client.topology_description.server_descriptions().values()}
