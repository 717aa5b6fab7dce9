"""Executor processes of `tidemill dev`: one runs the code of now; after a change another one takes its place.

The next executor loads the changed code first. Only if that succeeds does it begin, and the one before it stops: it
claims no more tasks and finishes those that run. If there is a fault, the executor before it stays. The first executor
runs the tasks without a fault.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Final, Literal

from tidemill.dev.executor import BEGIN, NOT_LOADED, PARTS, READY, STOP, WHOLE
from tidemill.dev.sweeps import OWNER_PREFIX

RESTART_PAUSE_SEC: Final = 1.0
"""Pause before an executor that died is replaced."""

Functions = Mapping[str, Mapping[str, object] | None]
"""Names of the loaded task functions, each with an example of its payload; ``None`` if it is not open to HTTP."""


@dataclass(slots=True, kw_only=True, eq=False)
class Executor:
    """One executor process. Its state changes under the lock of `Executors`."""

    owner: str
    process: subprocess.Popen[bytes]
    control: IO[str]
    state: Literal["loading", "running", "stopping"] = "loading"

    def send(self, line: str) -> None:
        """Send a line to the process; a dead process is ignored."""
        with suppress(OSError, ValueError):
            self.control.write(f"{line}\n")
            self.control.flush()

    def kill(self) -> None:
        """End the process at once, with the programs that its tasks have started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


class Executors:
    """Keeps an executor with the newest code that can be loaded.

    Args:
        package: The package of the task functions.
        say: Called with each line for the terminal.
        take_back: Called with the owner of an executor that died with its tasks.
        restart_pause_sec: Pause before an executor that died is replaced.
    """

    def __init__(
        self,
        package: str,
        *,
        say: Callable[[str], object],
        take_back: Callable[[str], object],
        restart_pause_sec: float = RESTART_PAUSE_SEC,
    ) -> None:
        self._package = package
        self._say = say
        self._take_back = take_back
        self._restart_pause_sec = restart_pause_sec
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._executors: list[Executor] = []
        self._is_stopping = False
        self._run = uuid.uuid4().hex[:8]
        self._numbers = itertools.count(1)
        self.functions: Functions | None = None

    def reload(self) -> None:
        """Start an executor with the code of now; it takes the place of the running one once it has loaded it."""
        with self._lock:
            if self._is_stopping:
                return
            for executor in self._executors:
                if executor.state == "loading":  # its code is old already
                    executor.state = "stopping"
                    executor.kill()
            executor = self._start()
            self._executors.append(executor)
        threading.Thread(target=self._attend, args=(executor,), daemon=True).start()

    def wait_until_loaded(self) -> None:
        """Return once no executor is loading code any more."""
        with self._changed:
            self._changed.wait_for(lambda: all(executor.state != "loading" for executor in self._executors))

    def begin_stop(self) -> None:
        """Let running tasks finish, and claim no more."""
        with self._lock:
            self._is_stopping = True
            for executor in self._executors:
                if executor.state == "loading":
                    executor.kill()
                else:
                    executor.send(STOP)
                executor.state = "stopping"

    def wait_for_end(self, timeout_sec: float) -> bool:
        """Wait until all executors have ended; return false if some are left after *timeout_sec*."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._executors, timeout_sec)

    def kill(self) -> None:
        """End all executors at once; their tasks are taken back."""
        with self._lock:
            for executor in self._executors:
                executor.kill()

    def _start(self) -> Executor:
        owner = f"{OWNER_PREFIX}{self._run}-{next(self._numbers)}"
        strictness = WHOLE if any(older.state == "running" for older in self._executors) else PARTS
        own_end, other_end = socket.socketpair()
        with other_end:
            process = subprocess.Popen(  # noqa: S603 - this package
                [
                    *(sys.executable, "-m", "tidemill.dev.executor"),
                    *(str(other_end.fileno()), owner, self._package, strictness),
                ],
                pass_fds=(other_end.fileno(),),
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the parent
            )
        control = own_end.makefile("rw", encoding="utf-8")
        own_end.close()  # the file keeps it open
        return Executor(owner=owner, process=process, control=control)

    def _attend(self, executor: Executor) -> None:
        with suppress(OSError, ValueError):
            word, _, text = executor.control.readline().partition(" ")
            if word == READY:
                self._replace(executor, json.loads(text))
        status = executor.process.wait()
        with suppress(OSError, ValueError):
            executor.control.close()
        if executor.state == "running" or (executor.state == "stopping" and status != 0):
            self._take_back(executor.owner)
        with self._changed:
            self._executors.remove(executor)
            has_other = any(older.state == "running" for older in self._executors)
            self._changed.notify_all()
        if executor.state == "running":
            self._say(f"the executor {_describe_end(status)}; another one starts")
            time.sleep(self._restart_pause_sec)
            self.reload()
        elif executor.state == "loading":
            if status != NOT_LOADED:
                self._say(f"not loaded: the process {_describe_end(status)} while it imported {self._package}")
            consequence = "the code of before keeps running" if has_other else "no task runs"
            self._say(f"{consequence} until a changed file can be loaded")

    def _replace(self, executor: Executor, functions: Functions) -> None:
        """Let *executor* begin, and the one before it stop."""
        with self._changed:
            if executor.state != "loading":  # it was stopped, or its code is old by now
                return
            for older in self._executors:
                if older.state == "running":
                    older.state = "stopping"
                    older.send(STOP)
            executor.state = "running"
            self.functions = functions
            names = f"{len(functions)} task {'function' if len(functions) == 1 else 'functions'}"
            self._say(f"{names} of {self._package} loaded: {', '.join(functions)}")
            executor.send(BEGIN)
            self._changed.notify_all()


def _describe_end(status: int) -> str:
    """Return the end of a process by its *status*, as `subprocess` has it."""
    if status >= 0:
        return f"ended with status {status}"
    with suppress(ValueError):
        return f"was killed by {signal.Signals(-status).name}"
    return f"was killed by signal {-status}"
