"""What executors and operators declare: the task types that exist, and the queues."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from bson.codec_options import CodecOptions, DatetimeConversion
from pymongo import UpdateOne
from pymongo.collection import Collection
from pymongo.database import Database

from tidemill.documents import QUEUES, TASK_TYPES, backoff_document
from tidemill.errors import InvalidRequestError, Problem
from tidemill.model import Backoff, RetryPolicy, Task
from tidemill.registry import TaskType
from tidemill.requests import QUEUE_PATTERN
from tidemill.retry import resolved
from tidemill.store import majority, translated

DEFAULT_QUEUE: Final = "default"
CACHE_SEC: Final = 60.0
_FORGIVING: Final = CodecOptions[dict[str, Any]](
    datetime_conversion=DatetimeConversion.DATETIME_AUTO, unicode_decode_error_handler="replace"
)


def declare_types(db: Database[Any], types: Iterable[TaskType], *, release: str, now: datetime) -> int:
    """Write what differs from what is stored; return how many types were written. Safe to repeat."""
    collection = _forgiving(db)[TASK_TYPES]
    with translated(TASK_TYPES):
        stored = _by_name(collection)
        changed = [fields for fields in map(_type_document, types) if not _holds(stored.get(fields["_id"]), fields)]
        if changed:
            writes = [
                UpdateOne({"_id": one["_id"]}, {"$set": one | {"release": release, "updated_at": now}}, upsert=True)
                for one in changed
            ]
            collection.bulk_write(writes, ordered=False)
    return len(changed)


def declare_queue(db: Database[Any], name: str, *, now: datetime) -> None:
    """Make *name* a queue that HTTP may enqueue into. Safe to repeat.

    Raises:
        InvalidRequestError: It is no name for a queue.
    """
    if not re.fullmatch(QUEUE_PATTERN, name):
        raise InvalidRequestError([Problem("queue", "use up to 63 letters, digits, _ . and -")])
    with translated(QUEUES):
        majority(db)[QUEUES].update_one({"_id": name}, {"$setOnInsert": {"declared_at": now}}, upsert=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Snapshot:
    read_at: float
    types: Mapping[str, Mapping[str, Any]]
    queues: frozenset[str]


class Directory:
    """The declared types and queues, read at most once a minute, and once more before a name is refused."""

    def __init__(self, db: Database[Any], *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._db = _forgiving(db)
        self._monotonic = monotonic
        self._snapshot: _Snapshot | None = None

    def has_types(self) -> bool:
        """Tell whether any executor has ever registered something."""
        return bool(self._current().types)

    def task_type(self, name: str, *, for_http: bool = False) -> Mapping[str, Any] | None:
        """Return what was declared of the type *name*, or ``None``.

        *for_http*: what is not known as open to HTTP is read once more, too.
        """

        def is_known(known: _Snapshot) -> bool:
            return name in known.types and (not for_http or bool(known.types[name].get("http")))

        return self._current(until=is_known).types.get(name)

    def is_declared(self, queue: str) -> bool:
        """Tell whether *queue* is a declared one."""
        return queue == DEFAULT_QUEUE or queue in self._current(until=lambda known: queue in known.queues).queues

    def _current(self, until: Callable[[_Snapshot], bool] = lambda _: True) -> _Snapshot:
        known = self._snapshot
        if known is None or self._monotonic() - known.read_at > CACHE_SEC or not until(known):
            known = self._snapshot = self._read()
        return known

    def _read(self) -> _Snapshot:
        with translated(TASK_TYPES):
            types, queues = _by_name(self._db[TASK_TYPES]), frozenset(_by_name(self._db[QUEUES]))
        return _Snapshot(read_at=self._monotonic(), types=types, queues=queues)


def policy_of(task: Task, directory: Directory, *, deployment: RetryPolicy) -> RetryPolicy:
    """Return how *task* is retried, by what its executor declared; no task code is imported."""
    declared = directory.task_type(task.name) or {}
    return resolved(task, registered=_declared_policy(declared, deployment), deployment=deployment)


def _forgiving(db: Database[Any]) -> Database[Any]:
    """Return *db* with reads that cannot raise: people edit these collections, and one value must not stop all."""
    return majority(db).with_options(codec_options=_FORGIVING)


def _by_name(collection: Collection[Any]) -> dict[str, Mapping[str, Any]]:
    return {one["_id"]: one for one in collection.find({}) if isinstance(one["_id"], str)}


def _declared_policy(declared: Mapping[str, Any], deployment: RetryPolicy) -> RetryPolicy:
    retries, backoff = declared.get("max_retries"), declared.get("backoff_policy")
    try:
        return RetryPolicy(
            max_retries=deployment.max_retries if retries is None else int(retries),
            backoff=deployment.backoff if backoff is None else Backoff(**backoff),
        )
    except (TypeError, ValueError, OverflowError):  # edited by hand, or written by a later release
        return deployment


def _type_document(one: TaskType) -> dict[str, Any]:
    return {
        "_id": one.name,
        "http": one.http,
        "timeout_sec": None if one.timeout is None else one.timeout.total_seconds(),
        "max_retries": None if one.retry is None else one.retry.max_retries,
        "backoff_policy": None if one.retry is None else backoff_document(one.retry.backoff),
    }


def _holds(stored: Mapping[str, Any] | None, fields: Mapping[str, Any]) -> bool:
    return stored is not None and all(stored.get(name, _MISSING) == value for name, value in fields.items())


_MISSING: Final = object()
