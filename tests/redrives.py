"""Redrives as tests want them: all at once, cut short, and completed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeAlias

import pytest
from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent

from tests.faults import heard
from tests.fixtures import ManualClock
from tidemill.dead_letters.redrive import RedriveContext, RedriveRequest, RedriveResult, complete, redrive
from tidemill.dead_letters.selection import DeadLetterFilter
from tidemill.documents import DEAD_LETTERS
from tidemill.store.connection import Tasks, open_tasks

Act: TypeAlias = Callable[[Any], object]
"""What a test does at a command, given its event."""

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


def cut_short(on: RedriveContext, step: str, *, after: bool, **options: Any) -> None:
    """Begin a redrive, and end it before or after a *step*."""

    def end(_: object) -> None:
        raise CutShort

    acts: dict[str, Act] = {"after" if after else "before": end}
    with acting(on, step, **acts) as watched, pytest.raises(CutShort):
        redrive_all(watched, **options)


@contextmanager
def acting(
    on: RedriveContext, step: str, *, before: Act | None = None, after: Act | None = None
) -> Iterator[RedriveContext]:
    """Yield *on* over a client that calls *before* and *after*, once, around its command of a *step*."""
    with heard(on.tasks.database, _AroundStep(step, before=before, after=after)) as db:
        yield replace(on, tasks=open_tasks(db), dead=open_tasks(db, DEAD_LETTERS))


class _AroundStep(CommandListener):
    def __init__(self, step: str, *, before: Act | None, after: Act | None) -> None:
        self._step = step
        self._before = before
        self._after = after
        self._request_id: int | None = None

    def started(self, event: CommandStartedEvent) -> None:
        """Act before the step, if this is it."""
        if self._request_id is None and _is_step(event, self._step):
            self._request_id = event.request_id
            if self._before is not None:
                self._before(event)

    def succeeded(self, event: CommandSucceededEvent) -> None:
        """Act after the step, if this was it."""
        if self._after is not None and event.request_id == self._request_id:
            self._after(event)

    def failed(self, event: CommandFailedEvent) -> None:
        """Nothing is done about it."""


def _is_step(event: CommandStartedEvent, step: str) -> bool:
    if step == "insert":
        return event.command_name == "insert"
    field = {"mark": "redrive_token", "close": "redriven_at"}[step]
    return event.command_name == "update" and field in event.command["updates"][0]["u"].get("$set", {})


def finish(on: RedriveContext) -> int:
    """Complete what was cut short, and return how many came back."""
    return complete(on, until=EVER, task_retention=WEEK)
