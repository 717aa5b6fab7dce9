"""Maintenance by workers: what the functions ``reclaim`` and ``archive`` do in a deployment, on a thread of a worker.

One worker at a time does it: the one that holds the permit ``maintenance``. Every step may stop, repeat and overlap, so
a permit that expires during a pass does no harm.
"""

from __future__ import annotations

import threading
import traceback
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeAlias

from pymongo.database import Database

from tidemill.clock import Clock
from tidemill.control import semaphores
from tidemill.control.semaphores import PermitOwner
from tidemill.dead_letters.archive import ArchiveContext, ArchiveError, archive
from tidemill.errors import TidemillError, UnavailableError
from tidemill.reclaim import ReclaimContext, reclaim, reclaim_expired
from tidemill.store.connection import limit_time

PERMIT_ID: Final = "maintenance"
"""Id of the document with the permit."""

LOSS_DELAY_SHARE: Final = 0.4
"""Tasks of a lost worker are due again within 2 s instead of 5 s: another worker runs them at once."""

UNAVAILABLE_SEC: Final = 30.0
"""Time without an answer of MongoDB before that is an error: fail-overs take less, and workers notice it first."""

Step: TypeAlias = Literal["permit", "reclaim", "sweep", "archive"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceTiming:
    """Times of the maintenance, in seconds. The product uses the defaults; a test passes its own."""

    permit_sec: float = 15.0  # for which the permit is held without a renewal
    renew_sec: float = 5.0  # between two renewals, and between two runs of all steps
    pass_sec: float = 1.0  # between two searches for expired leases and expired tasks
    end_sec: float = 2.0  # longest wait for the thread at the end of the worker


MAINTENANCE_TIMING: Final = MaintenanceTiming()


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceContext:
    """Collaborators of the maintenance of one worker, which is called *owner*.

    With ``owns_database`` it does all that reclaim and archive do, by the settings of this process. Otherwise it leaves
    what depends on the settings of a deployment: it adopts and quarantines nothing, and changes no mark of a dead
    letter.
    """

    owner: str
    reclaim: ReclaimContext
    archive: ArchiveContext
    owns_database: bool = False
    timing: MaintenanceTiming = MAINTENANCE_TIMING


class Maintenance:
    """Context in which a daemon thread recovers lost tasks and moves failed ones, while it holds the permit.

    A step that fails is repeated, and stops neither the other steps nor the worker.
    """

    def __init__(self, context: MaintenanceContext) -> None:
        self._timing = context.timing
        self._monotonic = context.reclaim.monotonic
        self._owns_database = context.owns_database
        self._permit = _Permit(context.reclaim.tasks.database, context.reclaim.clock, context.owner, context.timing)
        self._reclaim_context = replace(
            context.reclaim,
            observe_error=self._record,
            loss_delay_share=LOSS_DELAY_SHARE,
        )
        self._archive_context = context.archive
        if not context.owns_database:
            self._archive_context = replace(context.archive, only_moves=True, task_retention=None)
        self._next_renewal_at = -1e9
        self._step: Step = "permit"
        self._errors: dict[Step, TidemillError] = {}
        self._unavailable_since: float | None = None
        self._error: TidemillError | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="tidemill-maintenance", daemon=True)

    @property
    def error(self) -> TidemillError | None:
        """The error of the last pass, or of the last try of a step that was not tried again; for any thread.

        A MongoDB that does not answer is an error only after `UNAVAILABLE_SEC`.
        """
        return self._error

    def __enter__(self) -> Self:
        """Start the thread."""
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """End the thread, and wait for it for a moment. An operation that hangs ends with the process."""
        self._stop.set()
        self._thread.join(self._timing.end_sec)

    def _serve(self) -> None:
        while not self._stop.is_set():
            self._run_pass()
            self._stop.wait(self._timing.pass_sec)
        with suppress(Exception):  # otherwise it expires; the client may be closed already
            self._permit.release()

    def _run_pass(self) -> None:
        is_renewed = False
        if self._monotonic() >= self._next_renewal_at:
            is_renewed = self._try_step("permit", self._renew)
        if self._permit.is_held:
            self._try_step("reclaim", self._reclaim_expired)
            if is_renewed and self._owns_database:
                self._try_step("sweep", self._sweep)
            if is_renewed:
                self._try_step("archive", self._archive)
        else:
            self._errors = {step: error for step, error in self._errors.items() if step == "permit"}
        self._report_errors()

    def _renew(self) -> None:
        self._permit.renew()
        self._next_renewal_at = self._monotonic() + self._timing.renew_sec

    def _reclaim_expired(self) -> None:
        reclaim_expired(self._reclaim_context, until=self._end_of_step())

    def _sweep(self) -> None:
        reclaim(self._reclaim_context, until=self._end_of_step())

    def _archive(self) -> None:
        try:
            archive(self._archive_context, until=self._end_of_step(), monotonic=self._monotonic)
        except ArchiveError as error:
            raise error.errors[0] from None

    def _end_of_step(self) -> float:
        """Return the time at which a step stops between two batches, so that the permit is renewed in time."""
        return self._monotonic() + self._timing.renew_sec

    def _try_step(self, step: Step, run: Callable[[], None]) -> bool:
        """Run *step*. Return whether it succeeded as a whole or in part; `_errors` has its first error."""
        self._step = step
        self._errors.pop(step, None)
        try:
            run()
        except TidemillError as error:
            self._record(error)
            return False
        except Exception as error:  # noqa: BLE001 - nothing in this thread may pass unnoticed or stop it
            self._record(_describe_unexpected(error))
            return False
        return True

    def _record(self, error: TidemillError) -> None:
        self._errors.setdefault(self._step, error)

    def _report_errors(self) -> None:
        error = next(iter(self._errors.values()), None)
        at = self._monotonic()
        since = (self._unavailable_since or at) if isinstance(error, UnavailableError) else None
        self._unavailable_since = since
        if since is None or at - since >= UNAVAILABLE_SEC:
            self._error = error


def _describe_unexpected(error: Exception) -> TidemillError:
    """Return an error with the type and the place of *error*, and without its text, which may hold any data."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return TidemillError(f"an unexpected error ({type(error).__name__} at {Path(place.filename).name}:{place.lineno})")


class _Permit:
    """The permit of one worker, which it holds until a time on the clock of the database."""

    def __init__(self, db: Database[Any], clock: Clock, owner: str, timing: MaintenanceTiming) -> None:
        self._db = db
        self._clock = clock
        self._owner = PermitOwner(owner=owner, execution=uuid.uuid4().hex)
        self._timing = timing
        self._seq = 0
        self.is_held = False

    def renew(self) -> None:
        """Acquire the permit, or hold it for longer; if another worker holds it, `is_held` becomes false.

        Raises:
            UnavailableError: The effect is unknown. The permit is not used until the next call.
        """
        self._update(wanted=1)

    def release(self) -> None:
        """Release the permit, so that another worker acquires it at once."""
        if self.is_held:
            self._update(wanted=0)

    def _update(self, *, wanted: int) -> None:
        self.is_held = False
        self._seq += 1
        with limit_time(self._timing.renew_sec):
            now = self._clock.now()
            # Nothing counts as held: after a pause of this process another worker may hold the permit.
            number = semaphores.acquire(
                self._db,
                PERMIT_ID,
                self._owner,
                seq=self._seq,
                held=0,
                wanted=wanted,
                limit=1,
                until=now + timedelta(seconds=self._timing.permit_sec),
                now=now,
            )
        self.is_held = number > 0
