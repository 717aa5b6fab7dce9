"""Tasks of a direct invocation, stored once even if Lambda or the queue of retries repeats the event."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Final

from bson import ObjectId
from bson.max_key import MaxKey
from bson.min_key import MinKey

from tidemill import indexes
from tidemill.documents import DEAD_LETTERS, decode
from tidemill.enqueue.documents import Accepted
from tidemill.errors import DuplicateKeyError, InvalidRequestError, Problem, TooOldError, UnavailableError
from tidemill.indexes import OCCURRENCE_RETENTION, Retention
from tidemill.requests.events import SCHEDULE_HINT, Occurrence
from tidemill.store.connection import Tasks, majority_read, translate_errors
from tidemill.store.writes import TakenIdError, has_transactions

MAX_EVENT_AGE: Final = timedelta(hours=1)
"""Longest time from the first try of an invocation until Lambda gives up: MaximumEventAgeInSeconds of the template."""

_HASH_BYTES: Final = 10
"""Bytes of the request's hash in the twelve bytes of an ObjectId; the last two count the tasks."""


def derive_ids(request_id: str, count: int) -> list[ObjectId]:
    """Return the ids of the tasks of the invocation *request_id*, the same ones for each repeat.

    The ids begin with a hash, because a repeat does not know the time of the first try. They do not sort by time.
    """
    begin = hashlib.sha256(f"direct|{request_id}".encode()).digest()[:_HASH_BYTES]
    return [ObjectId(begin + index.to_bytes(2, "big")) for index in range(count)]


def store_once(
    tasks: Tasks,
    dead: Tasks,
    ids: Sequence[ObjectId],
    store: Callable[[int], list[Accepted]],
    *,
    may_be_repeat: bool,
) -> list[Accepted]:
    """Return the stored tasks with *ids*, or let *store* store them from the first missing index on.

    An insert finds living tasks by itself, because their ids are taken. If the invocation *may_be_repeat*, stored
    tasks are looked up before, for the dead letters among them. A first try has none.

    Raises:
        InvalidRequestError: *store* refuses a task that was not stored before; likewise `DuplicateKeyError`.
        UnavailableError: MongoDB did not confirm; a repeat is safe.
    """
    known = _find_known(tasks, dead, ids) if may_be_repeat else []
    if len(known) == len(ids):
        return known
    try:
        return [*known, *store(len(known))]
    except TakenIdError:
        known = _find_known(tasks, dead, ids)
        if len(known) < len(ids):
            raise UnavailableError("stored tasks of this invocation were rolled back; repeat it") from None
    except (InvalidRequestError, DuplicateKeyError):
        known = _find_known(tasks, dead, ids)
        if len(known) < len(ids):
            raise
    return known


def refuse_too_old(
    occurrence: Occurrence | None, *, failed_at: datetime | None, kept: Retention, now: datetime
) -> None:
    """Refuse a late repeat: its tasks may have been stored, ended and deleted before.

    *failed_at* is the time at which Lambda gave up an invocation without an *occurrence*.

    Raises:
        TooOldError: The repeat is older than the retention of ended tasks or of occurrences.
        InvalidRequestError: *occurrence* and *failed_at* are both missing.
    """
    if occurrence is not None:
        is_too_old = occurrence.at <= now - OCCURRENCE_RETENTION
    elif failed_at is not None:
        is_too_old = failed_at - MAX_EVENT_AGE <= now - min(kept.tasks, kept.dead_letters)
    else:
        raise InvalidRequestError([Problem("occurrence", f"is missing: {SCHEDULE_HINT}")])
    if is_too_old:
        raise TooOldError


def _find_known(tasks: Tasks, dead: Tasks, ids: Sequence[ObjectId]) -> list[Accepted]:
    """Return the stored tasks of an invocation: all or none, on a standalone server perhaps only the first ones.

    The tasks may be pending, running, ended, or dead letters, redriven or not. A majority confirms what was found.
    """
    in_range = {"_id": {"$gte": ids[0], "$lte": ids[-1]}}
    with translate_errors(), majority_read(tasks) as (lasting, session):
        found = {
            fields["_id"]: str(fields.get("status"))
            for fields in map(decode, lasting.find(in_range, {"status": 1}, hint=indexes.BY_ID, session=session))
        }
        # Dead letters come second: archiving inserts the dead letter before it deletes the task.
        dead_letters = dead.with_options(read_concern=lasting.read_concern)
        with translate_errors(DEAD_LETTERS):
            for raw in dead_letters.find(_match_dead_letters(ids), {"_id": 1}, hint=indexes.BY_ID, session=session):
                found.setdefault(decode(raw)["_id"]["task"], "failed")
    if not found:
        return []
    stored = ids if has_transactions(tasks.database) else ids[: ids.index(max(found)) + 1]
    return [Accepted(id=task_id, status=found.get(task_id), is_new=False) for task_id in stored]


def _match_dead_letters(ids: Sequence[ObjectId]) -> dict[str, object]:
    return {"_id": {"$gte": {"task": ids[0], "redrives": MinKey()}, "$lte": {"task": ids[-1], "redrives": MaxKey()}}}
