"""Pages of living tasks, the newest id first, with a bounded cost and size; and the projections for lists of tasks.

A page has one of two plans. If few tasks have the status, the server reads them by an index of the status and sorts
them. Otherwise the page walks along the ids and ends after a fixed number of tasks.

Both plans yield ids in the same order, and a cursor is the last id that was examined. The plan may therefore change
from page to page.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import bson
from bson import MinKey
from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument
from pymongo.cursor import Cursor

from tidemill import indexes
from tidemill.documents import decode, read_task
from tidemill.errors import InvalidRequestError, Problem
from tidemill.model import Malformed, Status, Task, TaskId
from tidemill.policy.failures import truncate_text
from tidemill.store.connection import Tasks, translate_errors
from tidemill.store.counts import COUNT_LIMIT

MAX_FIELD_BYTES: Final = 2 * 1024
MAX_ERROR_BYTES: Final = 16 * 1024
"""Bytes of a field, and of the error, of a listed task. A larger value was written by hand; a list shows ``None``."""

MAX_MESSAGE_CHARS: Final = 500
"""Characters of an error message in a list. A read of the task itself returns the whole message."""

TASKS_PER_WALK: Final = 10_000
"""Tasks examined by one walk, used where no index leads to the matching tasks."""

MAX_TASKS_PER_PAGE: Final = 50_000
PAGE_BUDGET_SEC: Final = 0.3
"""Tasks and seconds after which a page ends, even if it has found nothing: the caller waits for its answer."""

_BY_STATUS: Final = {"pending": indexes.CLAIM, "processing": indexes.LEASES, "failed": indexes.FAILED}

_LISTED_FIELDS: Final = (
    "name", "queue", "status", "lane", "priority", "due_at", "next_retry_at", "attempts", "max_retries",
    "backoff_policy", "timeout_sec", "expires_at", "created_at", "updated_at", "finished_at", "lease", "settled_by",
    "cancel_requested_at", "reason", "crashes", "redrives", "idempotency_key", "trace",
)  # fmt: skip
_IS_OBJECT: Final = {"$eq": [{"$type": "$payload"}, "object"]}
_IS_MISSING: Final = {"$eq": [{"$type": "$payload"}, "missing"]}

WITHOUT_PAYLOAD: Final[dict[str, Any]] = {
    "$set": {
        "payload": {
            "$switch": {
                "branches": [
                    {"case": _IS_OBJECT, "then": {"$literal": {}}},
                    {"case": _IS_MISSING, "then": "$$REMOVE"},
                ],
                "default": None,
            }
        },
        "result": None,
    }
}
"""Last stage of a read without payloads and results.

An object becomes ``{}``, a payload of another type becomes ``null``, and a missing payload stays missing. So a
malformed task is still malformed. Five hundred documents of the maximum size exceed the memory of a function.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageLimits:
    """Maximum numbers of tasks behind one page.

    Attributes:
        max_sorted: Tasks of a status that the server may sort for a page; of more, a page walks along the ids.
        max_per_walk: Tasks that one walk examines.
        max_per_page: Tasks that the walks of a page examine, even if they have found nothing.
    """

    max_sorted: int = COUNT_LIMIT
    max_per_walk: int = TASKS_PER_WALK
    max_per_page: int = MAX_TASKS_PER_PAGE


