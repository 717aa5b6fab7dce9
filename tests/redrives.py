"""Redrives as tests want them: all at once, cut short, and completed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.conftest import ManualClock
from tidemill.dead_letters import redrive_writes
from tidemill.dead_letters.queries import DeadLetterFilter
from tidemill.dead_letters.redrive import RedriveContext, RedriveRequest, RedriveResult, complete, redrive
from tidemill.store.connection import Tasks

EVER = 1e12
WEEK = timedelta(days=7)


class CutShort(BaseException):
    """What ends a process in the middle."""


def redriver(tasks: Tasks, dead: Tasks, clock: ManualClock, *names: str) -> RedriveContext:
    """What redrives with these functions registered, or with ``noop``."""
    return RedriveContext(tasks=tasks, dead=dead, registered=lambda: frozenset(names or ("noop",)), clock=clock)


def redrive_all(
    on: RedriveContext, which: DeadLetterFilter | None = None, *, limit: int = 10_000, **options: Any
) -> RedriveResult:
    """A redrive of all that is meant, in one call; *options* are of the plan."""
    return redrive(
        on, RedriveRequest(which=which or DeadLetterFilter(), **options), limit=limit, dry_run=False, until=EVER
    )


def cut_short(on: RedriveContext, monkeypatch: pytest.MonkeyPatch, step: str, *, after: bool, **options: Any) -> None:
    """Begin a redrive, and end it before or after a *step*."""
    do: Callable[..., object] = getattr(redrive_writes, step)

    def stop(where: Tasks, those: list[Any], **rest: Any) -> object:
        result = do(where, those, **rest) if after or not those else None
        if those:
            raise CutShort
        return result

    with monkeypatch.context() as patched:
        patched.setattr(redrive_writes, step, stop)
        with pytest.raises(CutShort):
            redrive_all(on, **options)


def finish(on: RedriveContext) -> int:
    """Complete what was cut short, and return how many came back."""
    return complete(on, until=EVER, task_retention=WEEK)
