"""Databases for tests: the server needs ten times as long for making one with its indexes as for emptying it."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from pymongo import MongoClient
from pymongo.database import Database
from pymongo.errors import OperationFailure

from tidemill import indexes
from tidemill.documents import TASKS
from tidemill.store.mark import MARK_ID, require_mark

ALL_BUT_THE_MARK: Final = {"_id": {"$ne": MARK_ID}}

LARGE: Final = 500
"""With more documents than this, making another is quicker."""


def make(client: MongoClient[dict[str, Any]]) -> Database[dict[str, Any]]:
    """Return a database that nobody had before; it goes with the server, which is quicker than dropping it."""
    db = client[f"test_{uuid.uuid4().hex}"]
    indexes.create(db)
    require_mark(db)
    return db


class Lender:
    """Lends databases, each to one test after the other.

    One is lent again if nothing is at work in it and it differs from a new one by no more than its documents.
    """

    def __init__(self, client: MongoClient[dict[str, Any]]) -> None:
        self._client = client
        self._ready: list[Database[dict[str, Any]]] = []
        self._as_made: dict[str, Any] = {}

    @contextmanager
    def lend(self) -> Iterator[Database[dict[str, Any]]]:
        """Give an empty database to one test."""
        threads = set(threading.enumerate())
        db = self._ready.pop() if self._ready else self._make()
        yield db
        if not _left_behind(threads) and not self._is_busy(db) and self._is_as_made(db) and _empty(db):
            self._ready.append(db)

    def _make(self) -> Database[dict[str, Any]]:
        db = make(self._client)
        self._as_made = self._as_made or self._catalog(db)
        return db

    def _is_busy(self, db: Database[Any]) -> bool:
        """Say whether the server is still at something that the test gave up, or keeps a transaction for it."""
        unfinished = {"$or": [{"active": True, "command.$db": db.name}, {"transaction.parameters.autocommit": False}]}
        stages: list[dict[str, Any]] = [{"$currentOp": {"idleSessions": True}}, {"$match": unfinished}]
        with self._client.admin.aggregate(stages) as operations:
            return any(True for _ in operations)

    def _is_as_made(self, db: Database[Any]) -> bool:
        """Say whether all indexes are as they were, and other collections have no more than their ids'."""
        found = self._catalog(db)
        if not set(indexes.COLLECTIONS) <= found.keys():
            return False
        plain = {"type": "collection", "options": {}, "indexes": self._as_made[TASKS]["indexes"][:1]}
        return all(shape == self._as_made.get(name, plain) for name, shape in found.items())

    def _catalog(self, db: Database[Any]) -> dict[str, Any]:
        """Return what the server keeps of each collection; of an index, whether it ever held an array, too."""
        shape = {"type": 1, "options": "$md.options", "indexes": "$md.indexes"}
        stages: list[dict[str, Any]] = [
            {"$listCatalog": {}},
            {"$match": {"db": db.name}},
            {"$project": {"name": 1} | shape},
        ]
        try:
            found = self._client.admin.aggregate([*stages, {"$unset": ["_id", "options.uuid"]}]).to_list()
        except OperationFailure:  # a server that was given, and is older
            return {}
        return {one.pop("name"): one for one in found}


def _empty(db: Database[Any]) -> bool:
    """Remove the documents, and say whether they were few."""
    collections = [db[name] for name in db.list_collection_names()]
    if any(one.estimated_document_count() > LARGE for one in collections):
        return False
    for one in collections:
        one.delete_many(ALL_BUT_THE_MARK)
    require_mark(db)
    return True


def _left_behind(before: set[threading.Thread]) -> bool:
    """Say whether the test left threads that may write once more. The driver's own do not."""
    return any(one not in before and not one.name.startswith("pymongo_") for one in threading.enumerate())
