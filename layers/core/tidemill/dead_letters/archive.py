"""Archive: complete redrives, move failed tasks to the dead letters, update their retention, export.

The four steps are independent: a step that fails does not stop the steps after it. A move inserts the dead letters
first and deletes their tasks last.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

from bson.datetime_ms import DatetimeMS
from bson.raw_bson import RawBSONDocument
from pymongo import ASCENDING, DESCENDING, DeleteOne, UpdateOne

from tidemill import indexes
from tidemill.clock import Clock
from tidemill.dead_letters.documents import (
    ARCHIVE_ATTEMPT_FIELDS,
    MARK_FIELDS,
    MAX_REDRIVES,
    REDRIVE_MARK_FIELDS,
    build_dead_letter,
    read_key,
    read_redrives,
    record_failed_attempt,
)
from tidemill.dead_letters.export import count_unexported, export, update_retention
from tidemill.dead_letters.export_format import PutObject
from tidemill.dead_letters.queries import match_task
from tidemill.dead_letters.redrive import RedriveContext, complete
from tidemill.documents import DEAD_LETTERS, decode_shallow, encode_fields
from tidemill.errors import CredentialsError, TidemillError, UnavailableError
from tidemill.store.adoption import UNADOPTED_FAILURE
from tidemill.store.connection import Tasks, is_reachable, translate_errors
from tidemill.store.counts import COUNT_LIMIT
from tidemill.store.paging import byte_batches
from tidemill.store.writes import DUPLICATE_KEY_CODE, insert_each, write_each

BATCH: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveContext:
    """Collaborators and options of an archive run.

    Attributes:
        task_retention: How long done tasks are kept; ``None`` reads it from their index.
        put: Stores an object; ``None`` without a bucket.
        expire_unexported: Dead letters may expire although they were never exported.
        only_moves: Leave out the steps that change marks of dead letters: retention and export.
        batch_size: Maximum number of failed tasks to move at once.
    """

    tasks: Tasks
    dead: Tasks
    clock: Clock
    task_retention: timedelta | None
    put: PutObject | None = None
    expire_unexported: bool = False
    only_moves: bool = False
    batch_size: int = BATCH


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Result of an archive run.

    Attributes:
        moved: Failed tasks that are dead letters now.
        repeated: Tasks among them whose dead letter existed already, from another archive or an interrupted one.
        stuck: Failed tasks that cannot be stored as dead letters. They stay in ``tasks``.
        redriven: Interrupted redrives that are complete now.
        exported: Dead letters copied to the bucket.
        export_refused: Dead letters that the bucket refuses for a reason of their own.
        unexported: Dead letters that are not exported. 10,000 means at least 10,000.
        export_failed: Puts that failed through no fault of their dead letters.
        export_error: Error code of the latest such put, if dead letters are left.
    """

    moved: int = 0
    repeated: int = 0
    stuck: int = 0
    redriven: int = 0
    exported: int = 0
    export_refused: int = 0
    unexported: int = 0
    export_failed: int = 0
    export_error: str | None = None


class ArchiveError(TidemillError):
    """Steps of a run failed.

    Attributes:
        errors: The errors, in order.
        report: Result of the run, in spite of them.
    """

    def __init__(self, errors: Sequence[TidemillError], report: Report) -> None:
        self.errors = tuple(errors)
        self.report = report
        super().__init__("; ".join(map(str, self.errors)))


Monotonic: TypeAlias = Callable[[], float]


def archive(on: ArchiveContext, *, until: float, monotonic: Monotonic = time.monotonic) -> Report:
    """Complete redrives, move failed tasks, update retention and export, until *until* (monotonic).

    With ``on.only_moves`` it completes redrives and moves failed tasks, and nothing else. Every step may stop anywhere;
    the next run completes it. Two runs at once are safe.

    Raises:
        ArchiveError: A step failed. The others ran, unless MongoDB was unreachable or refused the credentials.
    """
    report, errors = Report(), list[TidemillError]()
    steps = (_complete_redrives, _move_failed, _update_retention, _export)
    for step in steps[:2] if on.only_moves else steps:
        try:
            report = step(on, report, until, monotonic)
        except TidemillError as error:
            errors.append(error)
            is_unreachable = isinstance(error, UnavailableError) and not is_reachable(on.tasks.database)
            if is_unreachable or isinstance(error, CredentialsError):
                break  # the remaining steps would only wait for MongoDB, too
    if errors:
        raise ArchiveError(errors, report) from errors[0]
    return report


