"""Which names there are: the declared types and queues, as the enqueueing side sees them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pymongo.database import Database

from tidemill.control.reading import by_name, forgiving
from tidemill.documents import QUEUES, TASK_TYPES
from tidemill.store import translated

DEFAULT_QUEUE: Final = "default"
CACHE_SEC: Final = 60.0
LATELY_SEC: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What was declared when it was last read."""

    read_at: float
    types: Mapping[str, Mapping[str, Any]]
    queues: frozenset[str]

    def is_open(self, name: str) -> bool:
        """Tell whether the type *name* is open to HTTP."""
        return bool(self.types.get(name, {}).get("http"))


class Directory:
    """The declared types and queues, read at most once a minute, and once more before a name is refused.

    Whether there are types at all is not asked once more: for a minute after the first was registered, `Queue` may take
    any name, as it did before.
    """

    def __init__(self, db: Database[Any], *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._db = forgiving(db)
        self._monotonic = monotonic
        self._known: Known | None = None

    def has_types(self) -> bool:
        """Tell whether any executor has ever registered something."""
        return bool(self.known().types)

    def task_type(self, name: str, *, for_http: bool = False) -> Mapping[str, Any] | None:
        """Return what was declared of the type *name*, or ``None``.

        *for_http*: what is not known as open to HTTP is read once more, too.
        """
        return self.known(names=[name], for_http=for_http).types.get(name)

    def lately(self, name: str) -> Mapping[str, Any] | None:
        """As `task_type`, but what is not there is looked for again after a second only: many may ask for the same."""
        if self._known is not None and self._monotonic() - self._known.read_at < LATELY_SEC:
            return self._known.types.get(name)
        return self.task_type(name)

    def known(self, *, names: Iterable[str] = (), queues: Iterable[str] = (), for_http: bool = False) -> Known:
        """Return what is declared, read once more, but once for all, where one of *names* or *queues* is not there."""
        known = self._known
        if known is None or self._monotonic() - known.read_at > CACHE_SEC:
            return self._read()
        lacking = any(not (known.is_open(one) if for_http else one in known.types) for one in names)
        return self._read() if lacking or not known.queues.issuperset(queues) else known

    def _read(self) -> Known:
        with translated(TASK_TYPES):
            types, listed = by_name(self._db[TASK_TYPES]), by_name(self._db[QUEUES])
        declared = frozenset(name for name, queue in listed.items() if not queue.get("undeclared"))
        self._known = Known(read_at=self._monotonic(), types=types, queues=declared | {DEFAULT_QUEUE})
        return self._known
