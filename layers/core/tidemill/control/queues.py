"""Queues and their options: names, declaration, reading and changing; the load of queues for their pressure options."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any, Final, TypeVar

from pymongo import ReturnDocument
from pymongo.collection import Collection
from pymongo.database import Database

from tidemill.control.task_types import DEFAULT_QUEUE
from tidemill.documents import QUEUES, is_text
from tidemill.errors import InvalidRequestError, Problem, TidemillError
from tidemill.model import EARLIEST, Adaptive, Budget, Pressure, QueueOptions
from tidemill.policy.retry import NO_LOAD, Load
from tidemill.requests.tasks import QUEUE_PATTERN
from tidemill.store import counts, scan
from tidemill.store.connection import Tasks, open_tasks, read_by_name, translate_errors, with_lenient_decoding
from tidemill.store.stats import count_retried_in_minute, start_of_minute
from tidemill.text import did_you_mean

MAX_COMPARED_NAME: Final = 1000
"""Characters of a queue's name that are compared. A name in a document edited by hand may be longer."""


def list_configured_queues(db: Database[Any]) -> list[str]:
    """Return the names of the queues that are declared or have options of their own."""
    with translate_errors(QUEUES):
        return sorted(read_by_name(with_lenient_decoding(db)[QUEUES]))


def list_queues(
    db: Database[Any], *, listed: Iterable[str] | None = None, unpending: Iterable[str] | None = None
) -> list[str]:
    """Return the names of all queues that are listed or have pending, leased or failed tasks, in order.

    *listed*, and the queues *unpending* of leased and failed tasks, were read by the caller; they are not read again.
    """
    tasks = open_tasks(db)
    pending = [name for name in scan.list_queues(tasks) if is_text(name)]
    listed = list_configured_queues(db) if listed is None else listed
    if unpending is None:
        unpending = {**counts.count_leased_by_queue(tasks).by_queue, **counts.count_failed_by_queue(tasks).by_queue}
    return sorted({DEFAULT_QUEUE, *listed, *pending, *unpending})


def describe_unknown_queue(queue: str, known: Iterable[str]) -> str:
    """Return the sentence that *queue* does not exist, with the most similar of the *known* names."""
    hint = did_you_mean(queue, known) or ": it is not declared and has no pending, processing or failed tasks"
    return f"there is no queue {queue}{hint}"


OPTIONS_CACHE_SEC: Final = 5.0
"""Seconds after which a change of a queue's options applies to running executors, at the latest."""

_T = TypeVar("_T")


def load_options(db: Database[Any], name: str) -> QueueOptions | None:
    """Return the options of the queue *name*, or ``None`` if it is not declared and has none of its own."""
    with translate_errors(QUEUES):
        document = with_lenient_decoding(db)[QUEUES].find_one({"_id": name})
    if document is None:
        return QueueOptions() if name == DEFAULT_QUEUE else None
    return read_options(document)


