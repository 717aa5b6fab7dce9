"""Process that owns the mongod of a test and removes it when the test's process ends.

The test's process, the owner, holds the only writing end of the guard's standard input (`Guard`). That pipe ends with
the owner, even if the owner is killed by SIGKILL. The guard then kills mongod, removes the folder and exits. Only a
SIGKILL of the guard itself would leave them behind.

This file is also the guard's program, so it uses the standard library alone. Usage:
``python _mongod_guard.py PARENT MONGOD [FLAG ...]`` makes a folder in PARENT, starts MONGOD in it and writes one JSON
line to standard output (``pid`` and ``port``, or ``code`` and ``log``). It keeps mongod until it is released.
``python _mongod_guard.py --in FOLDER PORT MONGOD [FLAG ...]`` starts MONGOD in a folder that stays, on PORT if it is
free. At the end it shuts mongod down and leaves the folder.
"""

from __future__ import annotations

import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

START_TIMEOUT_SEC = 60
PORTS_TO_TRY = 5
SHUTDOWN_TIMEOUT_SEC = 10
POLL_SEC = 0.02
IN_FOLDER = "--in"
MAX_LOG_LINES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ListeningMongod:
    """A mongod that listens on *port* of 127.0.0.1, as reported to the owner."""

    pid: int
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningMongod:
    """A mongod that listens on *port* of 127.0.0.1, inside the guard."""

    process: subprocess.Popen[bytes]
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NotStarted:
    """A mongod that ended with exit *code* before it listened, or did not start in time (``None``)."""

    code: int | None
    log: str


class Guard:
    """The owner's handle on the guard: starts it, receives its report once, and releases it.

    Args:
        parent: The folder in which mongod's folder is made.
        command: mongod and its flags, without port and folder.
        port: The preferred port. With it, *parent* is mongod's own folder, which stays.
        descriptor: A descriptor that the guard keeps open until it ends, like that of a lock.
    """

    def __init__(
        self, parent: str, command: Sequence[str], *, port: int | None = None, descriptor: int | None = None
    ) -> None:
        place = [parent] if port is None else [IN_FOLDER, parent, str(port)]
        read_end, self.pipe = os.pipe()
        _guards.add(self)
        try:
            self.process = subprocess.Popen(  # noqa: S603 - this very file
                [sys.executable, "-I", "-S", __file__, *place, *command],
                pass_fds=() if descriptor is None else (descriptor,),
                stdin=read_end,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that Ctrl-C does not reach it
            )
        except BaseException:
            self._close_pipe()
            raise
        finally:
            os.close(read_end)

    def report(self) -> ListeningMongod | NotStarted:
        """Wait until mongod listens or has failed to start, and return the outcome. To be called once."""
        output = cast("IO[bytes]", self.process.stdout)
        line = output.readline()
        try:
            fields = json.loads(line)
        except ValueError:  # the guard itself failed, and the line is its traceback
            return NotStarted(code=None, log=(line + output.read()).decode(errors="replace"))
        return ListeningMongod(**fields) if "pid" in fields else NotStarted(**fields)

    def release(self) -> None:
        """Return when guard, mongod and folder are gone. Does nothing in a forked child of the owner."""
        if self in _guards:
            self._close_pipe()
            with self.process:  # closes its output and waits for its end
                pass

    def _close_pipe(self) -> None:
        _guards.discard(self)
        with suppress(BrokenPipeError):
            # A byte as well: a fork made by C code may still have the pipe open.
            os.write(self.pipe, b".")
        os.close(self.pipe)


_guards: set[Guard] = set()


def _close_pipes_in_child() -> None:
    for guard in _guards:
        os.close(guard.pipe)
    _guards.clear()


os.register_at_fork(after_in_child=_close_pipes_in_child)


