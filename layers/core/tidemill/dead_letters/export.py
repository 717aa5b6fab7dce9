"""Export: copy dead letters to S3; retention of the dead letters that are not exported.

The object is put first and the dead letter is marked last. A run may stop anywhere; the next run puts what is not
marked again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

import bson
from bson.datetime_ms import DatetimeMS
from bson.raw_bson import RawBSONDocument
from pymongo import ASCENDING, DESCENDING, UpdateOne

from tidemill import indexes
from tidemill.clock import Clock
from tidemill.dead_letters.documents import CHANGING_FIELDS, EXPORT_ATTEMPT_FIELDS, record_failed_attempt
from tidemill.dead_letters.export_format import ExportError, ExportResult, PutObject, encode_object, read_object_key
from tidemill.documents import DEAD_LETTERS, decode_shallow
from tidemill.store import counts
from tidemill.store.connection import Tasks, translate_errors
from tidemill.store.paging import byte_batches
from tidemill.store.writes import WriteCounts, write_each

BATCH_SIZE: Final = 500
PASS_SIZE: Final = 5_000
"""Maximum number of dead letters that one cursor reads.

A cursor has a bounded life and does not survive an election; the next pass opens a new one.
"""

THREADS: Final = 16
RETENTION_BATCH_SIZE: Final = 1000
"""Maximum number of dead letters in one update of the retention."""


def export(
    dead: Tasks,
    put: PutObject,
    *,
    clock: Clock,
    until: float,
    monotonic: Callable[[], float] = time.monotonic,
    limit: int | None = None,
    threads: int = THREADS,
) -> ExportResult:
    """Export dead letters in the order of `find_unexported`: all, or *limit*, until *until* (monotonic).

    Running puts are awaited at the end. If a run stops between put and mark, the next run puts the same bytes under
    the same key. Two runs at once repeat each other's work, which is safe.
    """
    total = ExportResult()
    with ThreadPoolExecutor(threads, thread_name_prefix="export") as pool:
        breaker = CircuitBreaker(threads)
        uploader = Uploader(put=put, pool=pool, breaker=breaker, until=until, monotonic=monotonic)
        while not uploader.is_over:
            remaining = PASS_SIZE if limit is None else min(PASS_SIZE, limit - total.exported - total.refused)
            done = _export_pass(dead, uploader, clock=clock, limit=remaining) if remaining > 0 else ExportResult()
            if done == ExportResult():
                break
            total = total.add(done)
    left = count_unexported(dead, limit=counts.COUNT_LIMIT)
    return replace(total, failed=breaker.failure_count, left=left, last_error=breaker.last_error if left else None)


def _export_pass(dead: Tasks, uploader: Uploader, *, clock: Clock, limit: int) -> ExportResult:
    """Export up to *limit* dead letters with one cursor. Count only dead letters that this pass changed."""
    total = ExportResult()
    uploader.breaker.forget_error()  # dead letters that failed before are tried again first
    for letters in find_unexported(dead, limit=limit, batch=BATCH_SIZE, now=clock.now()):
        total = total.add(_record_results(dead, uploader.upload(letters), clock=clock))
        if uploader.is_over:
            break
        if uploader.breaker.is_open:
            return total.add(_probe_bucket(dead, uploader, clock=clock, limit=limit - total.exported - total.refused))
    return total


def _probe_bucket(dead: Tasks, uploader: Uploader, *, clock: Clock, limit: int) -> ExportResult:
    """Probe the bucket with the newest dead letters, one a thread. This takes as long as one put.

    If a probe succeeds, the failed dead letters are at fault and are postponed. Otherwise the bucket is given up. It is
    given up without a probe if only the bucket can be at fault for each failure.
    """
    breaker = uploader.breaker
    failed = breaker.half_open()
    results = PutResults()
    if any(error.blame != "bucket" for _, error in failed):
        probes = min(breaker.threshold, limit)
        newest = find_unexported(dead, limit=probes, batch=probes, now=clock.now(), newest_first=True)
        results = uploader.upload(next(newest, []))
    if results.put:
        results = replace(results, refused=[*results.refused, *((letter, error.code) for letter, error in failed)])
    else:
        breaker.give_up(failed[-1][1].code)
    return _record_results(dead, results, clock=clock)


def _record_results(dead: Tasks, results: PutResults, *, clock: Clock) -> ExportResult:
    marked = mark_exported(dead, results.put, now=clock.now())
    postponed = postpone_export(dead, results.refused, now=clock.now())
    return ExportResult(exported=marked.changed, refused=postponed.changed)


class CircuitBreaker:
    """Circuit breaker of the bucket, used by many threads.

    It opens after *threshold* consecutive failures that may be the bucket's fault. While it is open, no put starts. It
    closes if a running put succeeds.

    Attributes:
        failure_count: Number of failures so far.
        last_error: Code of the latest failure, unless it is forgotten.
        is_given_up: ``True`` if the circuit stays open.
    """

    def __init__(self, threshold: int) -> None:
        self.threshold: Final = threshold
        self.failure_count = 0
        self.last_error: str | None = None
        self.is_given_up = False
        self._consecutive_failures: list[tuple[RawBSONDocument, ExportError]] = []
        self._lock = threading.Lock()

    @property
    def is_open(self) -> bool:
        """``True`` if the bucket may be unreachable, or refuses these dead letters."""
        return self.is_given_up or len(self._consecutive_failures) >= self.threshold

    def record_success(self) -> None:
        """Close the circuit."""
        with self._lock:
            self._consecutive_failures.clear()

    def record_failure(self, letter: RawBSONDocument, error: ExportError) -> None:
        """Count a failure that may be the bucket's fault."""
        with self._lock:
            self.failure_count, self.last_error = self.failure_count + 1, error.code
            self._consecutive_failures.append((letter, error))

    def half_open(self) -> list[tuple[RawBSONDocument, ExportError]]:
        """Let puts start as a probe. Return the dead letters that failed in a row, each once, and their errors."""
        failed, self._consecutive_failures = self._consecutive_failures, []
        self.forget_error()
        return list({bytes(letter.raw): (letter, error) for letter, error in failed}.values())

    def forget_error(self) -> None:
        """Forget the latest failure: its dead letter is tried again, or is postponed."""
        self.last_error = None

    def give_up(self, error_code: str | None = None) -> None:
        """Open the circuit for good, because the bucket fails with *error_code*, or a put was interrupted."""
        self.is_given_up = True
        self.last_error = error_code or self.last_error


