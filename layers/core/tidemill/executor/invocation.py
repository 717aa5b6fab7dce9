"""One invocation: it acquires an executor slot, executes, releases the slot, and launches a successor if needed."""

from __future__ import annotations

import uuid
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from datetime import timedelta
from typing import Final

from tidemill.control.fleet import ExecutorSlots
from tidemill.control.semaphores import PermitOwner
from tidemill.errors import TidemillError, UnavailableError
from tidemill.executor.context import ExecutionOptions, Report, Runtime
from tidemill.executor.execution import execute
from tidemill.executor.lifetime import LEASE_GRACE, claim_reserve
from tidemill.executor.scaling import Launcher, ScaleOut, count_progress
from tidemill.settings import Settings
from tidemill.store.connection import limit_time

START_ALLOWANCE: Final = timedelta(seconds=5)
"""Time that may pass before an invocation reads its remaining time."""


def run_invocation(
    runtime: Runtime,
    options: ExecutionOptions,
    *,
    executor_slots: ExecutorSlots,
    launcher: Launcher | None,
) -> Report:
    """Acquire an executor slot and run `execute`. Without a free slot, report ``skipped`` and return.

    At its end it launches one executor if an executor was refused meanwhile, or if time is up and due tasks are left.
    Successors need progress, so that their chain ends. An invocation that stops at any point leaves leases and a slot,
    which expire with the invocation.

    Raises:
        TidemillError: MongoDB did not answer the request for a slot, or `execute` raised it.
    """
    if options.remaining < claim_reserve(runtime.settings):
        return Report(skipped="time")  # before it acquires a slot
    return _InvocationRun(runtime, options, executor_slots, launcher).run()


def needs_successor(report: Report | None, *, has_waiter: bool) -> bool:
    """Return whether an executor that ended with *report* needs a successor. *report* is ``None`` after an exception.

    A refused executor is a reason: every mark stands for an invocation, so successors are no more than refusals. A
    backlog is a reason only after progress. Without progress a successor would meet the same obstacle: a failing
    database, a paused queue or tasks that cannot start.
    """
    return has_waiter or (report is not None and report.backlog and count_progress(report) > 0)


def describe_short_timeout(settings: Settings, *, life: timedelta) -> str | None:
    """Return the problem and its remedy if an invocation of *life* is too short for the longest tasks, or ``None``."""
    reserve = claim_reserve(settings)
    if life < reserve:
        effect = "nothing can be claimed"
    elif life + START_ALLOWANCE < 2 * reserve:
        effect = "less than half of it is left for claiming"
    else:
        return None
    seconds = f"{2 * reserve.total_seconds():g}"
    return f"{effect}: give the function a timeout of {seconds} s, or lower MAX_TASK_TIMEOUT_SEC"


class _InvocationRun:
    def __init__(
        self, runtime: Runtime, options: ExecutionOptions, executor_slots: ExecutorSlots, launcher: Launcher | None
    ) -> None:
        self._runtime = runtime
        self._options = options
        self._slots = executor_slots
        self._launcher = launcher
        self._slot_owner = PermitOwner(owner=options.owner, execution=uuid.uuid4().hex)
        self._deadline = runtime.monotonic() + options.remaining.total_seconds()

    def run(self) -> Report:
        if not self._acquire_slot():
            return Report(skipped="executor_slots")
        report: Report | None = None
        errors = 0
        try:
            options = replace(self._options, remaining=self._remaining())  # less the time that the slot took
            report = execute(self._runtime, options, scale_out=self._make_scale_out())
        finally:
            try:
                has_waiter = self._release_slot()
            except TidemillError:  # the slot expires
                has_waiter, errors = False, 1
            if needs_successor(report, has_waiter=has_waiter):
                self._launch_successor()
        report["errors"] += errors
        return report

    def _acquire_slot(self) -> bool:
        with self._within():
            now = self._runtime.clock.now()
        until = now + self._remaining() + LEASE_GRACE
        subscription = self._runtime.subscription(self._options)
        try:
            with self._within():
                return self._slots.acquire(self._slot_owner, until=until, now=now, subscription=subscription)
        except UnavailableError:  # the slot may be taken, or may be taken later: try once to release it
            with suppress(TidemillError), self._within():
                self._slots.cancel_acquire(self._slot_owner, until=until, now=now)
            raise

    def _release_slot(self) -> bool:
        with self._within():
            return self._slots.release(self._slot_owner, now=self._runtime.clock.now())

    def _launch_successor(self) -> None:
        if self._launcher is not None:
            self._launcher.launch(timeout_sec=min(self._runtime.timing.successor_timeout_sec, self._seconds_left()))

    def _make_scale_out(self) -> ScaleOut | None:
        if self._launcher is None:
            return None
        return ScaleOut(
            self._runtime,
            self._options,
            executor_slots=self._slots,
            launcher=self._launcher,
            claims_until=self._deadline - claim_reserve(self._runtime.settings).total_seconds(),
        )

    def _within(self) -> AbstractContextManager[None]:
        return limit_time(min(self._seconds_left(), self._runtime.timing.executor_slot_timeout_sec))

    def _seconds_left(self) -> float:
        return max(self._remaining().total_seconds() - self._runtime.timing.answer_reserve_sec, 0.0)

    def _remaining(self) -> timedelta:
        return timedelta(seconds=self._deadline - self._runtime.monotonic())
