"""Task types as executors have declared them: cached for readers, and used for the retries."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from pymongo.database import Database

from tidemill import indexes
from tidemill.documents import QUEUES, TASK_TYPES, is_text
from tidemill.model import Backoff, RetryPolicy, Task
from tidemill.policy.retry import resolve_policy
from tidemill.policy.scheduling import UNKNOWN_NAME_GRACE
from tidemill.store.connection import read_by_name, translate_errors, with_lenient_decoding

if TYPE_CHECKING:
    from tidemill.requests.payload_schema import PayloadSchema

DEFAULT_QUEUE: Final = "default"
DECLARATIONS_CACHE_SEC: Final = 60.0
"""Age in seconds up to which the declarations are used without reading them again."""

UNKNOWN_TYPE_CACHE_SEC: Final = 1.0
"""Seconds between two reads because of an unknown type, for callers that ask often."""


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
        fault = read_fault(self.types.get(name, {}))
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
    faults = {document["_id"]: read_fault(document) for document in found}
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


def read_fault(declared: Mapping[str, Any]) -> RegistrationFault | None:
    """Return the fault in the declaration of a type, or ``None``."""
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