DEFAULT_LIMITS: Final = PageLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Page of a listing, without payloads, results and execution logs.

    Attributes:
        tasks: The tasks. A page may have fewer tasks than its limit, or none, even if `next` is set.
        next: The cursor of the next page; ``None`` on the last page.
    """

    tasks: tuple[Task | Malformed, ...]
    next: str | None


def read_page(
    tasks: Tasks,
    *,
    status: Status | None = None,
    queue: str | None = None,
    name: str | None = None,
    limit: int,
    after: str | None = None,
    limits: PageLimits = DEFAULT_LIMITS,
    monotonic: Callable[[], float] = time.monotonic,
) -> Page:
    """Return up to *limit* matching tasks behind the cursor *after*, in descending order of their ids.

    A task that exists all the time is on exactly one page. A task that is enqueued between two pages is on neither.

    Raises:
        InvalidRequestError: *after* is not a cursor.
    """
    bound = None if after is None else _decode_cursor(after)
    criteria = {"status": status, "queue": queue, "name": name}
    where = {field: {"$eq": value} for field, value in criteria.items() if value is not None}
    if status in _BY_STATUS and _has_few(tasks, status, queue=queue, most=limits.max_sorted):
        look = _sort_by_id(tasks, where, _BY_STATUS[status], limit=limit, bound=bound)
    else:
        look = _walk_far(tasks, where, limit=limit, bound=bound, limits=limits, monotonic=monotonic)
    found = _read_listed(tasks, look.ids, where)
    return Page(tasks=found, next=None if look.behind is None else _encode_cursor(look.behind))


def build_list_stages(*more: str) -> tuple[dict[str, Any], ...]:
    """Return the last stages of a read of tasks for a list, without execution logs. *more* are additional fields."""
    small = {field: _null_if_larger(field, MAX_FIELD_BYTES) for field in (*_LISTED_FIELDS, *more)}
    return WITHOUT_PAYLOAD, {"$project": {"payload": 1, "error": _null_if_larger("error", MAX_ERROR_BYTES), **small}}


def shorten_error(task: Task | Malformed) -> Task | Malformed:
    """Return *task* with its error message cut to `MAX_MESSAGE_CHARS` characters."""
    if isinstance(task, Malformed) or task.error is None:
        return task
    return replace(task, error=replace(task.error, message=truncate_text(task.error.message, MAX_MESSAGE_CHARS)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """Ids that were found, in order. The next page starts behind ``behind``; ``None``: nothing is left."""

    ids: Sequence[TaskId]
    behind: RawBSONDocument | None


def _has_few(tasks: Tasks, status: Status, *, queue: str | None, most: int) -> bool:
    where: dict[str, Any] = {"status": status}
    if status == "pending" and queue is not None:
        where["queue"] = {"$eq": queue}
    with translate_errors():
        return tasks.count_documents(where, hint=_BY_STATUS[status], limit=most + 1) <= most


def _sort_by_id(tasks: Tasks, where: dict[str, Any], index: str, *, limit: int, bound: RawBSONDocument | None) -> _Look:
    # An expression compares ids of all types; {"$lt": id} matches only ids of the same type.
    below = {} if bound is None else {"$expr": {"$lt": ["$_id", {"$literal": _decode_bound(bound)}]}}
    stages: list[dict[str, Any]] = [
        {"$match": where | below},
        {"$project": {"_id": 1}},
        {"$sort": {"_id": -1}},
        {"$limit": limit + 1},
    ]
    with translate_errors():
        found = list(tasks.aggregate(stages, hint=index, batchSize=limit + 2, allowDiskUse=True))
    return _make_look(found, limit=limit, walked_to=None)


def _walk_far(
    tasks: Tasks,
    where: dict[str, Any],
    *,
    limit: int,
    bound: RawBSONDocument | None,
    limits: PageLimits,
    monotonic: Callable[[], float],
) -> _Look:
    until = monotonic() + PAGE_BUDGET_SEC
    look = _walk(tasks, where, limit=limit, bound=bound, length=limits.max_per_walk)
    for _ in range(1, limits.max_per_page // limits.max_per_walk):
        if look.ids or look.behind is None or monotonic() >= until:
            break
        look = _walk(tasks, where, limit=limit, bound=look.behind, length=limits.max_per_walk)
    return look


def _walk(tasks: Tasks, where: dict[str, Any], *, limit: int, bound: RawBSONDocument | None, length: int) -> _Look:
    end = _find_end_of_walk(tasks, bound, length=length) if where else None
    found = _find_descending(tasks, where, bound).limit(limit + 1).batch_size(limit + 2)
    if end is not None:
        found = found.min([("_id", _decode_bound(end))])
    with translate_errors():
        return _make_look(list(found), limit=limit, walked_to=end)


def _find_end_of_walk(tasks: Tasks, bound: RawBSONDocument | None, *, length: int) -> RawBSONDocument | None:
    """Return the last id of a walk, or ``None`` if the collection ends before it. It reads one index key a task."""
    with translate_errors():
        return next(iter(_find_descending(tasks, {}, bound).skip(length - 1).limit(1)), None)


def _find_descending(tasks: Tasks, where: dict[str, Any], bound: RawBSONDocument | None) -> Cursor[RawBSONDocument]:
    found: Cursor[RawBSONDocument] = tasks.find(where, {"_id": 1}, hint=indexes.BY_ID).sort("_id", -1)
    return found if bound is None else found.max([("_id", _decode_bound(bound))])


def _make_look(found: Sequence[RawBSONDocument], *, limit: int, walked_to: RawBSONDocument | None) -> _Look:
    behind = found[limit - 1] if len(found) > limit else walked_to
    return _Look(ids=[decode(raw)["_id"] for raw in found[:limit]], behind=behind)


def _read_listed(tasks: Tasks, ids: Sequence[TaskId], where: dict[str, Any]) -> tuple[Task | Malformed, ...]:
    """Return the tasks of *ids* that still match, without their large fields."""
    if not ids:
        return ()
    stages: list[dict[str, Any]] = [
        {"$match": {"_id": {"$in": list(ids)}} | where},
        {"$sort": {"_id": -1}},
        *build_list_stages(),
    ]
    with translate_errors():
        return tuple(
            shorten_error(read_task(raw)) for raw in tasks.aggregate(stages, hint=indexes.BY_ID, batchSize=len(ids) + 1)
        )


def _null_if_larger(field: str, limit: int) -> dict[str, Any]:
    is_small = {"$lte": [{"$bsonSize": {"of": f"${field}"}}, limit]}
    return {"$cond": [is_small, f"${field}", None]}


def _decode_bound(raw: RawBSONDocument) -> Any:  # noqa: ANN401 - an id of any type
    """Return the id in *raw*; for text that is not UTF-8, the nearest lower id that can be encoded."""
    task_id = decode(raw)["_id"]
    if isinstance(task_id, str) and bson.encode({"_id": task_id}) != raw.raw:
        return task_id.partition("\N{REPLACEMENT CHARACTER}")[0] + "\x7f"
    return task_id


def _encode_cursor(behind: RawBSONDocument) -> str:
    return base64.urlsafe_b64encode(behind.raw).decode().rstrip("=")


def _decode_cursor(cursor: str) -> RawBSONDocument:
    try:
        raw = RawBSONDocument(base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars="-_", validate=True))
        if list(decode(raw)) == ["_id"] and _decode_bound(raw) != MinKey():  # no id is lower than MinKey
            return raw
    except (BSONError, ValueError, IndexError):
        pass
    raise InvalidRequestError([Problem("cursor", 'invalid; pass the "next" value of the previous page')])