def main(place: str, *command: str) -> None:
    """Run as the guard: start mongod, report, keep it until released, clean up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which mongod would inherit
    if place == IN_FOLDER:
        folder, port, *command_in_folder = command
        ports = itertools.chain([int(port)], free_ports())
        _run(command_in_folder, Path(folder), ports=ports, end=_shut_down_mongod)
        return
    with tempfile.TemporaryDirectory(prefix="tidemill-mongod-", dir=place, ignore_cleanup_errors=True) as folder:
        _run(command, Path(folder), ports=free_ports(), end=_kill_mongod)


def _run(
    command: Sequence[str],
    folder: Path,
    *,
    ports: Iterable[int],
    end: Callable[[subprocess.Popen[bytes]], None],
) -> None:
    outcome = launch(command, folder, ports=ports, released=_wait_for_release)
    if isinstance(outcome, NotStarted):
        _write_report(code=outcome.code, log=select_last_lines(outcome.log))
        return
    _write_report(pid=outcome.process.pid, port=outcome.port)
    _keep_until_released(outcome.process)
    end(outcome.process)


def launch(
    command: Sequence[str],
    folder: Path,
    *,
    ports: Iterable[int],
    released: Callable[[float], bool],
    timeout_sec: float = START_TIMEOUT_SEC,
) -> RunningMongod | NotStarted:
    """Start mongod on the first of *ports* that no other process takes before mongod does.

    Args:
        command: mongod and its flags, without port and folder.
        folder: An empty folder, for data and log.
        ports: Candidates; at most `PORTS_TO_TRY` are used.
        released: Waits the given seconds; returns whether the owner has released the guard meanwhile.
        timeout_sec: Limit of the time until mongod listens.
    """
    outcome: RunningMongod | NotStarted = NotStarted(code=None, log="no port to try")
    for port in itertools.islice(ports, PORTS_TO_TRY):
        outcome = _launch_on(port, command, folder, released, timeout_sec)
        if isinstance(outcome, RunningMongod) or "Address already in use" not in outcome.log:
            break
    return outcome


def free_ports() -> Iterator[int]:
    """Yield ports of 127.0.0.1 that were free a moment ago."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        yield port


def select_last_lines(log: str) -> str:
    """Return the last lines of *log* above level "I"; if there are none, its last lines."""
    lines = log.splitlines()
    warnings = [line for line in lines if '"s":"I"' not in line]
    return "\n".join((warnings or lines)[-MAX_LOG_LINES:])


def _launch_on(
    port: int, command: Sequence[str], folder: Path, released: Callable[[float], bool], timeout_sec: float
) -> RunningMongod | NotStarted:
    log = folder / "log"
    place = ("--dbpath", str(folder), "--port", str(port))
    try:
        with log.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603 - the owner's choice
                [*command, *place], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
    except OSError as error:
        return NotStarted(code=None, log=str(error))
    deadline = time.monotonic() + timeout_sec
    while process.poll() is None:
        if "Waiting for connections" in log.read_text(errors="replace"):
            return RunningMongod(process=process, port=port)
        if released(POLL_SEC) or time.monotonic() > deadline:
            _kill_mongod(process)
            return NotStarted(code=None, log=log.read_text(errors="replace"))
    return NotStarted(code=process.returncode, log=log.read_text(errors="replace"))


def _wait_for_release(timeout_sec: float) -> bool:
    return bool(select.select([sys.stdin], [], [], timeout_sec)[0])


def _write_report(**fields: str | int | None) -> None:
    with suppress(BrokenPipeError):  # the owner is gone, but mongod must still be killed
        os.write(sys.stdout.fileno(), json.dumps(fields).encode() + b"\n")


def _keep_until_released(process: subprocess.Popen[bytes]) -> None:
    threading.Thread(target=process.wait, daemon=True).start()  # reaps a mongod that the test kills
    os.read(sys.stdin.fileno(), 1)


def _kill_mongod(process: subprocess.Popen[bytes]) -> None:
    process.kill()  # its data is worth no orderly shutdown
    process.wait()


def _shut_down_mongod(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(SHUTDOWN_TIMEOUT_SEC)
    except subprocess.TimeoutExpired:
        _kill_mongod(process)


if __name__ == "__main__":
    main(*sys.argv[1:])
