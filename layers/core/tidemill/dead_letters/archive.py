"""Archive: complete redrives, move failed tasks to the dead letters, update their retention, export.

The four steps are independent: a step that fails does not stop the steps after it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from bson.raw_bson import RawBSONDocument

from tidemill.clock import Clock
from tidemill.dead_letters import archive_writes
from tidemill.dead_letters import export as dead_letters_export
from tidemill.dead_letters.documents import build_dead_letter
from tidemill.dead_letters.export import export
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


@dataclass(slots=True, kw_only=True)
class Report:
    """Result of an archive run.

    Attributes:
        moved: Failed tasks that are dead letters now.
        repeated: Tasks among them whose dead letter existed already.
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


def archive(on: ArchiveContext, *, until: float, monotonic: Callable[[], float] = time.monotonic) -> Report:
    """Complete redrives, move failed tasks, update retention and export, until *until* (monotonic).

    Every step may stop anywhere; the next run completes it. Two runs at once are safe.

    Raises:
        ArchiveError: A step failed. The others ran, unless MongoDB was unreachable or refused the credentials.
    """
    return _ArchiveRun(on, until=until, monotonic=monotonic).run()


_PING_TIMEOUT_SEC: Final = 1.0


class _ArchiveRun:
    def __init__(self, on: ArchiveContext, *, until: float, monotonic: Callable[[], float]) -> None:
        self._on = on
        self._until = until
        self._monotonic = monotonic
        self._report = Report()

    def run(self) -> Report:
        errors: list[TidemillError] = []
        for step in (self._complete_redrives, self._move_failed, self._update_retention, self._export):
            try:
                step()
            except TidemillError as error:
                errors.append(error)
                if isinstance(error, CredentialsError):
                    break
                if isinstance(error, UnavailableError) and not self._is_mongodb_reachable():
                    break  # the remaining steps would only wait for MongoDB, too
        if errors:
            raise ArchiveError(errors, self._report) from errors[0]
        return self._report

    def _is_mongodb_reachable(self) -> bool:
        try:
            with translate_errors(), limit_time(_PING_TIMEOUT_SEC):
                run_server_command(self._on.tasks.database, "ping")
        except TidemillError:
            return False
        return True

    def _complete_redrives(self) -> None:
        on = self._on
        redrive_context = RedriveContext(tasks=on.tasks, dead=on.dead, clock=on.clock)
        self._report.redriven = complete(
            redrive_context, until=self._until, monotonic=self._monotonic, task_retention=on.task_retention
        )

    def _move_failed(self) -> None:
        on, report = self._on, self._report
        counts = move_failed(
            on.tasks,
            on.dead,
            clock=on.clock,
            until=self._until,
            monotonic=self._monotonic,
            batch_size=on.batch_size,
        )
        report.moved, report.repeated, report.stuck = counts.moved, counts.repeated, counts.stuck

    def _update_retention(self) -> None:
        on = self._on
        unchanged: list[Any] = []
        while self._monotonic() < self._until:
            written = (
                archive_writes.let_unexported_expire(on.dead, now=on.clock.now(), excluded_ids=unchanged)
                if on.expire_unexported
                else archive_writes.keep_unexported(on.dead, excluded_ids=unchanged)
            )
            unchanged += written.ids if written.changed < len(written.ids) else []
            if len(written.ids) < archive_writes.RETENTION_BATCH_SIZE:
                break

    def _export(self) -> None:
        on, report = self._on, self._report
        if on.put is None:
            report.unexported = dead_letters_export.count_unexported(on.dead, limit=COUNT_LIMIT)
            return
        result = export(on.dead, on.put, clock=on.clock, until=self._until, monotonic=self._monotonic)
        report.exported, report.export_refused = result.exported, result.refused
        report.unexported, report.export_failed, report.export_error = (
            result.left,
            result.failed,
            result.last_error,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveCounts:
    """Counts of failed tasks that the archive read.

    Attributes:
        moved: Tasks that are dead letters now.
        repeated: Tasks among them whose dead letter existed already, from another archive or an interrupted one.
        stuck: Tasks that cannot be stored as dead letters. They stay in ``tasks``.
    """

    moved: int = 0
    repeated: int = 0
    stuck: int = 0

    def __add__(self, addend: MoveCounts) -> MoveCounts:
        """Return the sum of both counts."""
        return MoveCounts(
            moved=self.moved + addend.moved,
            repeated=self.repeated + addend.repeated,
            stuck=self.stuck + addend.stuck,
        )


def move_failed(
    tasks: Tasks,
    dead: Tasks,
    *,
    clock: Clock,
    until: float,
    monotonic: Callable[[], float] = time.monotonic,
    batch_size: int = BATCH,
) -> MoveCounts:
    """Move failed tasks, *batch_size* at once, until none is left or *until* (monotonic) is past.

    A task is in both collections if a run stops between insert and delete. The next run finds its dead letter and
    deletes the task. If another archive took most of a batch, this one continues from the other end.
    """
    total = MoveCounts()
    newest_first, may_turn = False, True
    while monotonic() < until:
        before = total.moved
        for batch in archive_writes.find_failed(tasks, limit=batch_size, now=clock.now(), newest_first=newest_first):
            done = _move_batch(tasks, dead, batch, now=clock.now())
            total += done
            if monotonic() >= until:
                return total
            if may_turn and done.repeated > len(batch) / 2:
                break
        else:
            return total
        newest_first, may_turn = not newest_first, total.moved > before
    return total


def _move_batch(tasks: Tasks, dead: Tasks, batch: Sequence[RawBSONDocument], *, now: datetime) -> MoveCounts:
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
    return MoveCounts(moved=moved, repeated=len(inserted.there), stuck=len(stuck))
