"""The tasks of a schedule: once for each time it was to fire, however often that is delivered."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from bson import ObjectId
from pymongo.client_session import ClientSession
from pymongo.collection import Collection
from pymongo.errors import BulkWriteError, DuplicateKeyError

from tidemill.documents import OCCURRENCES
from tidemill.enqueueing.values import Accepted, new_document, refuse_expired
from tidemill.errors import UnavailableError
from tidemill.requests import NewTask, Occurrence
from tidemill.store import Tasks, intake, majority, translated
from tidemill.store.confirming import confirmed
from tidemill.store.transactions import has_transactions, in_transaction

_HASHED: Final = 6
"""Of the twelve bytes of an ObjectId: four of time, six that tell the occurrence, two that count its tasks."""


def accept_occurrence(
    tasks: Tasks,
    occurrence: Occurrence,
    requests: Sequence[NewTask],
    *,
    now: datetime,
    trace: Mapping[str, str] | None = None,
) -> list[Accepted]:
    """Store *requests*, in order, unless this was done for the *occurrence* before; then they are not new.

    What has become of the first ones since does not matter: the occurrence is a document of its own, for two days,
    written in one transaction with its tasks. On a standalone server it is written after them; their ids follow from
    the occurrence, so a delivery that was cut short is completed by the next one.

    Raises:
        InvalidRequestError: Naming the index of each task that would expire before it starts; nothing was stored.
        UnavailableError: MongoDB did not confirm; a repeat is safe.
    """
    refuse_expired(requests, now=now)
    ids = _task_ids(occurrence, len(requests))
    documents = [
        new_document(one, now=now, trace=trace, task_id=task_id) for one, task_id in zip(requests, ids, strict=True)
    ]
    is_new = _stored(tasks, {"_id": _id(occurrence), "created_at": now}, documents)
    return [Accepted(id=one, is_new=True) for one in ids] if is_new else _known(ids)


def known_occurrence(tasks: Tasks, occurrence: Occurrence, *, count: int) -> list[Accepted] | None:
    """Return the *count* tasks of *occurrence* where it was stored before, whatever would be refused today.

    Raises:
        UnavailableError: MongoDB did not say.
    """
    with translated(OCCURRENCES):
        found = _marks(tasks).find_one({"_id": _id(occurrence)}, {"_id": 1})
    ids = _task_ids(occurrence, count)
    return None if found is None or not _lasts(tasks, _id(occurrence), ids) else _known(ids)


def _known(ids: Sequence[ObjectId]) -> list[Accepted]:
    return [Accepted(id=one, status=None, is_new=False) for one in ids]


def _stored(tasks: Tasks, mark: dict[str, Any], documents: Sequence[dict[str, Any]]) -> bool:
    marks = _marks(tasks)
    if not has_transactions(tasks.database):
        intake.add_missing(tasks, documents)
        with translated(OCCURRENCES):
            return marks.update_one({"_id": mark["_id"]}, {"$setOnInsert": mark}, upsert=True).upserted_id is not None

    def together(session: ClientSession) -> bool:
        try:
            marks.insert_one(mark, session=session)
            intake.add_all(tasks, documents, session=session)
        except (DuplicateKeyError, BulkWriteError) as error:
            if _is_there(error):
                raise _KnownError from None
            raise
        return True

    try:
        return in_transaction(tasks.database, together)
    except _KnownError:
        if not _lasts(tasks, mark["_id"], [one["_id"] for one in documents]):
            raise UnavailableError("what was there of this occurrence was taken back; repeat it") from None
        return False


def _lasts(tasks: Tasks, mark: dict[str, Any], ids: Sequence[ObjectId]) -> bool:
    """Tell whether a majority has what was found, the mark or a task: a change of primary may have taken it back."""
    with translated(OCCURRENCES), confirmed(_marks(tasks)) as (marks, session):
        if marks.find_one({"_id": mark}, {"_id": 1}, session=session) is not None:
            return True
        lasting = tasks.with_options(read_concern=marks.read_concern)
        return lasting.find_one({"_id": {"$in": list(ids)}}, {"_id": 1}, session=session) is not None


def _is_there(error: DuplicateKeyError | BulkWriteError) -> bool:
    """Tell whether another delivery was quicker, or the mark is forgotten and a task of it is still there."""
    codes = {one["code"] for one in (error.details or {}).get("writeErrors", [])}
    return isinstance(error, DuplicateKeyError) or codes == {intake.DUPLICATE_KEY}


def _marks(tasks: Tasks) -> Collection[Any]:
    return majority(tasks.database)[OCCURRENCES]


class _KnownError(Exception):
    """The occurrence is there. Private: it ends the transaction."""


def _id(occurrence: Occurrence) -> dict[str, Any]:
    return {"schedule": occurrence.schedule, "at": occurrence.at}


def _task_ids(occurrence: Occurrence, count: int) -> list[ObjectId]:
    """Return ids that sort like others: by time, then by place."""
    seconds = int(occurrence.at.timestamp()) % 2**32
    told = f"{occurrence.schedule}|{occurrence.at.isoformat()}".encode()
    begin = seconds.to_bytes(4, "big") + hashlib.sha256(told).digest()[:_HASHED]
    return [ObjectId(begin + index.to_bytes(2, "big")) for index in range(count)]
