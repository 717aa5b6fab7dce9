"""Archive: complete redrives, move failed tasks to the dead letters, update their retention, export.

The four steps are independent: a step that fails does not stop the steps after it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

from bson.raw_bson import RawBSONDocument

from tidemill.clock import Clock
from tidemill.dead_letters import archive_writes
from tidemill.dead_letters.documents import build_dead_letter
from tidemill.dead_letters.export import count_unexported, export
from tidemill.dead_letters.export_format import PutObject
from tidemill.dead_letters.redrive import RedriveContext, complete
from tidemill.errors import CredentialsError, TidemillError, UnavailableError
from tidemill.store.connection import Tasks, limit_time, run_server_command, translate_errors
from tidemill.store.counts import COUNT_LIMIT

BATCH: Final = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveContext:
    """Collaborators and options of an archive run.

    Attributes:
        task_retention: How long done tasks are kept.
        put: Stores an object; ``None`` without a bucket.
        expire_unexported: Dead letters may expire although they were never exported.
        batch_size: Maximum number of failed tasks to move at once.
    """

    tasks: Tasks
    dead: Tasks
    clock: Clock
    task_retention: timedelta
    put: PutObject | None = None
    expire_unexported: bool = False
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
_PING_TIMEOUT_SEC: Final = 1.0


def archive(on: ArchiveContext, *, until: float, monotonic: Monotonic = time.monotonic) -> Report:
    """Complete redrives, move failed tasks, update retention and export, until *until* (monotonic).

    Every step may stop anywhere; the next run completes it. Two runs at once are safe.

    Raises:
        ArchiveError: A step failed. The others ran, unless MongoDB was unreachable or refused the credentials.
    """
    report, errors = Report(), list[TidemillError]()
    for step in (_complete_redrives, _move_failed, _update_retention, _export):
        try:
            report = step(on, report, until, monotonic)
        except TidemillError as error:
            errors.append(error)
            is_unreachable = isinstance(error, UnavailableError) and not _is_mongodb_reachable(on.tasks)
            if is_unreachable or isinstance(error, CredentialsError):
                break  # the remaining steps would only wait for MongoDB, too
    if errors:
        raise ArchiveError(errors, report) from errors[0]
    return report


def _is_mongodb_reachable(tasks: Tasks) -> bool:
    try:
        with translate_errors(), limit_time(_PING_TIMEOUT_SEC):
            run_server_command(tasks.database, "ping")
    except TidemillError:
        return False
    return True


def _complete_redrives(on: ArchiveContext, report: Report, until: float, monotonic: Monotonic) -> Report:
    context = RedriveContext(tasks=on.tasks, dead=on.dead, clock=on.clock)
    redriven = complete(context, until=until, monotonic=monotonic, task_retention=on.task_retention)
    return replace(report, redriven=redriven)


def _move_failed(on: ArchiveContext, report: Report, until: float, monotonic: Monotonic) -> Report:
    moves = move_failed(on.tasks, on.dead, clock=on.clock, until=until, monotonic=monotonic, batch_size=on.batch_size)
    return _add_moves(report, moves)


def _update_retention(on: ArchiveContext, report: Report, until: float, monotonic: Monotonic) -> Report:
    unchanged: list[Any] = []
    while monotonic() < until:
        ids, changed = archive_writes.update_retention(
            on.dead, expire_unexported=on.expire_unexported, now=on.clock.now(), excluded_ids=unchanged
        )
        unchanged += ids if changed < len(ids) else []
        if len(ids) < archive_writes.RETENTION_BATCH_SIZE:
            break
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
        for batch in archive_writes.find_failed(tasks, limit=batch_size, now=clock.now(), newest_first=newest_first):
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
    archive_writes.close_earlier(dead, [letter for _, letter in letters], now=now)
    inserted = archive_writes.insert_dead_letters(dead, [letter for _, letter in letters])
    safe = [letters[index][0] for index in (*inserted.new, *inserted.there)]
    stuck += [(letters[index][0], why) for index, why in inserted.refused.items()]
    for index, redrives in inserted.taken.items():
        raw = letters[index][0]
        again = archive_writes.insert_dead_letters(dead, [build_dead_letter(raw, now=now, redrives=redrives)])
        safe += [raw] if again.new or again.there else []
        stuck += [(raw, why) for why in again.refused.values()]
        stuck += [(raw, "its id is taken by other dead letters")] * len(again.taken)
    moved = archive_writes.delete_tasks(tasks, safe)
    archive_writes.postpone_move(tasks, stuck, now=now)
    return Report(moved=moved, repeated=len(inserted.there), stuck=len(stuck))
