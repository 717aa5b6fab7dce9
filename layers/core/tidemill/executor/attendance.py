"""One invocation from its seat to its successor: who comes in, who works, and who must come after."""

from __future__ import annotations

import uuid
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import timedelta
from typing import Final

from tidemill.control import Holder, Seats
from tidemill.errors import TidemillError
from tidemill.executor.life import LEASE_GRACE
from tidemill.executor.loop import execute
from tidemill.executor.recruiting import Recruiter, progress
from tidemill.executor.report import Report
from tidemill.executor.runtime import Order, Runtime
from tidemill.settings import Settings
from tidemill.store import within
from tidemill.summon import Summoner

OPERATION_SEC: Final = 5.0
LAST_SECONDS: Final = 0.5
"""Kept of an invocation for its answer."""

START: Final = timedelta(seconds=5)
"""What an invocation may have lost before it is asked how long it lives."""

PATIENCE_SEC: Final = 2.0
"""How long to wait for a successor to be summoned: a first call makes its client and its connection."""


def attend(runtime: Runtime, order: Order, *, seats: Seats, summoner: Summoner | None) -> Report:
    """Work as `execute` does, on one of *seats*; without one, say so and leave.

    Leaving it summons one executor where somebody was turned away meanwhile, or where it ran out of time with work
    left; `is_succeeded` keeps that from going on for ever. Stopped at any point it leaves leases and a seat, which
    end with the invocation.

    Raises:
        TidemillError: MongoDB did not say whether there is a seat, or as `execute` does.
    """
    if order.remaining < _reserve(runtime.settings):
        return Report(skipped="time")  # and takes no seat from others
    return Attendance(runtime, order, seats=seats, summoner=summoner).attend()


def is_succeeded(report: Report | None, *, knocked: bool) -> bool:
    """Tell whether an executor is to come after one that ended with *report*, ``None`` where it broke off.

    Every knock was one invocation that was turned away, so it lets in no more than there were. And what is left over
    is a reason only for one that got something done: others would fare no better with a database that fails, a queue
    that is paused or tasks that cannot start.
    """
    return knocked or (report is not None and report.backlog and progress(report) > 0)


def shortage(settings: Settings, *, life: timedelta) -> str | None:
    """Return what to change where an invocation of *life* is too short for the longest tasks, or ``None``."""
    reserve = _reserve(settings)
    if life < reserve:
        effect = "nothing can be claimed"
    elif life + START < 2 * reserve:
        effect = "less than half of it is left for claiming"
    else:
        return None
    seconds = f"{2 * reserve.total_seconds():g}"
    return f"{effect}: give the function a timeout of {seconds} s, or lower MAX_TASK_TIMEOUT_SEC"


class Attendance:
    """One invocation that wants a seat."""

    def __init__(self, runtime: Runtime, order: Order, *, seats: Seats, summoner: Summoner | None) -> None:
        self._runtime = runtime
        self._order = order
        self._seats = seats
        self._summoner = summoner
        self._holder = Holder(owner=order.owner, execution=uuid.uuid4().hex)
        self._deadline = runtime.monotonic() + order.remaining.total_seconds()

    def attend(self) -> Report:
        """Take a seat, work, leave, and see to it that somebody comes if need be."""
        with self._within():
            if not self._is_seated():
                return Report(skipped="seats")
        report: Report | None = None
        errors = 0
        try:
            order = replace(self._order, remaining=self._remaining())  # less what taking the seat took
            report = execute(self._runtime, order, recruiter=self._recruiter())
        finally:
            try:
                knocked = self._leaves()
            except TidemillError:  # the seat ends by itself
                knocked, errors = False, 1
            if is_succeeded(report, knocked=knocked):
                self._summon()
        report["errors"] += errors
        return report

    def _is_seated(self) -> bool:
        now = self._runtime.clock.now()
        until = now + self._remaining() + LEASE_GRACE
        return self._seats.take(self._holder, until=until, now=now, service=self._runtime.service(self._order))

    def _leaves(self) -> bool:
        with self._within():
            return self._seats.leave(self._holder, now=self._runtime.clock.now())

    def _summon(self) -> None:
        if self._summoner is not None:
            self._summoner.summon(patience_sec=min(PATIENCE_SEC, self._seconds_left()))

    def _recruiter(self) -> Recruiter | None:
        if self._summoner is None:
            return None
        return Recruiter(
            self._runtime,
            self._order,
            seats=self._seats,
            summoner=self._summoner,
            claims_until=self._deadline - _reserve(self._runtime.settings).total_seconds(),
        )

    def _within(self) -> AbstractContextManager[None]:
        return within(min(self._seconds_left(), OPERATION_SEC))

    def _seconds_left(self) -> float:
        return max(self._remaining().total_seconds() - LAST_SECONDS, 0.0)

    def _remaining(self) -> timedelta:
        return timedelta(seconds=self._deadline - self._runtime.monotonic())


def _reserve(settings: Settings) -> timedelta:
    """Return what an executor that claims must have left."""
    return settings.max_task_timeout + settings.margin
