"""The declaration of task types by executors, at their start and again and again."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from pymongo import UpdateOne
from pymongo.database import Database

from tidemill.control.task_types import read_fault
from tidemill.documents import TASK_TYPES, backoff_document
from tidemill.module_faults import Fault, describe_faults
from tidemill.registry import TaskType
from tidemill.store.connection import read_by_name, translate_errors, with_lenient_decoding

DECLARATION_INTERVAL_SEC: Final = 120.0
"""Seconds after which an executor declares its types again. Shorter than `UNKNOWN_NAME_GRACE`: a type that any running
executor has is never out of use."""


class Declarer:
    """Declares the types of one executor: at its start, and again every `DECLARATION_INTERVAL_SEC`.

    During a deployment executors of two releases run. The older ones bring back the types that only they have. After
    their end the next declaration of a newer one retires these types for good. The schema of a payload is that of the
    executor that started last.

    A type waits for another release while it is in no registry because of *faults*: its registration is refused, or
    *package* registered it before and one of its modules cannot be used now.
    """

    def __init__(
        self,
        db: Database[Any],
        types: Iterable[TaskType],
        *,
        package: str,
        release: str,
        faults: Iterable[Fault] = (),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.faults = tuple(faults)
        self._db = db
        self._declared = [_build_document(task_type) for task_type in types]
        self._started_at: datetime | None = None
        self._package = package
        self._release = release
        self._monotonic = monotonic
        self._next_at = -math.inf
        self._waiting: frozenset[str] = frozenset()

    def has_fault(self, name: str) -> bool:
        """Return True if the type *name* waits for a release without the faults of this one."""
        return name in self._waiting

    def declare_if_due(self, *, now: datetime) -> None:
        """Declare the types unless that was done lately. A failure waits for the next interval."""
        at = self._monotonic()
        if at < self._next_at:
            return
        self._next_at = at + DECLARATION_INTERVAL_SEC
        self._started_at = self._started_at or now
        origin = {"package": self._package, "release": self._release, "updated_at": now}
        written = _declare(self._db, self._declared, origin=origin, started_at=self._started_at, faults=self.faults)
        self._waiting = written.waiting


_MISSING: Final = object()
_NOT_IN_USE: Final = {"retired_at": "", "fault": ""}
"""Fields of a type that some or all executors do not have, as an operand of ``$unset``."""

_NEVER_IN_USE: Final = datetime(1970, 1, 1, tzinfo=UTC)
_UNDECLARED: Final = {"http": False, "timeout_sec": None, "max_retries": None, "backoff_policy": None}


def declare_types(
    db: Database[Any],
    types: Iterable[TaskType],
    *,
    package: str,
    release: str,
    now: datetime,
    faults: Sequence[Fault] = (),
) -> int:
    """Write the types that differ from the stored ones; return the number of writes. Safe to repeat.

    A type that *package* declared before and declares no longer is retired. No dead letter of it is redriven. New tasks
    of its name are accepted for `UNKNOWN_NAME_GRACE`, because a deployment may be in progress or be rolled back.

    With *faults* it is not retired if it may be missing because of one of them; the fault is written instead. A type
    that was never declared and whose registration is refused counts as retired for long.
    """
    origin = {"package": package, "release": release, "updated_at": now}
    declared = [_build_document(task_type) for task_type in types]
    return _declare(db, declared, origin=origin, started_at=now, faults=faults).writes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """Number of writes of a declaration, and the types that wait for another release."""

    writes: int
    waiting: frozenset[str] = frozenset()


def _declare(
    db: Database[Any],
    declared: Sequence[_Declared],
    *,
    origin: dict[str, Any],
    started_at: datetime,
    faults: Sequence[Fault],
) -> _Written:
    collection = with_lenient_decoding(db)[TASK_TYPES]
    package, now = origin["package"], origin["updated_at"]
    with translate_errors(TASK_TYPES):
        stored = read_by_name(collection, without="payload_schema")
        names = {fields["_id"] for fields, _ in declared}
        active = {name for name, fields in stored.items() if fields.get("retired_at") is None}
        waiting = _find_waiting(faults, stored, package=package, names=names)
        dropped = {name for name in active - names if stored[name].get("package") == package} - waiting.keys()
        writes = [
            write
            for fields, schema in declared
            for write in _build_writes(stored.get(fields["_id"]), fields, schema, origin=origin, started_at=started_at)
        ]
        retire = {"$set": {"retired_at": now}}
        writes += [UpdateOne({"_id": name, "package": package}, retire) for name in sorted(dropped)]
        writes += _build_fault_writes(waiting, stored, origin=origin)
        if writes:
            collection.bulk_write(writes, ordered=False)
    return _Written(writes=len(writes), waiting=frozenset(waiting))


def _build_writes(
    stored: Mapping[str, Any] | None,
    fields: Mapping[str, Any],
    schema: str | None,
    *,
    origin: Mapping[str, Any],
    started_at: datetime,
) -> Iterator[UpdateOne]:
    """Yield the writes that make *stored* the declaration of *fields*, with the *schema* of the payload."""
    if not _is_declared(stored, fields):
        change: dict[str, Any] = {"$set": {**fields, **origin}, "$unset": _NOT_IN_USE}
        if stored is None and schema is not None:
            change["$setOnInsert"] = _build_schema_fields(schema, started_at)
        yield UpdateOne({"_id": fields["_id"]}, change, upsert=True)
    if stored is not None and stored.get("schema_hash") != _hash_schema(schema):
        # An executor that started earlier, perhaps of an older release, changes nothing.
        is_older = {"_id": fields["_id"], "schema_at": {"$not": {"$gte": started_at}}}
        yield UpdateOne(is_older, {"$set": _build_schema_fields(schema, started_at)})


def _build_fault_writes(
    waiting: Mapping[str, str], stored: Mapping[str, Mapping[str, Any]], *, origin: Mapping[str, Any]
) -> Iterator[UpdateOne]:
    for name, problem in waiting.items():
        fault = {"problem": problem, "release": origin["release"], "at": origin["updated_at"]}
        if name not in stored:
            unused = {**_UNDECLARED, **origin, "retired_at": _NEVER_IN_USE}
            yield UpdateOne({"_id": name}, {"$set": {"fault": fault}, "$setOnInsert": unused}, upsert=True)
        elif stored[name].get("package") == origin["package"] and not _has_same_fault(stored[name], fault):
            yield UpdateOne({"_id": name, "package": origin["package"]}, {"$set": {"fault": fault}})


def _find_waiting(
    faults: Sequence[Fault], stored: Mapping[str, Mapping[str, Any]], *, package: str, names: Set[str]
) -> dict[str, str]:
    """Return the types that wait for another release, each with its fault.

    A module that failed may have registered any of the types of *package* that are not among *names*.
    """
    refused = {fault.name: str(fault) for fault in faults if fault.name is not None}
    unnamed = [fault for fault in faults if fault.name is None]
    if not unnamed:
        return refused
    own = {name for name, fields in stored.items() if fields.get("package") == package}
    return dict.fromkeys(sorted(own - names), describe_faults(unnamed)) | refused


def _has_same_fault(stored: Mapping[str, Any], fault: Mapping[str, Any]) -> bool:
    known = read_fault(stored)
    return known is not None and (known.problem, known.release) == (fault["problem"], fault["release"])


_Declared: TypeAlias = tuple[dict[str, Any], str | None]
"""Fields of a task type, and the schema of its payload."""


def _build_document(task_type: TaskType) -> _Declared:
    from tidemill.requests.payload_schema import write_schema  # noqa: PLC0415 - readers need none

    payload_type = task_type.signature.payload_type
    schema = None if payload_type is None else write_schema(payload_type.adapter.core_schema)
    return {
        "_id": task_type.name,
        "http": task_type.http,
        "timeout_sec": None if task_type.timeout is None else task_type.timeout.total_seconds(),
        "max_retries": None if task_type.retry is None else task_type.retry.max_retries,
        "backoff_policy": None if task_type.retry is None else backoff_document(task_type.retry.backoff),
    }, schema


def _build_schema_fields(schema: str | None, started_at: datetime) -> dict[str, Any]:
    return {"payload_schema": schema, "schema_hash": _hash_schema(schema), "schema_at": started_at}


def _hash_schema(schema: str | None) -> str | None:
    return None if schema is None else hashlib.sha256(schema.encode()).hexdigest()[:16]


def _is_declared(stored: Mapping[str, Any] | None, fields: Mapping[str, Any]) -> bool:
    if stored is None or stored.get("package") is None or any(stored.get(name) is not None for name in _NOT_IN_USE):
        return False
    return all(stored.get(name, _MISSING) == value for name, value in fields.items())
