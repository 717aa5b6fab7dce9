"""The warm state of this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

from pymongo.database import Database

from tests.builders import make_service
from tidemill.bootstrap import Role, deployment
from tidemill.clock import ServerClock


class BrokenClock:
    """The clock of *db*, except that a read raises *error* while *is_broken*; ``errors`` counts the raised errors."""

    def __init__(self, db: Database[Any], error: Exception, is_broken: Callable[[], bool]) -> None:
        self.errors = 0
        self._clock = ServerClock(db)
        self._error = error
        self._is_broken = is_broken

    def now(self) -> datetime:
        if not self._is_broken():
            return self._clock.now()
        self.errors += 1
        raise self._error


def break_clock(function: Role, error: Exception, *, is_broken: Callable[[], bool] = lambda: True) -> BrokenClock:
    """Let *function* go by a clock that raises *error* while *is_broken*, until its next cold start."""
    warm = deployment()
    clock = BrokenClock(warm.database(function), error, is_broken)
    match function:
        case "enqueue":
            warm.enqueue_service = make_service(warm.database("enqueue"), clock=clock)
        case "execute":
            warm.runtime = replace(warm.runtime, clock=clock)
        case "reclaim":
            warm.reclaim_context = replace(warm.reclaim_context, clock=clock)
        case "archive":
            warm.archive_context = replace(warm.archive_context, clock=clock)
        case "operate":
            warm.admin_context = replace(warm.admin_context, clock=clock)
        case _:
            raise LookupError(function)
    return clock


def cool_down() -> None:
    """Close what the deployment has opened; the next use reads the environment, as in a cold start."""
    if deployment.cache_info().currsize:
        deployment().reset()
    deployment.cache_clear()
