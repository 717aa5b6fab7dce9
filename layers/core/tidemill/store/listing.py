"""Pages of living tasks, the newest id first, at a bounded cost and in a bounded size.

Every plan yields ids in the same order, so a cursor is the last id that was looked at, and the plan may differ from
page to page: tasks that are few by an index of their status are sorted by the server, all others are met on a walk
along the ids, which ends after so many.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import bson
from bson import MinKey
from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument
from pymongo.cursor import Cursor

from tidemill import indexes
from tidemill.documents import decode, read
from tidemill.errors import InvalidRequestError, Problem
from tidemill.model import Malformed, Status, Task, TaskId
from tidemill.store.collections import Tasks, translated
from tidemill.store.gauges import MANY
from tidemill.store.lean import brief, listed

WALK: Final = 10_000
"""So many tasks are examined at a time where no index leads to those that are asked for."""

LONG_WALK: Final = 50_000
LONG_SEC: Final = 0.3
"""A page that has found nothing yet goes on for so many tasks or so long: somebody waits for its answer."""

_BY_STATUS: Final = {"pending": indexes.CLAIM, "processing": indexes.LEASES, "failed": indexes.FAILED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A part of a listing: payloads, results and execution logs are left out.

    Attributes:
        tasks: May be fewer than were asked for, or none, although `next` says that there are more.
        next: The cursor of the page that follows; ``None`` after the last.
    """

    tasks: tuple[Task | Malformed, ...]
    next: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """The ids that were found, in order, and where to go on: behind this one, unless nothing is left."""

    ids: Sequence[TaskId]
    behind: RawBSONDocument | None


def page(
    tasks: Tasks,
    *,
    status: Status | None = None,
    queue: str | None = None,
    name: str | None = None,
    limit: int,
    after: str | None = None,
    monotonic: Callable[[], float] = time.monotonic,
) -> Page:
    """Return up to *limit* tasks that match, in descending order of their ids, from the cursor *after* on.

    What is enqueued between two pages is on neither; what is there all the time is on exactly one.

    Raises:
        InvalidRequestError: *after* is not a cursor.
    """
    bound = None if after is None else _bound(after)
    asked = {"status": status, "queue": queue, "name": name}
    where = {field: {"$eq": value} for field, value in asked.items() if value is not None}
    if status in _BY_STATUS and _are_few(tasks, status, queue=queue):
        look = _sorted(tasks, where, _BY_STATUS[status], limit=limit, bound=bound)
    else:
        look = _walked_far(tasks, where, limit=limit, bound=bound, monotonic=monotonic)
    found = _shown(tasks, look.ids, where)
    return Page(tasks=found, next=None if look.behind is None else _cursor(look.behind))


def _are_few(tasks: Tasks, status: Status, *, queue: str | None) -> bool:
    where: dict[str, Any] = {"status": status}
    if status == "pending" and queue is not None:
        where["queue"] = {"$eq": queue}
    with translated():
        return tasks.count_documents(where, hint=_BY_STATUS[status], limit=MANY + 1) <= MANY


def _sorted(tasks: Tasks, where: dict[str, Any], index: str, *, limit: int, bound: RawBSONDocument | None) -> _Look:
    # An expression compares ids of all types; {"$lt": id} sees only those of its own.
    below = {} if bound is None else {"$expr": {"$lt": ["$_id", {"$literal": _edge(bound)}]}}
    stages: list[dict[str, Any]] = [
        {"$match": where | below},
        {"$project": {"_id": 1}},
        {"$sort": {"_id": -1}},
        {"$limit": limit + 1},
    ]
    with translated():
        found = list(tasks.aggregate(stages, hint=index, batchSize=limit + 2, allowDiskUse=True))
    return _look(found, limit=limit, walked_to=None)


def _walked_far(
    tasks: Tasks, where: dict[str, Any], *, limit: int, bound: RawBSONDocument | None, monotonic: Callable[[], float]
) -> _Look:
    until = monotonic() + LONG_SEC
    look = _walked(tasks, where, limit=limit, bound=bound)
    for _ in range(1, LONG_WALK // WALK):
        if look.ids or look.behind is None or monotonic() >= until:
            break
        look = _walked(tasks, where, limit=limit, bound=look.behind)
    return look


def _walked(tasks: Tasks, where: dict[str, Any], *, limit: int, bound: RawBSONDocument | None) -> _Look:
    end = _end_of_walk(tasks, bound) if where else None
    found = _descending(tasks, where, bound).limit(limit + 1).batch_size(limit + 2)
    if end is not None:
        found = found.min([("_id", _edge(end))])
    with translated():
        return _look(list(found), limit=limit, walked_to=end)


def _end_of_walk(tasks: Tasks, bound: RawBSONDocument | None) -> RawBSONDocument | None:
    """Return the last id of a walk, or ``None`` where it comes to the end of the collection: one index key a step."""
    with translated():
        return next(iter(_descending(tasks, {}, bound).skip(WALK - 1).limit(1)), None)


def _descending(tasks: Tasks, where: dict[str, Any], bound: RawBSONDocument | None) -> Cursor[RawBSONDocument]:
    found: Cursor[RawBSONDocument] = tasks.find(where, {"_id": 1}, hint=indexes.BY_ID).sort("_id", -1)
    return found if bound is None else found.max([("_id", _edge(bound))])


def _look(found: Sequence[RawBSONDocument], *, limit: int, walked_to: RawBSONDocument | None) -> _Look:
    behind = found[limit - 1] if len(found) > limit else walked_to
    return _Look(ids=[decode(raw)["_id"] for raw in found[:limit]], behind=behind)


def _shown(tasks: Tasks, ids: Sequence[TaskId], where: dict[str, Any]) -> tuple[Task | Malformed, ...]:
    """Return those of *ids* that still match, without what makes them large."""
    if not ids:
        return ()
    stages: list[dict[str, Any]] = [{"$match": {"_id": {"$in": list(ids)}} | where}, {"$sort": {"_id": -1}}, *listed()]
    with translated():
        return tuple(brief(read(raw)) for raw in tasks.aggregate(stages, hint=indexes.BY_ID, batchSize=len(ids) + 1))


def _edge(raw: RawBSONDocument) -> Any:  # noqa: ANN401 - an id of any type
    """Return the id in *raw*; where that cannot be said, for it is no UTF-8, the nearest below it that can."""
    found = decode(raw)["_id"]
    if isinstance(found, str) and bson.encode({"_id": found}) != raw.raw:
        return found.partition("\N{REPLACEMENT CHARACTER}")[0] + "\x7f"
    return found


def _cursor(behind: RawBSONDocument) -> str:
    return base64.urlsafe_b64encode(behind.raw).decode().rstrip("=")


def _bound(cursor: str) -> RawBSONDocument:
    try:
        raw = RawBSONDocument(base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars="-_", validate=True))
        if list(decode(raw)) == ["_id"] and _edge(raw) != MinKey():  # nothing comes behind that one
            return raw
    except (BSONError, ValueError, IndexError):
        pass
    raise InvalidRequestError([Problem("cursor", "is none that a page has named")])