class OptionsReader:
    """The options of all queues, for executors and reclaim: read again after 5 s."""

    def __init__(self, db: Database[Any], *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._db = with_lenient_decoding(db)
        self._monotonic = monotonic
        self._options: dict[str, QueueOptions] = {}
        self._read_at: float | None = None

    def options(self, queue: str) -> QueueOptions:
        """Return the options of *queue*; a queue without a document has the defaults.

        Raises:
            UnavailableError: MongoDB did not answer.
        """
        return self.all_options().get(queue, QueueOptions())

    def all_options(self) -> Mapping[str, QueueOptions]:
        """Return the options of each queue that has a document; cached and raising as `options`."""
        if self._read_at is None or self._monotonic() - self._read_at > OPTIONS_CACHE_SEC:
            with translate_errors(QUEUES):
                documents = read_by_name(self._db[QUEUES])
            self._options = {name: read_options(document) for name, document in documents.items()}
            self._read_at = self._monotonic()
        return self._options


def read_options(document: Mapping[str, Any]) -> QueueOptions:
    """Return the options of a document that may be edited by hand: an invalid field is ignored."""
    pressure = document.get("pressure")
    stored = pressure if isinstance(pressure, Mapping) else {}
    options = QueueOptions(
        paused=bool(document.get("paused")),
        pressure=Pressure(
            adaptive=_build_valid(Adaptive, stored.get("adaptive")), budget=_build_valid(Budget, stored.get("budget"))
        ),
    )
    for name in ("selection", "retry_share", "max_in_flight_retries"):
        change = {name: _to_whole_number(document.get(name))}
        with suppress(ValueError):
            options = replace(options, **change)
    return options


def _build_valid(kind: type[_T], fields: Any) -> _T | None:  # noqa: ANN401 - any value of the document
    if not isinstance(fields, Mapping):
        return None
    try:
        return kind(**{name: _to_whole_number(value) for name, value in fields.items()})
    except (TypeError, ValueError):
        return None


def _to_whole_number(value: Any) -> Any:  # noqa: ANN401 - shells write 3 as 3.0
    return int(value) if isinstance(value, float) and value.is_integer() else value


_PLAIN_FIELDS: Final = ("paused", "selection", "retry_share", "max_in_flight_retries")
_PRESSURE_KINDS: Final[Mapping[str, type[Adaptive | Budget]]] = {"adaptive": Adaptive, "budget": Budget}
_INVALID_NAME: Final = "use up to 63 letters, digits, _ . and -"


def declare_queue(db: Database[Any], name: str, *, now: datetime) -> QueueOptions:
    """Declare the queue *name*, which opens it to HTTP, and return its options. Safe to repeat.

    Raises:
        InvalidRequestError: *name* is not a valid name of a queue.
    """
    if not re.fullmatch(QUEUE_PATTERN, name):
        raise InvalidRequestError([Problem("queue", _INVALID_NAME)])
    update = {"$setOnInsert": {"declared_at": now}, "$unset": {"undeclared": ""}}
    with translate_errors(QUEUES):
        document: dict[str, Any] | None = with_lenient_decoding(db)[QUEUES].find_one_and_update(
            {"_id": name}, update, upsert=True, return_document=ReturnDocument.AFTER
        )
    return read_options(document or {})


def change_queue(
    db: Database[Any], name: str, options: QueueOptions, *, now: datetime, was: QueueOptions | None = None
) -> QueueOptions:
    """Store options of the queue *name*, and return all of its options.

    This does not declare the queue, so it does not open it to HTTP. Only the numbers that differ from *was* are
    written, so that two concurrent changes of different numbers do not undo each other.

    Raises:
        InvalidRequestError: The queue does not exist: it is not declared and has no tasks.
    """
    change = _Change(wanted=options, was=was)
    collection = with_lenient_decoding(db)[QUEUES]
    document = _update_document(collection, name, change.fields(), now=now)
    if document is None:
        _insert_document(db, name, now=now)
        document = _update_document(collection, name, change.fields(), now=now) or {}
    if change.is_lost_in(read_options(document)):
        # Beside the written numbers stand invalid ones, edited by hand: replace the whole object.
        document = _update_document(collection, name, change.fields(replaces=True), now=now) or {}
    return read_options(document)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """Change of a queue's options, as expressions of an update."""

    wanted: QueueOptions
    was: QueueOptions | None

    def fields(self, *, replaces: bool = False) -> dict[str, Any]:
        """Return all fields that change. Kinds of pressure change number by number, or *replaces* sets all numbers."""
        plain = {name: {"$literal": getattr(self.wanted, name)} for name in _PLAIN_FIELDS if self._is_changed(name)}
        kinds = {kind: self._build_kind(kind, replaces=replaces) for kind in self._find_changed_kinds()}
        return plain | ({"pressure": {"$mergeObjects": [_object_or_empty("$pressure"), kinds]}} if kinds else {})

    def is_lost_in(self, options: QueueOptions) -> bool:
        """Return whether a kind of pressure was switched on and is off in *options*, read after the change."""
        return any(
            getattr(self.wanted.pressure, kind) is not None and getattr(options.pressure, kind) is None
            for kind in self._find_changed_kinds()
        )

    def _is_changed(self, name: str) -> bool:
        return self.was is None or getattr(self.wanted, name) != getattr(self.was, name)

    def _find_changed_kinds(self) -> list[str]:
        before, after = None if self.was is None else self.was.pressure, self.wanted.pressure
        return [kind for kind in _PRESSURE_KINDS if before is None or getattr(before, kind) != getattr(after, kind)]

    def _build_kind(self, kind: str, *, replaces: bool) -> Any:  # noqa: ANN401 - an expression
        chosen = getattr(self.wanted.pressure, kind)
        if chosen is None or self.was is None or replaces:
            return {"$literal": None if chosen is None else asdict(chosen)}
        defaults = asdict(_PRESSURE_KINDS[kind]())
        previous = getattr(self.was.pressure, kind)
        before = defaults if previous is None else asdict(previous)
        changed = {name: number for name, number in asdict(chosen).items() if number != before[name]}
        return {"$mergeObjects": [defaults, _object_or_empty(f"$pressure.{kind}"), changed]}


def _update_document(
    collection: Collection[Any], name: str, fields: dict[str, Any], *, now: datetime
) -> dict[str, Any] | None:
    with translate_errors(QUEUES):
        document: dict[str, Any] | None = collection.find_one_and_update(
            {"_id": name}, [{"$set": fields | {"updated_at": now}}], return_document=ReturnDocument.AFTER
        )
    return document


def _insert_document(db: Database[Any], name: str, *, now: datetime) -> None:
    """Insert the document of a queue that has tasks, or of the default queue, which is always declared."""
    is_declared = name == DEFAULT_QUEUE
    if not is_declared and not _has_tasks(db, name):
        raise InvalidRequestError([Problem("queue", _describe_undeclared(db, name))])
    fields = {"updated_at": now} if is_declared else {"updated_at": now, "undeclared": True}
    with translate_errors(QUEUES):
        with_lenient_decoding(db)[QUEUES].update_one({"_id": name}, {"$setOnInsert": fields}, upsert=True)


def _describe_undeclared(db: Database[Any], name: str) -> str:
    if not re.fullmatch(QUEUE_PATTERN, name):
        return _INVALID_NAME
    hint = did_you_mean(name, list_queues(db))
    return f"is not declared{hint + ' If not,' if hint else ':'} run `tidemill ops queue declare {name}` once"


def _has_tasks(db: Database[Any], name: str) -> bool:
    tasks = open_tasks(db)
    return counts.count_pending(tasks, name, limit=1) > 0 or counts.count_processing(tasks, name, limit=1) > 0


def _object_or_empty(path: str) -> dict[str, Any]:
    """Return the expression of the object at *path*; of an empty object if there is none."""
    return {"$cond": [{"$eq": [{"$type": path}, "object"]}, path, {}]}


LOAD_CACHE_SEC: Final = 1.0
"""Age in seconds up to which a measured load is used again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measurement:
    at: float
    minute: datetime
    load: Load


_UNMEASURED: Final = _Measurement(at=-math.inf, minute=EARLIEST, load=NO_LOAD)


class PressureMonitor:
    """The load of every queue, for one process. If MongoDB does not answer, the last known load is used."""

    def __init__(
        self,
        tasks: Tasks,
        options: Callable[[str], QueueOptions],
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tasks = tasks
        self._options = options
        self._monotonic = monotonic
        self._measurements: dict[str, _Measurement] = {}

    def current_load(self, queue: str, *, now: datetime) -> Load:
        """Return the load of *queue*. Without pressure options MongoDB is not asked for counts."""
        known, minute = self._measurements.get(queue, _UNMEASURED), start_of_minute(now)
        if known.minute == minute and self._monotonic() - known.at < LOAD_CACHE_SEC:
            return known.load
        counted = known.load.retries if known.minute == minute else 0
        try:
            load = self._measure(queue, self._options(queue).pressure, now=now)
        except TidemillError:
            load = replace(known.load, retries=0)
        # The number only grows within a minute, and the newest retries of this process are not written yet.
        load = replace(load, retries=max(load.retries, counted))
        self._measurements[queue] = _Measurement(at=self._monotonic(), minute=minute, load=load)
        return load

    def count_retry(self, queue: str) -> None:
        """Count a retry that this process has scheduled and not written yet."""
        known = self._measurements.get(queue, _UNMEASURED)
        if known.load.pressure.budget is not None:
            self._measurements[queue] = replace(known, load=replace(known.load, retries=known.load.retries + 1))

    def _measure(self, queue: str, pressure: Pressure, *, now: datetime) -> Load:
        return Load(
            pressure=pressure,
            ready=0 if pressure.adaptive is None else counts.count_due(self._tasks, queue, now=now),
            retries=0 if pressure.budget is None else count_retried_in_minute(self._tasks.database, queue, now=now),
        )