def _complete_redrives(on: ArchiveContext, report: Report, until: float, monotonic: Monotonic) -> Report:
    context = RedriveContext(tasks=on.tasks, dead=on.dead, clock=on.clock)
    with translate_errors():
        retention = on.task_retention or indexes.read_task_retention(on.tasks.database)
    redriven = complete(context, until=until, monotonic=monotonic, task_retention=retention)
    return replace(report, redriven=redriven)


def _move_failed(on: ArchiveContext, report: Report, until: float, monotonic: Monotonic) -> Report:
    moves = move_failed(on.tasks, on.dead, clock=on.clock, until=until, monotonic=monotonic, batch_size=on.batch_size)
    return _add_moves(report, moves)


def _update_retention(on: ArchiveContext, report: Report, until: float, monotonic: Monotonic) -> Report:
    update_retention(on.dead, expire_unexported=on.expire_unexported, clock=on.clock, until=until, monotonic=monotonic)
    return report


def _export(on: ArchiveContext, report: Report, until: float, monotonic: Monotonic) -> Report:
    if on.put is None:
        return replace(report, unexported=count_unexported(on.dead, limit=COUNT_LIMIT))
    result = export(on.dead, on.put, clock=on.clock, until=until, monotonic=monotonic)
    return replace(
        report,
        exported=result.exported,
        export_refused=result.refused,
        unexported=result.left,
        export_failed=result.failed,
        export_error=result.last_error,
    )


def move_failed(
    tasks: Tasks,
    dead: Tasks,
    *,
    clock: Clock,
    until: float,
    monotonic: Monotonic = time.monotonic,
    batch_size: int = BATCH,
) -> Report:
    """Move failed tasks, *batch_size* at once, until none is left or *until* (monotonic) is past.

    A task is in both collections if a run stops between insert and delete. The next run finds its dead letter and
    deletes the task. If another archive took most of a batch, this one continues from the other end.
    """
    total = Report()
    newest_first, may_turn = False, True
    while monotonic() < until:
        before = total.moved
        for batch in find_failed(tasks, limit=batch_size, now=clock.now(), newest_first=newest_first):
            done = _move_batch(tasks, dead, batch, now=clock.now())
            total = _add_moves(total, done)
            if monotonic() >= until:
                return total
            if may_turn and done.repeated > len(batch) / 2:
                break
        else:
            return total
        newest_first, may_turn = not newest_first, total.moved > before
    return total


def _add_moves(report: Report, moves: Report) -> Report:
    return replace(
        report,
        moved=report.moved + moves.moved,
        repeated=report.repeated + moves.repeated,
        stuck=report.stuck + moves.stuck,
    )


def _move_batch(tasks: Tasks, dead: Tasks, batch: Sequence[RawBSONDocument], *, now: datetime) -> Report:
    letters: list[tuple[RawBSONDocument, RawBSONDocument]] = []
    stuck: list[tuple[RawBSONDocument, str]] = []
    for raw in batch:
        try:
            letters.append((raw, build_dead_letter(raw, now=now)))
        except ValueError as error:
            stuck.append((raw, str(error)))
    close_earlier(dead, [letter for _, letter in letters], now=now)
    inserted = insert_dead_letters(dead, [letter for _, letter in letters])
    safe = [letters[index][0] for index in (*inserted.new, *inserted.there)]
    stuck += [(letters[index][0], why) for index, why in inserted.refused.items()]
    for index, redrives in inserted.taken.items():
        raw = letters[index][0]
        again = insert_dead_letters(dead, [build_dead_letter(raw, now=now, redrives=redrives)])
        safe += [raw] if again.new or again.there else []
        stuck += [(raw, why) for why in again.refused.values()]
        stuck += [(raw, "its id is taken by other dead letters")] * len(again.taken)
    moved = delete_tasks(tasks, safe)
    postpone_move(tasks, stuck, now=now)
    return Report(moved=moved, repeated=len(inserted.there), stuck=len(stuck))


