"""Documents that stand against an index: equal values under a unique index, or lists in two fields of one index.

Such documents were stored while the index was missing. MongoDB's own error quotes a value and names no document.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any, Final

from bson import ObjectId
from pymongo.database import Database

from tidemill.indexes import Index
from tidemill.store.connection import limit_time, translate_errors

MAX_NAMED: Final = 3
"""Limit of the documents, or pairs of documents, in one sentence."""

SEARCH_TIMEOUT_SEC: Final = 5.0
"""Limit of a search, which reads whole collections."""

_MAX_ID_LENGTH: Final = 64
_WHOLE_COLLECTION: Final = {"$natural": 1}


def explain_obstacles(
    db: Database[Any], unbuilt: Iterable[Index], *, timeout_sec: float = SEARCH_TIMEOUT_SEC
) -> tuple[str, ...]:
    """Return a sentence for each index of *unbuilt* that documents stand against: which documents, and what to do.

    Raises:
        UnavailableError: The search took longer than *timeout_sec*.
    """
    with limit_time(timeout_sec):
        sentences = [_explain_duplicates(db, index) if index.unique else _explain_lists(db, index) for index in unbuilt]
    return tuple(sentence for sentence in sentences if sentence is not None)


def match_lists(index: Index) -> dict[str, Any]:
    """Return a filter of the documents with lists in two fields of *index*; MongoDB cannot index them."""
    pairs = [{first: {"$type": "array"}, second: {"$type": "array"}} for first, second in combinations(index.keys, 2)]
    return {"$or": pairs}


def _explain_duplicates(db: Database[Any], index: Index) -> str | None:
    [field] = index.keys
    found = _search(
        db,
        index,
        [
            {"$match": index.partial or {}},
            {"$unwind": f"${field}"},
            {"$group": {"_id": f"${field}", "first": {"$min": "$_id"}, "last": {"$max": "$_id"}}},
            {"$match": {"$expr": {"$ne": ["$first", "$last"]}}},
            {"$sort": {"first": 1}},
        ],
    )
    if not found:
        return None
    pairs = ", ".join(f"{_describe_id(pair['first'])} and {_describe_id(pair['last'])}" for pair in found[:MAX_NAMED])
    later = found[0]["last"]
    name = db[index.collection].name
    shown_id = f'ObjectId("{later}")' if isinstance(later, ObjectId) else _describe_id(later)
    command = f'db["{name}"].updateOne({{_id: {shown_id}}}, {{$unset: {{{field}: 1}}}})'
    return _build_sentence(
        name, index, f"{pairs}{_describe_rest(found)} have the same {field}", f"remove it from one of each: {command}"
    )


def _explain_lists(db: Database[Any], index: Index) -> str | None:
    if len(index.keys) == 1:
        return None
    found = _search(db, index, [{"$match": {"$and": [index.partial or {}, match_lists(index)]}}, {"$sort": {"_id": 1}}])
    if not found:
        return None
    ids = ", ".join(_describe_id(document["_id"]) for document in found[:MAX_NAMED])
    return _build_sentence(
        db[index.collection].name,
        index,
        f"{ids}{_describe_rest(found)} hold lists in two of its fields ({', '.join(index.keys)})",
        "correct or remove them",
    )


def _search(db: Database[Any], index: Index, stages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the ids that *stages* find in the collection of *index*, one more than a sentence names."""
    ids = {"$project": {"first": 1, "last": 1}}
    pipeline = [*stages, {"$limit": MAX_NAMED + 1}, ids]
    with translate_errors(index.collection):
        return list(db[index.collection].aggregate(pipeline, hint=_WHOLE_COLLECTION, allowDiskUse=True))


def _build_sentence(collection: str, index: Index, cause: str, remedy: str) -> str:
    return (
        f"the index {index.name} of {collection} cannot be built, because the documents {cause}: {remedy}; "
        "reclaim then builds it within a minute, or run `tidemill indexes`"
    )


def _describe_rest(found: Sequence[object]) -> str:
    return " and others" if len(found) > MAX_NAMED else ""


def _describe_id(document_id: object) -> str:
    return str(document_id) if isinstance(document_id, ObjectId) else repr(document_id)[:_MAX_ID_LENGTH]
