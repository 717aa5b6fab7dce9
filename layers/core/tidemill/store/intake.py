"""New tasks: inserts made repeatable by the ids (or the keys) that the client chose."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from bson.raw_bson import RawBSONDocument
from pymongo.client_session import ClientSession
from pymongo.errors import BulkWriteError, ConnectionFailure, DuplicateKeyError

from tidemill import indexes
from tidemill.documents import decode
from tidemill.errors import RefusedError, UnavailableError
from tidemill.store.changes import changed
from tidemill.store.collections import Tasks, refuses_names, translated, untranslated
from tidemill.store.writes import refused_in

DUPLICATE_KEY = 11000


def add(tasks: Tasks, document: dict[str, Any], *, session: ClientSession | None = None) -> None:
    """Insert *document* with the id it carries. Tried twice, so that a lost reply is no error.

    With *session* the driver's own errors are raised: by their labels the caller's transaction is repeated.

    Raises:
        UnavailableError: Nothing is known of the effect.
    """
    if session is not None:
        tasks.insert_one(document, session=session)
        return
    with translated():
        try:
            tasks.insert_one(document)
        except ConnectionFailure:
            add_missing(tasks, [document])  # which is no error where it took effect, once a majority has it


def add_once(tasks: Tasks, document: dict[str, Any], *, session: ClientSession | None = None) -> RawBSONDocument:
    """Insert *document* unless its ``idempotency_key`` is held; return what is stored under that key.

    One upsert that writes only on insert: a taken key raises nothing, so it aborts no caller's transaction. Of two
    first ones in the same instant the server itself repeats one. With *session* the driver's own errors are raised.
    """
    if session is not None:
        with untranslated():
            return _upsert(tasks, document, session)
    try:
        with translated():
            try:
                return _upsert(tasks, document, None)
            except ConnectionFailure:  # where the reply was lost, the key answers for itself now
                return _upsert(tasks, document, None)
    except RefusedError as error:
        if not refuses_names(error):
            raise
    return _inserted(tasks, document)


def held(tasks: Tasks, keys: Collection[str], *, session: ClientSession | None = None) -> dict[str, dict[str, Any]]:
    """Return what is held of *keys*, by key: ``_id``, ``status`` and ``request_hash`` of the task that holds it."""
    where = {"idempotency_key": {"$gt": "", "$in": list(keys)}}
    shown = {"idempotency_key": 1, "request_hash": 1, "status": 1}
    with untranslated():
        found = tasks.find(where, shown, hint=indexes.KEY, batch_size=len(keys) + 1, session=session)
        holders = [decode(raw) for raw in found]
    return {one["idempotency_key"]: one for one in holders}


def add_all(tasks: Tasks, documents: Sequence[Mapping[str, Any]], *, session: ClientSession) -> None:
    """Insert *documents* in a transaction, with the driver's own errors."""
    if documents:
        with untranslated():
            tasks.insert_many(documents, session=session)


def add_in_order(tasks: Tasks, documents: Sequence[Mapping[str, Any]]) -> int:
    """Insert *documents* one after the other, up to the first whose key is held; return how many are stored.

    One that is stored already under its id counts as inserted: it was, by a call whose reply was lost.

    Raises:
        UnavailableError: The first of them may be stored, the others are not.
    """
    if not documents:
        return 0
    with translated():
        try:
            _insert(tasks, documents)
        except BulkWriteError as error:
            index = _taken_at(error)
        else:
            return len(documents)
        ids = [one["_id"] for one in documents]
        there = {raw["_id"] for raw in tasks.find({"_id": {"$in": ids}}, {"_id": 1}, batch_size=len(ids))}
    if documents[index]["_id"] not in there:
        return index
    return len(there) + add_in_order(tasks, [one for one in documents if one["_id"] not in there])


def add_missing(tasks: Tasks, documents: Sequence[dict[str, Any]]) -> None:
    """Insert those of *documents* whose id is not there yet; safe to stop half-way and to repeat.

    Raises:
        UnavailableError: Some may be stored.
    """
    with translated():
        try:
            tasks.insert_many(documents, ordered=False)
        except BulkWriteError as error:
            if any(one["code"] != DUPLICATE_KEY for one in refused_in(error)):
                raise


def _taken_at(error: BulkWriteError) -> int:
    """Return the place of the document whose id or key is taken."""
    [wrong] = refused_in(error)[:1]
    if wrong["code"] != DUPLICATE_KEY:
        raise error
    return int(wrong["index"])


def _insert(tasks: Tasks, documents: Sequence[Mapping[str, Any]]) -> None:
    try:
        tasks.insert_many(documents)
    except ConnectionFailure:
        tasks.insert_many(documents)


def _inserted(tasks: Tasks, document: dict[str, Any]) -> RawBSONDocument:
    where = {"idempotency_key": {"$gt": "", "$eq": document["idempotency_key"]}}
    with translated():
        with contextlib.suppress(DuplicateKeyError):
            tasks.insert_one(document)
        stored: RawBSONDocument | None = tasks.find_one(where, hint=indexes.KEY)
    if stored is None:
        raise UnavailableError("the task that held the key has just gone")
    return stored


def _upsert(tasks: Tasks, document: dict[str, Any], session: ClientSession | None) -> RawBSONDocument:
    key = document["idempotency_key"]
    stored = changed(
        tasks,
        {"idempotency_key": key},
        {"$setOnInsert": {name: value for name, value in document.items() if name != "idempotency_key"}},
        upsert=True,
        hint=indexes.KEY,
        session=session,
    )
    if stored is None:
        raise UnavailableError("MongoDB did not acknowledge the upsert")
    return stored
