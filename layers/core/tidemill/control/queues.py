"""Queues and what each chooses for itself: declared and changed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final

from pymongo import ReturnDocument
from pymongo.collection import Collection
from pymongo.database import Database

from tidemill.control.directory import DEFAULT_QUEUE
from tidemill.control.names import known_queues
from tidemill.control.options import read_options
from tidemill.control.reading import forgiving
from tidemill.documents import QUEUES
from tidemill.errors import InvalidRequestError, Problem
from tidemill.policies import Adaptive, Budget, QueueOptions
from tidemill.requests import QUEUE_PATTERN
from tidemill.store import gauges, open_tasks, translated
from tidemill.wording import guess

_PLAIN: Final = ("paused", "selection", "retry_share", "max_in_flight_retries")
_PRESSURE: Final[Mapping[str, type[Adaptive | Budget]]] = {"adaptive": Adaptive, "budget": Budget}
_NO_NAME: Final = "use up to 63 letters, digits, _ . and -"


def declare_queue(db: Database[Any], name: str, *, now: datetime) -> QueueOptions:
    """Make *name* a queue that HTTP may enqueue into, and return what it chooses. Safe to repeat.

    Raises:
        InvalidRequestError: It is no name for a queue.
    """
    if not re.fullmatch(QUEUE_PATTERN, name):
        raise InvalidRequestError([Problem("queue", _NO_NAME)])
    update = {"$setOnInsert": {"declared_at": now}, "$unset": {"undeclared": ""}}
    with translated(QUEUES):
        document: dict[str, Any] | None = forgiving(db)[QUEUES].find_one_and_update(
            {"_id": name}, update, upsert=True, return_document=ReturnDocument.AFTER
        )
    return read_options(document or {})


def change_queue(
    db: Database[Any], name: str, options: QueueOptions, *, now: datetime, was: QueueOptions | None = None
) -> QueueOptions:
    """Store what the queue *name* chooses for itself, and return all that it then chooses.

    One that is not declared is not opened to HTTP by that. Only what differs from *was* is written, number by number,
    so that two people who change different things do not undo each other.

    Raises:
        InvalidRequestError: There is no such queue: it is not declared and holds nothing.
    """
    change = _Change(wanted=options, was=was)
    collection = forgiving(db)[QUEUES]
    document = _updated(collection, name, change.fields(), now=now)
    if document is None:
        _make(db, name, now=now)
        document = _updated(collection, name, change.fields(), now=now) or {}
    if change.is_lost_in(read_options(document)):
        # Somebody wrote nonsense beside the numbers: there is nothing to be kept of it.
        document = _updated(collection, name, change.fields(wholly=True), now=now) or {}
    return read_options(document)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """What is to be written, as expressions of an update."""

    wanted: QueueOptions
    was: QueueOptions | None

    def fields(self, *, wholly: bool = False) -> dict[str, Any]:
        """Return all fields that change; kinds of pressure number by number, or *wholly*."""
        plain = {name: {"$literal": getattr(self.wanted, name)} for name in _PLAIN if self._changes(name)}
        pressed = {kind: self._numbers(kind, wholly=wholly) for kind in self._pressed()}
        return plain | ({"pressure": {"$mergeObjects": [_object("$pressure"), pressed]}} if pressed else {})

    def is_lost_in(self, options: QueueOptions) -> bool:
        """Tell whether what was switched on is off in *options*, which were read after the change."""
        return any(
            getattr(self.wanted.pressure, kind) is not None and getattr(options.pressure, kind) is None
            for kind in self._pressed()
        )

    def _changes(self, name: str) -> bool:
        return self.was is None or getattr(self.wanted, name) != getattr(self.was, name)

    def _pressed(self) -> list[str]:
        before, after = None if self.was is None else self.was.pressure, self.wanted.pressure
        return [kind for kind in _PRESSURE if before is None or getattr(before, kind) != getattr(after, kind)]

    def _numbers(self, kind: str, *, wholly: bool) -> Any:  # noqa: ANN401 - an expression
        chosen = getattr(self.wanted.pressure, kind)
        if chosen is None or self.was is None or wholly:
            return {"$literal": None if chosen is None else asdict(chosen)}
        defaults = asdict(_PRESSURE[kind]())
        held = getattr(self.was.pressure, kind)
        before = defaults if held is None else asdict(held)
        told = {name: number for name, number in asdict(chosen).items() if number != before[name]}
        return {"$mergeObjects": [defaults, _object(f"$pressure.{kind}"), told]}


def _updated(collection: Collection[Any], name: str, fields: dict[str, Any], *, now: datetime) -> dict[str, Any] | None:
    with translated(QUEUES):
        document: dict[str, Any] | None = collection.find_one_and_update(
            {"_id": name}, [{"$set": fields | {"updated_at": now}}], return_document=ReturnDocument.AFTER
        )
    return document


def _make(db: Database[Any], name: str, *, now: datetime) -> None:
    """Make the document of a queue that is declared by itself, or has tasks."""
    is_declared = name == DEFAULT_QUEUE
    if not is_declared and not _holds_tasks(db, name):
        raise InvalidRequestError([Problem("queue", _not_declared(db, name))])
    fields = {"updated_at": now} if is_declared else {"updated_at": now, "undeclared": True}
    with translated(QUEUES):
        forgiving(db)[QUEUES].update_one({"_id": name}, {"$setOnInsert": fields}, upsert=True)


def _not_declared(db: Database[Any], name: str) -> str:
    if not re.fullmatch(QUEUE_PATTERN, name):
        return _NO_NAME
    meant = guess(name, known_queues(db))
    return f"is not declared{meant + ' If not,' if meant else ':'} run `tidemill ops queue declare {name}` once"


def _holds_tasks(db: Database[Any], name: str) -> bool:
    tasks = open_tasks(db)
    return gauges.pending(tasks, name, limit=1) > 0 or gauges.processing(tasks, name, limit=1) > 0


def _object(path: str) -> dict[str, Any]:
    """Return the expression of what stands at *path* where that is an object, and else of an empty one."""
    return {"$cond": [{"$eq": [{"$type": path}, "object"]}, path, {}]}
