"""What queues choose for themselves, read with suspicion."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, TypeVar

from pymongo.database import Database

from tidemill.control.directory import DEFAULT_QUEUE
from tidemill.control.reading import by_name, forgiving
from tidemill.documents import QUEUES
from tidemill.policies import Adaptive, Budget, Pressure, QueueOptions
from tidemill.store import translated

OPTIONS_SEC: Final = 5.0
"""A change of a queue's options holds for running executors after so many seconds at the latest."""

_T = TypeVar("_T")


def options_of(db: Database[Any], name: str) -> QueueOptions | None:
    """Return what the queue *name* chooses, or ``None`` where it is neither declared nor has chosen anything."""
    with translated(QUEUES):
        document = forgiving(db)[QUEUES].find_one({"_id": name})
    if document is None:
        return QueueOptions() if name == DEFAULT_QUEUE else None
    return read_options(document)


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
        return self.of_all().get(queue, QueueOptions())

    def of_all(self) -> Mapping[str, QueueOptions]:
        """Return what each queue chooses that is declared, or has chosen anything; as `options` does."""
        if self._read_at is None or self._monotonic() - self._read_at > OPTIONS_SEC:
            with translated(QUEUES):
                documents = by_name(self._db[QUEUES])
            self._known = {name: read_options(document) for name, document in documents.items()}
            self._read_at = self._monotonic()
        return self._known


def read_options(document: Mapping[str, Any]) -> QueueOptions:
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
