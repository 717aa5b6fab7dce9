"""Task functions with somebody watching: which were run, and what they raised, as the very exception."""

from __future__ import annotations

import copy
import inspect
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from threading import Event
from types import TracebackType
from typing import Any, Final

from tidemill.classify import asked_snooze, bounded, describe
from tidemill.errors import TaskTimeoutError
from tidemill.model import TaskId
from tidemill.registry import Registry, TaskContext, TaskType
from tidemill.testing.faults import ExecutorDied

MAX_SHOWN: Final = 200
"""So many characters of a payload or a message are shown."""

MOST_RUNS: Final = 10_000
"""What has run so many functions is taken to have no end."""

MOST_LOGGED: Final = 20
INTERRUPTED_SEC: Final = 1.0
"""How long functions that ran too long are waited for, after they were interrupted."""

LAST_RUNS_SEC: Final = 10.0
"""How long the functions of an executor that died are waited for: they share this process."""

_LOOK_SEC: Final = 0.01
_logger = logging.getLogger("tidemill.testing")


@contextmanager
def watching(registry: Registry, *, most: int = MOST_RUNS) -> Iterator[Watched]:
    """Watch the functions of *registry* inside, and log at the end what they raised.

    Test runners show what is logged beside a test that fails. The functions of an executor that died on the way are
    waited for; with a process of its own they would be gone.

    Raises:
        AssertionError: There were *most* runs.
    """
    watched = Watched(registry, most=most)
    try:
        yield watched
        watched.wait(seconds=INTERRUPTED_SEC)
        if watched.enough.is_set():
            raise AssertionError(f"there is no end to it after {most:,} runs: does a function enqueue itself?")
    except ExecutorDied:
        watched.wait(seconds=LAST_RUNS_SEC)
        raise
    finally:
        for name in watched.unregistered:
            _logger.warning("%s", not_registered(name))
        for failure in watched.failures[:MOST_LOGGED]:
            error = failure.error
            _logger.warning("%s", failure, exc_info=(type(error), error, _beyond_us(error.__traceback__)))


def not_registered(name: str) -> str:
    """Return what to do about a name that there is no function for."""
    return f"no function is registered as {name!r}: import its module, or pass registry="


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRun:
    """One run of a task function that raised.

    Attributes:
        name: The name it is registered under.
        payload: What it was given, as it was before it ran.
        task_id: The task.
        attempt: 1 for the first run of the task.
        error: What it raised, with its traceback.
    """

    name: str
    payload: dict[str, Any]
    task_id: TaskId
    attempt: int
    error: BaseException

    def __str__(self) -> str:
        """Return one line for people."""
        is_interruption = isinstance(self.error, TaskTimeoutError)
        what = "ran into its timeout" if is_interruption else f"raised {bounded(describe(self.error), MAX_SHOWN)}"
        return f"{self.name!r} (attempt {self.attempt}) {what}"


class Watched(Registry):
    """The functions of *registry*, watched, up to *most* runs.

    Attributes:
        began: The task and the attempt of every run, in the order of their starts.
        failures: The runs that raised, a `Snooze` not counted, in the order of their ends.
        unregistered: The names that there is no function for.
        enough: Set once there were *most* runs.
    """

    def __init__(self, registry: Registry, *, most: int) -> None:
        super().__init__()
        self.began: list[tuple[TaskId, int]] = []
        self.failures: list[FailedRun] = []
        self.unregistered: list[str] = []
        self.enough = Event()
        self._registry = registry
        self._most = most
        self._running: set[_Run] = set()

    def get(self, name: str) -> TaskType | None:
        """Return the type registered as *name*, with its function watched."""
        task_type = self._registry.get(name)
        if task_type is not None:
            return replace(task_type, function=partial(self._call, task_type), payload_model=None, takes_context=True)
        if name not in self.unregistered:
            self.unregistered.append(name)
        return None

    def __iter__(self) -> Iterator[TaskType]:
        return iter(self._registry)

    def __len__(self) -> int:
        return len(self._registry)

    def wait(self, *, seconds: float) -> None:
        """Return once nothing runs, or after so many *seconds*."""
        give_up = time.monotonic() + seconds
        while self._running and time.monotonic() < give_up:
            time.sleep(_LOOK_SEC)

    def _call(self, task_type: TaskType, payload: dict[str, Any], ctx: TaskContext) -> Any:  # noqa: ANN401
        run = _Run(name=task_type.name, payload=copy.deepcopy(payload), ctx=ctx)
        self.began.append((ctx.task_id, ctx.attempt))
        if len(self.began) >= self._most:
            self.enough.set()
        self._running.add(run)
        try:
            result = task_type.call(payload, ctx)
        except BaseException as error:
            self._ended(run, error)
            raise
        if inspect.isawaitable(result):
            return self._awaited(run, result)
        self._ended(run)
        return result

    async def _awaited(self, run: _Run, result: Any) -> Any:  # noqa: ANN401
        try:
            while inspect.isawaitable(result):
                result = await result
        except BaseException as error:
            self._ended(run, error)
            raise
        self._ended(run)
        return result

    def _ended(self, run: _Run, error: BaseException | None = None) -> None:
        self._running.discard(run)
        if error is not None and asked_snooze(error) is None:
            ctx = run.ctx
            self.failures.append(
                FailedRun(name=run.name, payload=run.payload, task_id=ctx.task_id, attempt=ctx.attempt, error=error)
            )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Run:
    name: str
    payload: dict[str, Any]
    ctx: TaskContext


def _beyond_us(traceback: TracebackType | None) -> TracebackType | None:
    """Return the part of *traceback* that begins where the function was called."""
    inner = traceback
    while inner is not None and inner.tb_frame.f_globals.get("__name__", "").startswith("tidemill."):
        inner = inner.tb_next
    return inner or traceback
