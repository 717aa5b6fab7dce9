"""Task types as executors declare them: stored, declared again, cached for readers, and used for the retries."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from pymongo import UpdateOne
from pymongo.database import Database

from tidemill import indexes
from tidemill.documents import QUEUES, TASK_TYPES, backoff_document, is_text
from tidemill.model import Backoff, RetryPolicy, Task
from tidemill.policy.retry import resolve_policy
from tidemill.policy.scheduling import UNKNOWN_NAME_GRACE
from tidemill.registry import TaskType
from tidemill.store.connection import read_by_name, translate_errors, with_lenient_decoding

DEFAULT_QUEUE: Final = "default"
DECLARATIONS_CACHE_SEC: Final = 60.0
"""Age in seconds up to which the declarations are used without reading them again."""

UNKNOWN_TYPE_CACHE_SEC: Final = 1.0
"""Seconds between two reads because of an unknown type, for callers that ask often."""

DECLARATION_INTERVAL_SEC: Final = 120.0
"""Seconds after which an executor declares its types again. Shorter than `UNKNOWN_NAME_GRACE`: a type that any running
executor has is never out of use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Declarations:
    """Declared types and queues, as of the last read; *retired* has the times at which types were retired."""

    read_at: float
    types: Mapping[str, Mapping[str, Any]]
    queues: frozenset[str]
    retired: Mapping[str, datetime] = field(default_factory=dict)

    def is_known(self, name: str, *, now: datetime) -> bool:
        """Return True if the type *name* is declared, or was retired less than `UNKNOWN_NAME_GRACE` ago.

        A deployment may be in progress or be rolled back, so a retired type counts for a while.
        """
        retired_at = self.retired.get(name)
        return name in self.types and (retired_at is None or now - retired_at < UNKNOWN_NAME_GRACE)

    def is_open(self, name: str) -> bool:
        """Return whether the type *name* is open to HTTP."""
        return bool(self.types.get(name, {}).get("http"))


