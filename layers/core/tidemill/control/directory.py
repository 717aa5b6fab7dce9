"""Which names there are: the declared types and queues, as the enqueueing side sees them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pymongo.database import Database

from tidemill.control.reading import by_name, forgiving
from tidemill.documents import QUEUES, TASK_TYPES
from tidemill.store import translated

DEFAULT_QUEUE: Final = "default"
CACHE_SEC: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Snapshot:
    read_at: float
    types: Mapping[str, Mapping[str, Any]]
    queues: frozenset[str]


class Directory:
    """The declared types and queues, read at most once a minute, and once more before a name is refused."""

    def __init__(self, db: Database[Any], *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._db = forgiving(db)
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
            types, listed = by_name(self._db[TASK_TYPES]), by_name(self._db[QUEUES])
        declared = frozenset(name for name, queue in listed.items() if not queue.get("undeclared"))
        return _Snapshot(read_at=self._monotonic(), types=types, queues=declared)
