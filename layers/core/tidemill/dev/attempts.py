"""Attempts on the terminal of `tidemill dev`: one line for each, and the traceback of each failure."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final, assert_never

from tidemill.clock import read_monotonic
from tidemill.dev.tracebacks import clean_lines
from tidemill.model import Cancelled, Failed, Retried, Snoozed, Succeeded, Task
from tidemill.store.settle import Settlement
from tidemill.text import format_duration

MAX_SUCCESSES: Final = 10
"""Successes with a line of their own in a second; of further ones only the number is printed."""


class Attempts:
    """Prints the attempts that have ended, by *say*: a line, and further lines below it."""

    def __init__(self, say: Callable[..., object], *, monotonic: Callable[[], float] = read_monotonic) -> None:
        self._say = say
        self._monotonic = monotonic
        self._second_ends_at = 0.0
        self._successes = 0

    def report(self, settlement: Settlement) -> None:
        """Print an attempt whose outcome is stored."""
        task = settlement.task
        if not isinstance(task, Task):
            self._say(f"task {task.id} is malformed and fails")
            return
        self.flush()
        if isinstance(settlement.outcome, Succeeded):
            self._successes += 1
            if self._successes > MAX_SUCCESSES:
                return
        outcome = settlement.outcome
        traceback = outcome.failure.traceback if isinstance(outcome, Retried | Failed) else ""
        self._say(describe_attempt(settlement, task), *clean_lines(traceback))

    def flush(self) -> None:
        """Print the number of the successes without a line, once their second is over."""
        now = self._monotonic()
        if now < self._second_ends_at:
            return
        if self._successes > MAX_SUCCESSES:
            self._say(f"{self._successes - MAX_SUCCESSES} more done")
        self._successes, self._second_ends_at = 0, now + 1.0


def describe_attempt(settlement: Settlement, task: Task) -> str:
    """Return the line of one ended attempt. It has no payload and no result."""
    attempt = f"{task.name} {task.id}  attempt {task.attempts}"
    duration = "" if settlement.run is None else f" in {format_duration(settlement.run.duration)}"
    match settlement.outcome:
        case Succeeded():
            return f"{attempt} done{duration}"
        case Retried(failure=failure, next_retry_at=at):
            return f"{attempt} failed{duration}: {failure.message}; the next attempt is at {_format_time(at)}"
        case Failed(failure=failure, reason=reason):
            return f"{attempt} failed for good ({reason}){duration}: {failure.message}"
        case Snoozed(until=until):
            return f"{attempt} snoozed until {_format_time(until)}"
        case Cancelled():
            return f"{attempt} cancelled"
        case unexpected:
            assert_never(unexpected)


def _format_time(at: datetime) -> str:
    """Return *at* on the clock of this machine, as the lines begin with it."""
    local = at.astimezone()
    return f"{local:%H:%M:%S}" if local.date() == datetime.now(local.tzinfo).date() else f"{local:%Y-%m-%d %H:%M:%S}"