class Directory:
    """The declared types and queues, read at most once a minute, and once more before a name is refused.

    A read without names is not repeated. For a minute after the first type was registered, `Queue` may still accept any
    name.
    """

    def __init__(self, db: Database[Any], *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._db = with_lenient_decoding(db)
        self._monotonic = monotonic
        self._known: Declarations | None = None

    def cached_task_type(self, name: str) -> Mapping[str, Any] | None:
        """Return the declaration of the type *name*, or ``None``; read again for an unknown type once a second."""
        if self._known is not None and self._monotonic() - self._known.read_at < UNKNOWN_TYPE_CACHE_SEC:
            return self._known.types.get(name)
        return self.read_declarations(names=[name]).types.get(name)

    def read_declarations(
        self,
        *,
        names: Iterable[str] = (),
        queues: Iterable[str] = (),
        for_http: bool = False,
        now: datetime | None = None,
    ) -> Declarations:
        """Return the declarations. If any of *names* or *queues* is missing, read them once more.

        With *for_http* a type that is not known to be open to HTTP counts as missing. With *now* a type that is out of
        use counts as missing, too.
        """
        known = self._known
        if known is None or self._monotonic() - known.read_at > DECLARATIONS_CACHE_SEC:
            return self._read()
        is_missing = any(
            not (known.is_open(name) if for_http else name in known.types)
            or (now is not None and not known.is_known(name, now=now))
            for name in names
        )
        return self._read() if is_missing or not known.queues.issuperset(queues) else known

    def _read(self) -> Declarations:
        with translate_errors(TASK_TYPES):
            types, documents = read_by_name(self._db[TASK_TYPES]), read_by_name(self._db[QUEUES])
        declared = frozenset(name for name, queue in documents.items() if not queue.get("undeclared"))
        retired = {name: at for name, declared_type in types.items() if (at := _read_retired_at(declared_type))}
        queues = declared | {DEFAULT_QUEUE}
        self._known = Declarations(read_at=self._monotonic(), types=types, queues=queues, retired=retired)
        return self._known


class Declarer:
    """Declares the types of one executor: at its start, and again every `DECLARATION_INTERVAL_SEC`.

    During a deployment executors of two releases run. The older ones bring back the types that only they have. After
    their end the next declaration of a newer one retires these types for good.
    """

    def __init__(
        self,
        db: Database[Any],
        types: Iterable[TaskType],
        *,
        package: str,
        release: str,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._db = db
        self._types = tuple(types)
        self._package = package
        self._release = release
        self._monotonic = monotonic
        self._next_at = -math.inf

    def declare_if_due(self, *, now: datetime) -> None:
        """Declare the types unless that was done lately. A failure waits for the next interval."""
        at = self._monotonic()
        if at < self._next_at:
            return
        self._next_at = at + DECLARATION_INTERVAL_SEC
        declare_types(self._db, self._types, package=self._package, release=self._release, now=now)


_MISSING: Final = object()


def declare_types(db: Database[Any], types: Iterable[TaskType], *, package: str, release: str, now: datetime) -> int:
    """Write the types that differ from the stored ones; return the number of writes. Safe to repeat.

    A type that *package* declared before and declares no longer is retired. No dead letter of it is redriven. New tasks
    of its name are accepted for `UNKNOWN_NAME_GRACE`, because a deployment may be in progress or be rolled back.
    """
    collection = with_lenient_decoding(db)[TASK_TYPES]
    declared = [_build_document(task_type) for task_type in types]
    with translate_errors(TASK_TYPES):
        stored = read_by_name(collection)
        names = {fields["_id"] for fields in declared}
        active = {name for name, fields in stored.items() if fields.get("retired_at") is None}
        dropped = {name for name in active - names if stored[name].get("package") == package}
        origin = {"package": package, "release": release, "updated_at": now}
        writes = [
            UpdateOne({"_id": fields["_id"]}, {"$set": fields | origin, "$unset": {"retired_at": ""}}, upsert=True)
            for fields in declared
            if not _is_declared(stored.get(fields["_id"]), fields)
        ]
        retire = {"$set": {"retired_at": now}}
        writes += [UpdateOne({"_id": name, "package": package}, retire) for name in sorted(dropped)]
        if writes:
            collection.bulk_write(writes, ordered=False)
    return len(writes)


def list_registered_names(db: Database[Any]) -> frozenset[str]:
    """Return the names of the registered types, read now, without the retired ones."""
    with translate_errors(TASK_TYPES):
        found = with_lenient_decoding(db)[TASK_TYPES].find({"retired_at": None}, {"_id": 1}, hint=indexes.BY_ID)
        return frozenset(document["_id"] for document in found if is_text(document["_id"]))


def resolve_task_policy(task: Task, directory: Directory, *, deployment: RetryPolicy) -> RetryPolicy:
    """Return the retry policy of *task* from the declaration of its type; no task code is imported."""
    declared = directory.cached_task_type(task.name) or {}
    return resolve_policy(task, registered=_read_policy(declared, deployment), deployment=deployment)


def _read_retired_at(declared: Mapping[str, Any]) -> datetime | None:
    retired_at = declared.get("retired_at")
    return retired_at if isinstance(retired_at, datetime) else None


def _read_policy(declared: Mapping[str, Any], deployment: RetryPolicy) -> RetryPolicy:
    retries, backoff = declared.get("max_retries"), declared.get("backoff_policy")
    try:
        return RetryPolicy(
            max_retries=deployment.max_retries if retries is None else int(retries),
            backoff=deployment.backoff if backoff is None else Backoff(**backoff),
        )
    except (TypeError, ValueError, OverflowError):  # edited by hand, or written by a later release
        return deployment


def _build_document(task_type: TaskType) -> dict[str, Any]:
    return {
        "_id": task_type.name,
        "http": task_type.http,
        "timeout_sec": None if task_type.timeout is None else task_type.timeout.total_seconds(),
        "max_retries": None if task_type.retry is None else task_type.retry.max_retries,
        "backoff_policy": None if task_type.retry is None else backoff_document(task_type.retry.backoff),
    }


def _is_declared(stored: Mapping[str, Any] | None, fields: Mapping[str, Any]) -> bool:
    if stored is None or stored.get("package") is None or stored.get("retired_at") is not None:
        return False
    return all(stored.get(name, _MISSING) == value for name, value in fields.items())
