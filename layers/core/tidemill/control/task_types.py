"""Task types as executors declare them: stored, declared again, cached for readers, and used for the retries."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias

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

if TYPE_CHECKING:
    from tidemill.requests.payload_schema import PayloadSchema

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

    def list_schema_versions(self, names: Iterable[str]) -> dict[str, str]:
        """Return the versions of the payload's schemas by name, for those of *names* that have one."""
        versions = {name: self.types.get(name, {}).get("schema_hash") for name in names}
        return {name: version for name, version in versions.items() if is_text(version)}

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
            types = read_by_name(self._db[TASK_TYPES], without="payload_schema")
            documents = read_by_name(self._db[QUEUES])
        declared = frozenset(name for name, queue in documents.items() if not queue.get("undeclared"))
        retired = {name: at for name, declared_type in types.items() if (at := _read_retired_at(declared_type))}
        queues = declared | {DEFAULT_QUEUE}
        self._known = Declarations(read_at=self._monotonic(), types=types, queues=queues, retired=retired)
        return self._known


class PayloadSchemas:
    """Schemas of payloads, each read once for each of its versions: they are large, and few callers need all."""

    def __init__(self, db: Database[Any]) -> None:
        self._types = with_lenient_decoding(db)[TASK_TYPES]
        self._known: dict[tuple[str, str], PayloadSchema | None] = {}

    def read(self, versions: Mapping[str, str]) -> dict[str, PayloadSchema]:
        """Return the schemas by the names of their types. A schema that this release cannot read is left out."""
        missing = [name for name, version in versions.items() if (name, version) not in self._known]
        if missing:
            from tidemill.requests.payload_schema import read_schema  # noqa: PLC0415 - most containers need none

            where = {"_id": {"$in": missing}}
            with translate_errors(TASK_TYPES):
                texts = {
                    document["_id"]: document.get("payload_schema")
                    for document in self._types.find(where, {"payload_schema": 1}, hint=indexes.BY_ID)
                }
            self._known |= {(name, versions[name]): read_schema(texts.get(name)) for name in missing}
        found = {name: self._known[name, version] for name, version in versions.items()}
        return {name: schema for name, schema in found.items() if schema is not None}


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