@dataclass(frozen=True, slots=True, kw_only=True)
class PutResults:
    """Results of puts. Dead letters in neither list are unchanged."""

    put: Sequence[RawBSONDocument] = ()
    refused: Sequence[tuple[RawBSONDocument, str]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Uploader:
    """Puts the objects of dead letters in the threads of *pool*, unless the circuit *breaker* is open."""

    put: PutObject
    pool: ThreadPoolExecutor
    breaker: CircuitBreaker
    until: float
    monotonic: Callable[[], float]

    @property
    def is_over(self) -> bool:
        """``True`` if no time is left, or the bucket was given up."""
        return self.breaker.is_given_up or self.monotonic() >= self.until

    def upload(self, letters: Sequence[RawBSONDocument]) -> PutResults:
        """Put the objects of *letters*, until the circuit opens or no time is left."""
        started: list[tuple[RawBSONDocument, Future[bool]]] = []
        for raw in letters:
            if self.is_over or self.breaker.is_open:
                break
            key, body = read_object_key(raw), encode_object(raw)
            started.append((raw, self.pool.submit(self._put_object, _keep_mark_fields(raw), key, body)))
        put, refused = list[RawBSONDocument](), list[tuple[RawBSONDocument, str]]()
        for raw, future in started:
            try:
                if future.result():
                    put.append(raw)
            except ExportError as error:
                refused.append((raw, error.code))
        return PutResults(put=put, refused=refused)

    def _put_object(self, letter: RawBSONDocument, key: str, body: bytes) -> bool:
        """Put one object; return ``False`` if the bucket may be at fault, or no put may start.

        Raises:
            ExportError: The object is at fault.
        """
        if self.is_over or self.breaker.is_open:
            return False
        try:
            self.put(key, body)
        except ExportError as error:
            if error.blame == "object":
                raise
            self.breaker.record_failure(letter, error)
            return False
        except BaseException:
            self.breaker.give_up()
            raise
        self.breaker.record_success()
        return True


_UNEXPORTED_FILTER: Final = {"archived_at": None}
_AGE_FIELDS: Final = ("archived_at", "retain_from", "dead_lettered_at")


def find_unexported(
    dead: Tasks, *, limit: int, batch: int, now: datetime, newest_first: bool = False
) -> Iterator[list[RawBSONDocument]]:
    """Yield up to *limit* dead letters that are not exported, the oldest or the newest first, by *batch* at most.

    The fields that change are left out. Older means an earlier ``retain_from`` or none, then an earlier move. Lists are
    shorter if their documents are large. Refused dead letters are left out until their next attempt is due.
    """
    where = _UNEXPORTED_FILTER | {"export_retry_at": {"$not": {"$gt": now}}}
    order = [(name, DESCENDING if newest_first else ASCENDING) for name in _AGE_FIELDS]
    with translate_errors(DEAD_LETTERS):
        found = dead.find(where, dict.fromkeys(CHANGING_FIELDS, 0), hint=indexes.EXPORT)
        yield from byte_batches(found.sort(order).limit(limit).batch_size(batch), most=batch)


def count_unexported(dead: Tasks, *, limit: int) -> int:
    """Return the number of dead letters that are not exported, counted up to *limit*."""
    with translate_errors(DEAD_LETTERS):
        return dead.count_documents(_UNEXPORTED_FILTER, hint=indexes.EXPORT, limit=limit)


def update_retention(
    dead: Tasks, *, expire_unexported: bool, clock: Clock, until: float, monotonic: Callable[[], float] = time.monotonic
) -> None:
    """Keep dead letters that are not exported; with *expire_unexported* let them expire, counted from now.

    It stops at *until* (monotonic). A batch of which MongoDB refused a part is not read again.
    """
    where: dict[str, Any] = {"archived_at": None, "retain_from": None if expire_unexported else {"$type": "date"}}
    excluded_ids: list[Any] = []
    while monotonic() < until:
        update = {"$set": {"retain_from": clock.now()}} if expire_unexported else {"$unset": {"retain_from": ""}}
        excluded = {"_id": {"$nin": excluded_ids}} if excluded_ids else {}
        with translate_errors(DEAD_LETTERS):
            found = dead.find(where | excluded, {"_id": 1}, hint=indexes.EXPORT).limit(RETENTION_BATCH_SIZE)
            ids = [decode_shallow(raw)["_id"] for raw in found.batch_size(RETENTION_BATCH_SIZE + 1)]
        changes = [UpdateOne({"_id": {"$eq": letter_id}} | where, update, hint=indexes.BY_ID) for letter_id in ids]
        if write_each(dead, changes).changed < len(ids):
            excluded_ids += ids
        if len(ids) < RETENTION_BATCH_SIZE:
            break


def mark_exported(dead: Tasks, letters: Sequence[RawBSONDocument], *, now: datetime) -> WriteCounts:
    """Record that *letters* are in S3, with retention from *now* on, unless they were marked or replaced meanwhile."""
    change = {"$set": {"archived_at": now, "retain_from": now}, "$unset": dict.fromkeys(EXPORT_ATTEMPT_FIELDS, "")}
    return write_each(dead, [UpdateOne(_match_unexported(raw), change, hint=indexes.BY_ID) for raw in letters])


def postpone_export(dead: Tasks, refused: Sequence[tuple[RawBSONDocument, str]], *, now: datetime) -> WriteCounts:
    """Record on dead letters why the bucket refused them, and when to try again: later each time."""
    updates = [
        UpdateOne(_match_unexported(raw), record_failed_attempt("export", why=why, now=now), hint=indexes.BY_ID)
        for raw, why in refused
    ]
    return write_each(dead, updates)


def _match_unexported(raw: RawBSONDocument) -> dict[str, Any]:
    document = decode_shallow(raw)
    moved_at = document.get("dead_lettered_at")
    is_dated = isinstance(moved_at, datetime | DatetimeMS)  # a filter on a value of another type may not find it
    guard = {"dead_lettered_at": moved_at} if is_dated else {}
    return {"_id": {"$eq": document["_id"]}, **guard, **_UNEXPORTED_FILTER}


def _keep_mark_fields(raw: RawBSONDocument) -> RawBSONDocument:
    """Return the few fields of *raw* that a mark needs: the breaker keeps failed dead letters."""
    fields = {name: value for name, value in decode_shallow(raw).items() if name in {"_id", "dead_lettered_at"}}
    return RawBSONDocument(bson.encode(fields))
