"""Task types as executors declare them: stored, declared again, cached for readers, and used for the retries."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from pymongo import UpdateOne
from pymongo.database import Database

from tidemill import indexes
from tidemill.documents import QUEUES, TASK_TYPES, backoff_document, is_text
from tidemill.model import Backoff, RetryPolicy, Task
from tidemill.module_faults import Fault, describe_faults
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

    def find_fault(self, name: str) -> str | None:
        """Return the fault because of which executors refused to register *name*, or ``None``."""
        fault = _read_fault(self.types.get(name, {}))
        return None if fault is None else fault.problem

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
        self._types = tuple(types)
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
        written = _write_declarations(
            self._db, self._types, package=self._package, release=self._release, faults=self.faults, now=now
        )
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
    return _write_declarations(db, types, package=package, release=release, faults=faults, now=now).writes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """Number of writes of a declaration, and the types that wait for another release."""

    writes: int
    waiting: frozenset[str] = frozenset()


def _write_declarations(
    db: Database[Any], types: Iterable[TaskType], *, package: str, release: str, faults: Sequence[Fault], now: datetime
) -> _Written:
    collection = with_lenient_decoding(db)[TASK_TYPES]
    declared = [_build_document(task_type) for task_type in types]
    with translate_errors(TASK_TYPES):
        stored = read_by_name(collection)
        names = {fields["_id"] for fields in declared}
        active = {name for name, fields in stored.items() if fields.get("retired_at") is None}
        waiting = _find_waiting(faults, stored, package=package, names=names)
        dropped = {name for name in active - names if stored[name].get("package") == package} - waiting.keys()
        origin = {"package": package, "release": release, "updated_at": now}
        writes = [
            UpdateOne({"_id": fields["_id"]}, {"$set": fields | origin, "$unset": _NOT_IN_USE}, upsert=True)
            for fields in declared
            if not _is_declared(stored.get(fields["_id"]), fields)
        ]
        retire = {"$set": {"retired_at": now}}
        writes += [UpdateOne({"_id": name, "package": package}, retire) for name in sorted(dropped)]
        for name, problem in waiting.items():
            fault = {"problem": problem, "release": release, "at": now}
            if name not in stored:
                unused = _UNDECLARED | origin | {"retired_at": _NEVER_IN_USE}
                writes.append(UpdateOne({"_id": name}, {"$set": {"fault": fault}, "$setOnInsert": unused}, upsert=True))
            elif stored[name].get("package") == package and not _has_same_fault(stored[name], fault):
                writes.append(UpdateOne({"_id": name, "package": package}, {"$set": {"fault": fault}}))
        if writes:
            collection.bulk_write(writes, ordered=False)
    return _Written(writes=len(writes), waiting=frozenset(waiting))


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
    known = _read_fault(stored)
    return known is not None and (known.problem, known.release) == (fault["problem"], fault["release"])


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrationFault:
    """Fault because of which the executors of *release* cannot run a type, known since *at*."""

    problem: str
    release: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Registrations:
    """Names of the registered types, without the retired ones, and the faults of types by their names."""

    names: frozenset[str]
    faults: Mapping[str, RegistrationFault]


def read_registrations(db: Database[Any]) -> Registrations:
    """Return the names and the faults of the types, read now."""
    wanted = {"$or": [{"retired_at": None}, {"fault": {"$exists": True}}]}
    fields = {"retired_at": 1, "fault": 1}
    with translate_errors(TASK_TYPES):
        found = [
            document
            for document in with_lenient_decoding(db)[TASK_TYPES].find(wanted, fields, hint=indexes.BY_ID)
            if is_text(document["_id"])
        ]
    faults = {document["_id"]: _read_fault(document) for document in found}
    return Registrations(
        names=frozenset(document["_id"] for document in found if document.get("retired_at") is None),
        faults={name: fault for name, fault in faults.items() if fault is not None},
    )


def list_registered_names(db: Database[Any]) -> frozenset[str]:
    """Return the names of the registered types, read now, without the retired ones."""
    with translate_errors(TASK_TYPES):
        found = with_lenient_decoding(db)[TASK_TYPES].find({"retired_at": None}, {"_id": 1}, hint=indexes.BY_ID)
        return frozenset(document["_id"] for document in found if is_text(document["_id"]))


def resolve_task_policy(task: Task, directory: Directory, *, deployment: RetryPolicy) -> RetryPolicy:
    """Return the retry policy of *task* from the declaration of its type; no task code is imported."""
    declared = directory.cached_task_type(task.name) or {}
    return resolve_policy(task, registered=_read_policy(declared, deployment), deployment=deployment)


def _read_fault(declared: Mapping[str, Any]) -> RegistrationFault | None:
    match declared.get("fault"):
        case {"problem": str(problem), "release": str(release), "at": datetime() as at}:
            return RegistrationFault(problem=problem, release=release, at=at)
        case _:
            return None


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
    if stored is None or stored.get("package") is None or any(stored.get(name) is not None for name in _NOT_IN_USE):
        return False
    return all(stored.get(name, _MISSING) == value for name, value in fields.items())
