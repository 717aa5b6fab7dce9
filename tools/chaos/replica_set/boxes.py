"""The platform's end of a container: it is started, invoked, killed at the timeout, and may be killed by others."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Final, TypeAlias

import psutil

from tools.chaos.replica_set import container
from tools.chaos.replica_set.container import Ended
from tools.chaos.replica_set.traces import BOX, FOLDER

_PROCESSES = multiprocessing.get_context("forkserver")
_PROCESSES.set_forkserver_preload([container.__name__])

LOGS: Final = "logs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Died:
    """The process ended, or was ended, before it answered."""

    how: str


Answer: TypeAlias = Ended | Died


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where containers run: with which variables, and which folder takes their logs and traces.

    ``deaths`` tells when containers have died, by their names, on the monotonic clock of the machine.
    """

    variables: Mapping[str, str]
    folder: Path
    deaths: dict[str, float] = field(default_factory=dict)


class Box:
    """The only container of *function*: a new one is started by the next invocation after the last one has died."""

    def __init__(self, function: str, place: Place) -> None:
        self.function = function
        self._place = place
        self._lock = threading.Lock()
        self._process: Any = None
        self._handle: psutil.Process | None = None
        self._line: Any = None
        self._name = ""

    def invoke(self, event: Any, *, request_id: str, within: timedelta) -> Answer:
        """Return how it ended. The process is killed where it takes longer."""
        self._be_there()
        seconds = within.total_seconds()
        with suppress(OSError, EOFError):
            self._line.send((event, request_id, seconds))
            if self._line.poll(seconds):
                answer: Ended = self._line.recv()
                return answer
        return Died(how=self._buried())

    def kill(self) -> bool:
        """Kill the process, if there is one, whatever it is at."""
        with self._lock, suppress(psutil.Error):  # which knows it from another one with the same number
            if self._handle is not None:
                self._handle.kill()
                self._place.deaths.setdefault(self._name, time.monotonic())
                return True
        return False

    def kill_child(self) -> bool:
        """Kill the youngest of the processes that it has started: a child with a task, or who forks them."""
        with self._lock, suppress(psutil.Error):
            children = [] if self._handle is None else self._handle.children(recursive=True)
            for youngest in sorted(children, key=lambda one: one.create_time())[-1:]:
                youngest.kill()
                return True
        return False

    def close(self) -> None:
        """Kill the process and wait for its end."""
        if self._process is not None:
            self._buried()

    def _be_there(self) -> None:
        if self._process is not None and self._process.is_alive():
            return
        if self._process is not None:
            self._buried()
        self._name = f"{self.function}-{uuid.uuid4().hex[:8]}"
        variables = {**self._place.variables, BOX: self._name, FOLDER: str(self._place.folder)}
        line, theirs = _PROCESSES.Pipe()
        process = _PROCESSES.Process(
            target=container.run,
            args=(self.function, variables, self._place.folder / LOGS / self._name, theirs),
            name=self._name,
        )
        process.start()
        theirs.close()
        with self._lock, suppress(psutil.NoSuchProcess):
            self._process, self._line = process, line
            self._handle = psutil.Process(process.pid)

    def _buried(self) -> str:
        """See to it that the process is gone, and return how it ended."""
        process = self._process
        is_over = bool(wait([process.sentinel], timeout=0.2))
        process.kill()
        process.join()
        with self._lock:
            self._place.deaths.setdefault(self._name, time.monotonic())
            self._process = self._handle = None
            self._line.close()
        code = process.exitcode
        if not is_over:
            return "its time was up"
        return signal.Signals(-code).name if code < 0 else f"exit {code}"


def environment(uri: str, *, database: str, package: str, task_sec: float, concurrency: int) -> dict[str, str]:
    """Return the variables of a deployment with tasks as short as they can be, so that leases end soon."""
    return {
        "MONGODB_URI": uri,
        "MONGODB_DATABASE": database,
        "TASK_PACKAGE": package,
        "TASK_TIMEOUT_SEC": f"{task_sec:g}",
        "MAX_TASK_TIMEOUT_SEC": f"{task_sec:g}",
        "CONCURRENCY": str(concurrency),
        "LINGER_SEC": "0.5",
        "MAX_EXECUTORS": "8",
        "POWERTOOLS_METRICS_NAMESPACE": "Chaos",
    } | {name: "" for name in os.environ if name.startswith("AWS_") or name == "MONGODB_SECRET_ARN"}
