"""Processes that run one invocation of `execute` each, and how they ended."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from typing import Literal, TypeAlias

from demo import invocation
from demo.functions import Event

TIMEOUT_SEC = 120.0
"""Of the function `execute`, as in the template."""

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload([invocation.__name__])

Ending: TypeAlias = Literal["returned", "raised", "recycled", "killed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How an invocation ended.

    Attributes:
        how: ``recycled`` where the handler ended its own process, since a task function in it would not stop.
        detail: What it raised, or which signal killed it.
        report: What the handler returned.
    """

    request_id: str
    how: Ending
    detail: str = ""
    report: dict[str, int] = field(default_factory=dict)


class Executor:
    """An invocation of `execute` that is under way; killed at its timeout, as Lambda would."""

    def __init__(self, event: Event, *, timeout_sec: float = TIMEOUT_SEC) -> None:
        self.request_id = str(uuid.uuid4())
        self._answer, sent = _PROCESSES.Pipe(duplex=False)
        self._deadline = time.monotonic() + timeout_sec
        self._process = _PROCESSES.Process(
            target=invocation.run,
            # The fork server has the environment it was started in, which need not be the one of now.
            args=(event, self.request_id, timeout_sec, dict(os.environ), sent),
            daemon=True,
        )
        with _out_of_reach_of_ctrl_c():
            self._process.start()
        self.sentinel = self._process.sentinel
        sent.close()

    def ended(self) -> Ended | None:
        """Return how it ended, or ``None`` while it runs."""
        if time.monotonic() > self._deadline:
            self.kill()
        code = self._process.exitcode
        return None if code is None else self._ended(code)

    def kill(self) -> None:
        """End the process without asking it, and wait until it is gone."""
        self._process.kill()
        self._process.join()

    def _ended(self, code: int) -> Ended:
        try:
            answer = self._answer.recv()
        except (EOFError, OSError):  # it got to say nothing, or not all
            answer = None
        if isinstance(answer, dict):
            return Ended(request_id=self.request_id, how="returned", report=answer)
        if answer is not None:
            return Ended(request_id=self.request_id, how="raised", detail=str(answer))
        if code < 0:
            return Ended(request_id=self.request_id, how="killed", detail=signal.Signals(-code).name)
        return Ended(request_id=self.request_id, how="recycled")


def wait_for_any(executors: Sequence[Executor], *, timeout_sec: float) -> None:
    """Return when one of them has ended, or after *timeout_sec*."""
    wait([one.sentinel for one in executors], timeout=max(timeout_sec, 0.0))


@contextmanager
def _out_of_reach_of_ctrl_c() -> Iterator[None]:
    """Block SIGINT, which the terminal sends to all: what is started inside, fork server included, inherits that."""
    resource_tracker.ensure_running()  # when it starts, it lifts the block
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
