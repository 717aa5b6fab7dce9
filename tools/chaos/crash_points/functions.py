"""Task functions that end in every way there is; what they do depends on nothing but the attempt and the time."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from tidemill import Fail, Snooze, TaskContext
from tidemill.clock import Clock
from tidemill.registry import Registry

LONG_SEC: Final = 0.06
"""What ``lasts`` takes: longer than a worker here waits before it extends its leases."""


class Runs:
    """Counts the runs of each task, by the ``n`` of its payload."""

    def __init__(self) -> None:
        self._counts: Counter[Any] = Counter()
        self._lock = threading.Lock()

    def began(self, payload: dict[str, Any]) -> None:
        """Count one."""
        with self._lock:
            self._counts[payload.get("n")] += 1

    def counts(self) -> Counter[Any]:
        """Return the counts so far."""
        with self._lock:
            return self._counts.copy()

    def clear(self) -> None:
        """Count anew."""
        with self._lock:
            self._counts.clear()


RUNS: Final = Runs()
"""Those of this process."""


def registry(runs: Runs, clock: Clock, *, snoozed_until: datetime) -> Registry:
    """Return functions whose runs are counted; the one that snoozes does so until a time."""
    made = Registry()

    def ends(payload: dict[str, Any], _: TaskContext) -> dict[str, Any]:
        return {"n": payload.get("n")}

    def fails_once(payload: dict[str, Any], ctx: TaskContext) -> dict[str, Any]:
        if ctx.attempt == 1:
            raise RuntimeError("not yet")
        return ends(payload, ctx)

    def fails(_: dict[str, Any], __: TaskContext) -> None:
        raise RuntimeError("never")

    def refuses(_: dict[str, Any], __: TaskContext) -> None:
        raise Fail("no")

    def snoozes(payload: dict[str, Any], ctx: TaskContext) -> dict[str, Any]:
        if clock.now() < snoozed_until:
            raise Snooze(until=snoozed_until)
        return ends(payload, ctx)

    def lasts(payload: dict[str, Any], ctx: TaskContext) -> dict[str, Any]:
        time.sleep(LONG_SEC)
        return ends(payload, ctx)

    for function in (ends, fails_once, fails, refuses, snoozes, lasts):
        made.task(function.__name__, retry="standard")(_counted(function, runs))
    return made


def _counted(function: Callable[[dict[str, Any], TaskContext], Any], runs: Runs) -> Callable[..., Any]:
    def counted(payload: dict[str, Any], ctx: TaskContext) -> Any:
        runs.began(payload)
        return function(payload, ctx)

    return counted
