"""One run of the archive: four steps, of which one that fails keeps no other back."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from tidemill.archive.moving import move
from tidemill.clock import Clock
from tidemill.dead_letters import exporting, keeping
from tidemill.errors import CredentialsError, TidemillError, UnavailableError
from tidemill.export import Put, export
from tidemill.redrive import Ground, complete
from tidemill.store import Tasks, asked, translated, within
from tidemill.store.gauges import MANY

_PATIENCE_SEC: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Archives:
    """What an archive run works with.

    Attributes:
        forgotten_after: How long done tasks are kept.
        put: Stores an object; ``None`` where there is no bucket.
        expire_unexported: Dead letters may expire although they were never exported.
    """

    tasks: Tasks
    dead: Tasks
    clock: Clock
    forgotten_after: timedelta
    put: Put | None = None
    expire_unexported: bool = False


@dataclass(slots=True, kw_only=True)
class Report:
    """What a run has done.

    Attributes:
        moved: Failed tasks that are dead letters now.
        repeated: How many of them had been so before.
        stuck: Failed tasks that cannot be stored as dead letters, and stay.
        redriven: Redrives that were cut short and are complete now.
        exported: Dead letters copied to the bucket.
        export_refused: Dead letters that the bucket does not take, each for a reason of its own.
        unexported: Dead letters that are not exported; 10,000 says at least so many.
        export_failed: Puts that failed for no fault of their letters.
        export_trouble: Why letters are left that the bucket did not refuse, in a word of S3's; the latest.
    """

    moved: int = 0
    repeated: int = 0
    stuck: int = 0
    redriven: int = 0
    exported: int = 0
    export_refused: int = 0
    unexported: int = 0
    export_failed: int = 0
    export_trouble: str | None = None


class ArchiveError(TidemillError):
    """Steps of a run failed.

    Attributes:
        troubles: What failed, in order.
        report: What the run has done all the same.
    """

    def __init__(self, troubles: Sequence[TidemillError], report: Report) -> None:
        self.troubles = tuple(troubles)
        self.report = report
        super().__init__("; ".join(map(str, self.troubles)))


def archive(on: Archives, *, until: float, monotonic: Callable[[], float] = time.monotonic) -> Report:
    """Complete redrives, move failed tasks, mark what may expire, export; until *until* (monotonic).

    Every step can be stopped anywhere and is gone on with by the next run; two runs at once do no harm.

    Raises:
        ArchiveError: Something kept a step from its work; the others are done, unless MongoDB was found away.
    """
    return _Run(on, until=until, monotonic=monotonic).all()


class _Run:
    def __init__(self, on: Archives, *, until: float, monotonic: Callable[[], float]) -> None:
        self._on = on
        self._until = until
        self._monotonic = monotonic
        self._report = Report()

    def all(self) -> Report:
        troubles: list[TidemillError] = []
        for step in (self._complete, self._move, self._keep, self._export):
            try:
                step()
            except TidemillError as error:
                troubles.append(error)
                if isinstance(error, CredentialsError):
                    break
                if isinstance(error, UnavailableError) and not self._is_mongodb_there():
                    break  # the others would only wait for it, too
        if troubles:
            raise ArchiveError(troubles, self._report) from troubles[0]
        return self._report

    def _is_mongodb_there(self) -> bool:
        try:
            with translated(), within(_PATIENCE_SEC):
                asked(self._on.tasks.database, "ping")
        except TidemillError:
            return False
        return True

    def _complete(self) -> None:
        on = self._on
        ground = Ground(tasks=on.tasks, dead=on.dead, clock=on.clock)
        self._report.redriven = complete(
            ground, until=self._until, monotonic=self._monotonic, forgotten_after=on.forgotten_after
        )

    def _move(self) -> None:
        on, report = self._on, self._report
        moved = move(on.tasks, on.dead, clock=on.clock, until=self._until, monotonic=self._monotonic)
        report.moved, report.repeated, report.stuck = moved.moved, moved.repeated, moved.stuck

    def _keep(self) -> None:
        on = self._on
        in_vain: list[Any] = []
        while self._monotonic() < self._until:
            kept = (
                keeping.let_unexported_expire(on.dead, now=on.clock.now(), but=in_vain)
                if on.expire_unexported
                else keeping.keep_unexported(on.dead, but=in_vain)
            )
            in_vain += kept.ids if kept.changed < len(kept.ids) else []
            if len(kept.ids) < keeping.LIMIT:
                break

    def _export(self) -> None:
        on, report = self._on, self._report
        if on.put is None:
            report.unexported = exporting.count_unexported(on.dead, limit=MANY)
            return
        done = export(on.dead, on.put, clock=on.clock, until=self._until, monotonic=self._monotonic)
        report.exported, report.export_refused = done.exported, done.refused
        report.unexported, report.export_failed, report.export_trouble = done.left, done.failed, done.trouble
