"""What a drain did."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Self

from tidemill.executor import Report
from tidemill.testing.watched import FailedRun, Watched, not_registered


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Drained:
    """How many attempts ended how, and what went wrong.

    Attributes:
        done: Tasks that are done.
        retried: Attempts that failed and are followed by another.
        failed: Tasks that failed for good.
        snoozed: Tasks that were put off.
        cancelled: Tasks that were cancelled while they ran, or before.
        timed_out: Attempts that ran too long; also counted as retried or failed.
        report: All that an executor counts, by name.
        failures: What functions raised, one run after the other.
        unregistered: The names of tasks that there was no function for. Executors wait for one, for it may be about to
            be deployed, so these tasks are counted as snoozed.
        now: What the time was at the end.
    """

    done: int
    retried: int
    failed: int
    snoozed: int
    cancelled: int
    timed_out: int
    report: Report
    failures: tuple[FailedRun, ...]
    unregistered: tuple[str, ...]
    now: datetime

    @classmethod
    def of(cls, report: Report, watched: Watched, *, now: datetime) -> Self:
        """Return what *report* counted and *watched* saw."""
        return cls(
            done=report["done"],
            retried=report["retried"],
            failed=report["failed"],
            snoozed=report["snoozed"],
            cancelled=report["cancelled"],
            timed_out=report["timed_out"],
            report=report,
            failures=tuple(watched.failures),
            unregistered=tuple(watched.unregistered),
            now=now,
        )

    def raise_failures(self) -> Self:
        """Raise what the first run raised that did, or return this.

        ::

            drain(queue).raise_failures()

        Raises:
            AssertionError: It was an exit or a timeout, an attempt failed and nothing was raised, or a function is not
                registered.
        """
        __tracebackhide__ = True
        if self.failures:
            first = self.failures[0]
            if isinstance(first.error, SystemExit) or not isinstance(first.error, Exception):
                raise AssertionError(str(first)) from first.error  # as it is, it would end the test runner
            raise first.error
        if self.unregistered or self.retried or self.failed:
            raise AssertionError(repr(self))
        return self

    def __repr__(self) -> str:
        """Return the counts that are not zero, and every problem."""
        counts = ", ".join(f"{name} {count}" for name, count in self.report.as_dict().items() if count)
        problems = [not_registered(name) for name in self.unregistered] + [str(one) for one in self.failures]
        return f"<drained: {'; '.join([counts or 'nothing was due', *problems])}>"
