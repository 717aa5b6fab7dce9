"""New tasks: one insert each, made repeatable by the id (or the key) that the client chose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bson.raw_bson import RawBSONDocument
from pymongo import ReturnDocument
from pymongo.client_session import ClientSession
from pymongo.errors import BulkWriteError, ConnectionFailure, DuplicateKeyError

from tidemill import indexes
from tidemill.errors import UnavailableError
from tidemill.store.collections import Tasks, translated, untranslated

_DUPLICATE_KEY = 11000


def add(tasks: Tasks, documents: Sequence[dict[str, Any]], *, session: ClientSession | None = None) -> None:
    """Insert *documents*, in order, with the ids they carry. Tried twice, so that a lost reply is no error.

    With *session* the driver's own errors are raised: by their labels the caller's transaction is repeated.

    Raises:
        UnavailableError: Nothing is known of the effect; a part of several documents may be stored.
    """
    if session is not None:
        tasks.insert_many(documents, session=session)
        return
    with translated():
        try:
            tasks.insert_many(documents)
        except ConnectionFailure:
            _add_again(tasks, documents)


def add_once(tasks: Tasks, document: dict[str, Any], *, session: ClientSession | None = None) -> RawBSONDocument:
    """Insert *document* unless its ``idempotency_key`` is held; return what is stored under that key.

    One upsert that writes only on insert: a taken key raises nothing, so it aborts no caller's transaction. With
    *session* the driver's own errors are raised, as by `add`.
    """
    if session is not None:
        with untranslated():
            return _upsert(tasks, document, session)
    with translated():
        try:
            return _upsert(tasks, document, None)
        except (ConnectionFailure, DuplicateKeyError):
            # A lost reply, or two first requests in the same instant: the key now answers for itself.
            return _upsert(tasks, document, None)


def _upsert(tasks: Tasks, document: dict[str, Any], session: ClientSession | None) -> RawBSONDocument:
    key = document["idempotency_key"]
    stored: RawBSONDocument | None = tasks.find_one_and_update(
        {"idempotency_key": key},
        {"$setOnInsert": {name: value for name, value in document.items() if name != "idempotency_key"}},
        upsert=True,
        return_document=ReturnDocument.AFTER,
        hint=indexes.KEY,
        session=session,
    )
    if stored is None:
        raise UnavailableError("MongoDB did not acknowledge the upsert")
    return stored


def _add_again(tasks: Tasks, documents: Sequence[dict[str, Any]]) -> None:
    try:
        tasks.insert_many(documents, ordered=False)
    except BulkWriteError as error:
        if any(one["code"] != _DUPLICATE_KEY for one in error.details["writeErrors"]):
            raise
