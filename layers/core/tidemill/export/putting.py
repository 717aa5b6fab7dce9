"""Putting the objects of letters side by side, until all are there or it is time to stop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from bson.raw_bson import RawBSONDocument

from tidemill.dead_letters.exporting import as_read
from tidemill.export.keys import object_key_of
from tidemill.export.objects import content
from tidemill.export.values import ExportError, Put


@dataclass(slots=True, kw_only=True)
class Tried:
    """What became of letters: those in neither list are as they were."""

    put: list[RawBSONDocument] = field(default_factory=list)
    refused: list[tuple[RawBSONDocument, str]] = field(default_factory=list)


class Putter:
    """Puts objects in *threads* threads.

    `failed` counts the puts that failed by no fault of their letters, and `trouble` is the code of the latest.
    After as many failures in a row as there are threads to meet the same trouble, the bucket is in doubt: nothing is
    put any more, unless one that is under way goes through, or `take_failed` has told whom else to doubt.
    """

    def __init__(self, put: Put, *, threads: int, until: float, monotonic: Callable[[], float]) -> None:
        self.trouble: str | None = None
        self.failed = 0
        self.threads = threads
        self._put = put
        self._until = until
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._in_a_row: list[tuple[RawBSONDocument, ExportError]] = []
        self._given_up = False
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="export")

    @contextmanager
    def open(self) -> Iterator[Putter]:
        """Lend it, and at the end wait for the puts that are under way."""
        try:
            yield self
        finally:
            self._pool.shutdown()

    @property
    def is_over(self) -> bool:
        """Whether there is no time left, the bucket was given up, or a put was broken off."""
        return self._given_up or self._monotonic() >= self._until

    @property
    def is_in_doubt(self) -> bool:
        """Whether nothing has gone through for long: the bucket may be away, or the letters be to blame."""
        return len(self._in_a_row) >= self.threads

    def take_failed(self) -> list[tuple[RawBSONDocument, ExportError]]:
        """Return what a mark needs of the letters that failed in a row, and why each did; doubt nothing any more."""
        failed, self._in_a_row = self._in_a_row, []
        self.trouble = None
        return list({bytes(letter.raw): (letter, error) for letter, error in failed}.values())

    def give_up(self, trouble: str) -> None:
        """Put nothing more: *trouble* is the bucket's."""
        self.trouble, self._given_up = trouble, True

    def all(self, letters: Sequence[RawBSONDocument]) -> Tried:
        """Put the objects of *letters* as far as it gets."""
        tried = Tried()
        started: list[tuple[RawBSONDocument, Future[bool]]] = []
        for raw in letters:
            if self.is_over or self.is_in_doubt:
                break
            started.append((raw, self._pool.submit(self._one, as_read(raw), object_key_of(raw), content(raw))))
        for raw, put in started:
            try:
                if put.result():
                    tried.put.append(raw)
            except ExportError as error:
                tried.refused.append((raw, error.code))
        return tried

    def _one(self, letter: RawBSONDocument, key: str, body: bytes) -> bool:
        """Put one object; ``False`` where the bucket may be to blame that it is not there, or there is no time.

        Raises:
            ExportError: The object is to blame.
        """
        if self.is_over or self.is_in_doubt:
            return False
        try:
            self._put(key, body)
        except ExportError as error:
            if error.blame == "object":
                raise
            with self._lock:
                self.trouble, self.failed = error.code, self.failed + 1
                self._in_a_row.append((letter, error))
            return False
        except BaseException:
            self._given_up = True
            raise
        with self._lock:
            self._in_a_row.clear()
        return True
