"""Queues and what each chooses for itself: declared, changed and read."""

from __future__ import annotations

import difflib
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any, Final, TypeVar

from pymongo.database import Database
from pymongo.errors import WriteError

from tidemill.control.directory import DEFAULT_QUEUE
from tidemill.control.reading import by_name, forgiving
from tidemill.documents import QUEUES
from tidemill.errors import InvalidRequestError, Problem
from tidemill.policies import Adaptive, Budget, Pressure, QueueOptions
from tidemill.requests import QUEUE_PATTERN
from tidemill.store import claims, gauges, majority, open_tasks, translated

OPTIONS_SEC: Final = 5.0
"""A change of a queue's options holds for running executors after so many seconds at the latest."""

_ABSENT: Final = object()
_NO_NAME: Final = "use up to 63 letters, digits, _ . and -"
_T = TypeVar("_T")


def declare_queue(db: Database[Any], name: str, *, now: datetime) -> None:
    """Make *name* a queue that HTTP may enqueue into. Safe to repeat.

    Raises:
        InvalidRequestError: It is no name for a queue.
    """
    if not re.fullmatch(QUEUE_PATTERN, name):
        raise InvalidRequestError([Problem("queue", _NO_NAME)])
    with translated(QUEUES):
        majority(db)[QUEUES].update_one(
            {"_id": name}, {"$setOnInsert": {"declared_at": now}, "$unset": {"undeclared": ""}}, upsert=True
        )


def listed_queues(db: Database[Any]) -> list[str]:
    """Return the names of the queues that are declared, or have chosen something."""
    with translated(QUEUES):
        return sorted(by_name(forgiving(db)[QUEUES]))


def options_of(db: Database[Any], name: str) -> QueueOptions | None:
    """Return what the queue *name* chooses, or ``None`` where it is neither declared nor has chosen anything."""
    with translated(QUEUES):
        document = forgiving(db)[QUEUES].find_one({"_id": name})
    if document is None:
        return QueueOptions() if name == DEFAULT_QUEUE else None
    return _read(document)


def change_queue(
    db: Database[Any], name: str, options: QueueOptions, *, now: datetime, was: QueueOptions | None = None
) -> None:
    """Store what the queue *name* chooses for itself; one that is not declared is not opened to HTTP by that.

    Only what differs from *was* is written, so that two people who change different things do not undo each other.

    Raises:
        InvalidRequestError: There is no such queue: it is not declared and holds nothing.
    """
    before = {} if was is None else _fields(was)
    changes = {field: value for field, value in _fields(options).items() if before.get(field, _ABSENT) != value}
    update = {"$set": changes | {"updated_at": now}}
    collection = majority(db)[QUEUES]
    with translated(QUEUES):
        try:
            found = collection.update_one({"_id": name}, update).matched_count
        except WriteError:  # somebody wrote nonsense for the pressure: there is nothing to be kept of it
            found = collection.update_one({"_id": name}, [{"$unset": "pressure"}]).matched_count
            collection.update_one({"_id": name}, update)
    if found:
        return
    is_declared = name == DEFAULT_QUEUE
    if not is_declared and not _holds_tasks(db, name):
        raise InvalidRequestError([Problem("queue", _not_declared(db, name))])
    on_insert = {} if is_declared else {"undeclared": True}
    with translated(QUEUES):
        collection.update_one({"_id": name}, update | {"$setOnInsert": on_insert}, upsert=True)


def _fields(options: QueueOptions) -> dict[str, Any]:
    fields = asdict(options)
    return fields | {f"pressure.{kind}": chosen for kind, chosen in fields.pop("pressure").items()}


def _not_declared(db: Database[Any], name: str) -> str:
    if not re.fullmatch(QUEUE_PATTERN, name):
        return _NO_NAME
    holding = [queue for queue in claims.queues(open_tasks(db)) if isinstance(queue, str)]
    close = difflib.get_close_matches(name, {DEFAULT_QUEUE, *listed_queues(db), *holding}, n=1)
    guess = f", did you mean {close[0]}? If not," if close else ":"
    return f"is not declared{guess} run `tidemill ops queue declare {name}` once"


def _holds_tasks(db: Database[Any], name: str) -> bool:
    tasks = open_tasks(db)
    return gauges.pending(tasks, name, limit=1) > 0 or gauges.processing(tasks, name, limit=1) > 0


class OptionsReader:
    """The options of all queues as executors and reclaim see them: read again after 5 s."""

    def __init__(self, db: Database[Any], *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._db = forgiving(db)
        self._monotonic = monotonic
        self._known: dict[str, QueueOptions] = {}
        self._read_at: float | None = None

    def options(self, queue: str) -> QueueOptions:
        """Return what *queue* chooses; one that is not declared chooses nothing.

        Raises:
            UnavailableError: MongoDB did not answer.
        """
        if self._read_at is None or self._monotonic() - self._read_at > OPTIONS_SEC:
            with translated(QUEUES):
                documents = by_name(self._db[QUEUES])
            self._known = {name: _read(document) for name, document in documents.items()}
            self._read_at = self._monotonic()
        return self._known.get(queue, QueueOptions())


def _read(document: Mapping[str, Any]) -> QueueOptions:
    """Return the options of a document that people edit: what cannot be meant is as if it were not there."""
    pressure = document.get("pressure")
    stored = pressure if isinstance(pressure, Mapping) else {}
    options = QueueOptions(
        paused=bool(document.get("paused")),
        pressure=Pressure(
            adaptive=_built(Adaptive, stored.get("adaptive")), budget=_built(Budget, stored.get("budget"))
        ),
    )
    for name in ("selection", "retry_share", "max_in_flight_retries"):
        change = {name: _whole(document.get(name))}
        with suppress(ValueError):
            options = replace(options, **change)
    return options


def _built(kind: type[_T], fields: Any) -> _T | None:  # noqa: ANN401 - whatever stands in the document
    if not isinstance(fields, Mapping):
        return None
    try:
        return kind(**{name: _whole(value) for name, value in fields.items()})
    except (TypeError, ValueError):
        return None


def _whole(value: Any) -> Any:  # noqa: ANN401 - shells write 3 as 3.0
    return int(value) if isinstance(value, float) and value.is_integer() else value