@dataclass(frozen=True, slots=True, kw_only=True)
class InsertResult:
    """Outcomes of an insert of dead letters, by their index.

    An index in no attribute must be tried again: the document that took its id has disappeared.

    Attributes:
        new: Inserted now.
        there: Inserted earlier.
        taken: Another failure of a task with the same id has the id. The value is the next free number of redrives.
        refused: Refused by MongoDB, with the message.
    """

    new: Sequence[int] = ()
    there: Sequence[int] = ()
    taken: Mapping[int, int] = field(default_factory=dict)
    refused: Mapping[int, str] = field(default_factory=dict)


def find_failed(
    tasks: Tasks, *, limit: int, now: datetime, newest_first: bool = False
) -> Iterator[list[RawBSONDocument]]:
    """Yield failed tasks in lists of up to *limit*, the earliest failure first, without the fields of dead letters.

    Tasks that could not be moved are left out until their next attempt is due, documents of another program until the
    sweep has adopted them.
    """
    where: dict[str, Any] = {
        "status": "failed",
        "archive_retry_at": {"$not": {"$gt": now}},
        "$nor": [UNADOPTED_FAILURE],
    }
    with translate_errors():
        found = tasks.find(where, dict.fromkeys([*MARK_FIELDS, *ARCHIVE_ATTEMPT_FIELDS], 0), hint=indexes.FAILED)
        order = DESCENDING if newest_first else ASCENDING
        yield from byte_batches(found.sort("finished_at", order).batch_size(limit), most=limit)


def insert_dead_letters(dead: Tasks, letters: Sequence[RawBSONDocument]) -> InsertResult:
    """Insert *letters*, except those that exist already."""
    if not letters:
        return InsertResult()
    codes = insert_each(dead, letters, collection=DEAD_LETTERS)
    repeated = {index: letters[index] for index, code in codes.items() if code == DUPLICATE_KEY_CODE}
    there, taken = _find_duplicates(dead, repeated)
    return InsertResult(
        new=[index for index in range(len(letters)) if index not in codes],
        there=there,
        taken=taken,
        refused={index: f"MongoDB refuses it (code {code})" for index, code in codes.items() if index not in repeated},
    )


def close_earlier(dead: Tasks, letters: Sequence[RawBSONDocument], *, now: datetime) -> None:
    """Close the earlier dead letters of the tasks in *letters* whose redrive was interrupted.

    `complete` recognises such a redrive by the later dead letter. It could not do this once *letters* are purged.
    """
    close = {"$set": {"redriven_at": now}, "$unset": dict.fromkeys(REDRIVE_MARK_FIELDS, "")}
    updates = []
    for fields in map(decode_shallow, letters):
        task, redrives = fields["_id"]["task"], fields["_id"]["redrives"]
        if redrives:
            where = {
                "_id": {"$eq": {"task": task, "redrives": redrives - 1}},
                "created_at": {"$eq": fields.get("created_at")},
                "redrive_started_at": {"$type": "date"},
                "redriven_at": None,
            }
            updates.append(UpdateOne(where, close, hint=indexes.BY_ID))
    write_each(dead, updates)


def delete_tasks(tasks: Tasks, moved: Sequence[RawBSONDocument]) -> int:
    """Delete the tasks in *moved*, except tasks that were redriven or failed again since the read. Return the count."""
    if not moved:
        return 0
    deletions = [DeleteOne(_match_unchanged(raw), hint=indexes.BY_ID) for raw in moved]
    with translate_errors():
        return tasks.bulk_write(deletions, ordered=False).deleted_count


