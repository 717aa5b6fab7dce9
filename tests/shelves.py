"""A bucket in memory, as tests of the export want it, and exports into it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from tests.fixtures import ManualClock
from tidemill.dead_letters.export import export
from tidemill.dead_letters.export_format import ExportError, ExportResult
from tidemill.store.connection import Tasks

DOWN = ExportError("InternalError", blame="bucket")
REFUSED = ExportError("InvalidArgument", blame="either")
TOO_LARGE = ExportError("EntityTooLarge", blame="object")


class Shelf:
    """A bucket in memory. ``fails`` are the errors of the puts to come, ``always`` is that of all of them."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.keys: list[str] = []
        self.always: ExportError | None = None
        self.refused: Callable[[str], ExportError | None] = lambda _: None
        self._lock = threading.Lock()

    def put(self, key: str, body: bytes) -> None:
        with self._lock:
            self.keys.append(key)
            if error := self.always or self.refused(key):
                raise error
            assert self.objects.setdefault(key, body) == body, "it was put once more, and is another"


def run(dead: Tasks, shelf: Shelf, clock: ManualClock, **options: Any) -> ExportResult:
    return export(dead, shelf.put, clock=clock, until=time.monotonic() + 60, **options)


def tasks_put(shelf: Shelf) -> list[int]:
    return [int(key.rsplit("/", 1)[1].split("-")[0]) for key in shelf.keys]