def postpone_move(tasks: Tasks, stuck: Sequence[tuple[RawBSONDocument, str]], *, now: datetime) -> None:
    """Record on failed tasks why they cannot be moved, and when to try again: later each time."""
    updates = [
        UpdateOne(_match_unchanged(raw), record_failed_attempt("archive", why=why, now=now), hint=indexes.BY_ID)
        for raw, why in stuck
    ]
    write_each(tasks, updates)


def _match_unchanged(raw: RawBSONDocument) -> dict[str, Any]:
    task = decode_shallow(raw)
    guard: dict[str, Any] = {"_id": {"$eq": task["_id"]}, "status": "failed"}
    for name in ("created_at", "updated_at", "finished_at", "redrives"):
        value = task.get(name)
        if isinstance(value, datetime | DatetimeMS | int | float | None):  # another type may not find its own document
            guard[name] = {"$eq": value}
    return guard


_TIMES: Final = ("created_at", "finished_at")
_PROJECTION: Final = (*_TIMES, "redrives", "redriven_at", "settled_by")


def _find_duplicates(dead: Tasks, letters: Mapping[int, RawBSONDocument]) -> tuple[list[int], dict[int, int]]:
    """Compare *letters*, whose ids are taken, with the stored dead letters of their tasks.

    Return `InsertResult.there` and `InsertResult.taken`.
    """
    dated = [letter for letter in letters.values() if _name_life_fields(letter) == _TIMES]
    same_ids = [{"_id": {"$eq": decode_shallow(letter)["_id"]}} for letter in dated]
    stored = {read_key(raw): raw for raw in _find_stored(dead, {"$or": same_ids}, _TIMES)} if same_ids else {}
    there, taken = list[int](), dict[int, int]()
    for index, letter in letters.items():
        same_id = stored.get(read_key(letter))
        found = [same_id] if same_id is not None and _is_same(letter, same_id) else _find_of_task(dead, letter)
        if any(_is_same(letter, stored_letter) for stored_letter in found):
            there.append(index)
        elif found:
            taken[index] = max(map(_read_redrives, found)) + 1
    return there, taken


def _find_of_task(dead: Tasks, letter: RawBSONDocument) -> list[RawBSONDocument]:
    where = {"_id": match_task(decode_shallow(letter)["_id"]["task"])}
    return _find_stored(dead, where, _name_life_fields(letter))


def _find_stored(dead: Tasks, where: Mapping[str, Any], life_fields: Sequence[str]) -> list[RawBSONDocument]:
    with translate_errors(DEAD_LETTERS):
        return list(dead.find(where, dict.fromkeys((*_PROJECTION, *life_fields), 1), hint=indexes.BY_ID))


def _is_same(letter: RawBSONDocument, stored: RawBSONDocument) -> bool:
    """Return whether *stored* records the same failure as *letter*.

    ``settled_by`` tells two failures in one millisecond apart. A redriven dead letter also needs the same number of
    redrives, because a document that was written by hand has no ``settled_by``.
    """
    fields, stored_fields = decode_shallow(letter), decode_shallow(stored)
    if fields.get("settled_by") != stored_fields.get("settled_by") or _read_life(letter) != _read_life(stored):
        return False
    return stored_fields.get("redriven_at") is None or read_redrives(fields) == read_redrives(stored_fields)


def _read_life(letter: RawBSONDocument) -> list[bytes]:
    """Return the values that tell this life of a task from its other lives."""
    fields = decode_shallow(letter)
    return [encode_fields({name: fields.get(name)}) for name in _name_life_fields(letter)]


def _name_life_fields(letter: RawBSONDocument) -> tuple[str, ...]:
    """Return the names of its times, or of its payload if it was written by hand without times."""
    fields = decode_shallow(letter)
    return _TIMES if any(fields.get(name) is not None for name in _TIMES) else ("payload",)


def _read_redrives(letter: RawBSONDocument) -> int:
    """Return the number of redrives in the id; 0 if it is no number or too large to count on from."""
    value = decode_shallow(letter)["_id"].get("redrives")
    is_number = isinstance(value, int | float) and 0 <= value < MAX_REDRIVES
    return int(value) if is_number else 0
