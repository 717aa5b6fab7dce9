"""The process that owns a test's mongod, so that nothing is left when the test's process goes.

The test's process, the owner, holds the only writing end of the guard's standard input (`Guard`). However
the owner ends, SIGKILL included, that pipe ends with it; then the guard kills mongod, removes the folder and
goes. Only a SIGKILL of the guard itself would leave them behind.

This file is also the guard's program, and so uses the standard library alone:
``python _mongod_guard.py PARENT MONGOD [FLAG ...]`` makes a folder in PARENT, starts MONGOD in it, writes one
JSON line to standard output (``pid`` and ``port``, or ``code`` and ``log``) and keeps mongod until released.
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

START_WITHIN_SEC = 60
PORTS_TO_TRY = 5
POLL_SEC = 0.02
LOG_LINES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """What the owner hears of a mongod that listens on *port* of 127.0.0.1."""

    pid: int
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """What the guard itself has of it."""

    process: subprocess.Popen[bytes]
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NotStarted:
    """A mongod that ended with exit *code* before it listened, or was given up (``None``)."""

    code: int | None
    log: str


class Guard:
    """The owner's end: starts the guard, hears from it once, and releases it.

    Args:
        parent: The folder to make mongod's folder in.
        command: mongod and its flags, without port and folder.
    """

    def __init__(self, parent: str, command: Sequence[str]) -> None:
        read_end, self.pipe = os.pipe()
        _held.add(self)
        try:
            self.process = subprocess.Popen(  # noqa: S603 - this very file
                [sys.executable, "-I", "-S", __file__, parent, *command],
                stdin=read_end,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # out of Ctrl-C's reach
            )
        except BaseException:
            self._let_go()
            raise
        finally:
            os.close(read_end)

    def report(self) -> Listening | NotStarted:
        """Wait until mongod listens or has failed to, and return which. To be called once."""
        output = cast("IO[bytes]", self.process.stdout)
        line = output.readline()
        try:
            fields = json.loads(line)
        except ValueError:  # the guard itself broke, and this is its traceback
            return NotStarted(code=None, log=(line + output.read()).decode(errors="replace"))
        return Listening(**fields) if "pid" in fields else NotStarted(**fields)

    def release(self) -> None:
        """Return when guard, mongod and folder are gone. Does nothing in a forked child of the owner."""
        if self in _held:
            self._let_go()
            with self.process:  # closes its output and waits for its end
                pass

    def _let_go(self) -> None:
        _held.discard(self)
        with suppress(BrokenPipeError):
            # A byte, since a fork made by C code may still hold the pipe open.
            os.write(self.pipe, b".")
        os.close(self.pipe)


_held: set[Guard] = set()


def _close_in_child() -> None:
    for guard in _held:
        os.close(guard.pipe)
    _held.clear()


os.register_at_fork(after_in_child=_close_in_child)


def main(parent: str, *command: str) -> None:
    """Be the guard: start mongod, report, keep it until released, clean up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which mongod would inherit
    with tempfile.TemporaryDirectory(prefix="tidemill-mongod-", dir=parent, ignore_cleanup_errors=True) as folder:
        outcome = launch(command, Path(folder), ports=free_ports(), released=_released)
        if isinstance(outcome, NotStarted):
            _tell(code=outcome.code, log=telling(outcome.log))
            return
        _tell(pid=outcome.process.pid, port=outcome.port)
        _keep(outcome.process)
        _end(outcome.process)


def launch(
    command: Sequence[str], folder: Path, *, ports: Iterable[int], released: Callable[[float], bool]
) -> Running | NotStarted:
    """Start mongod on the first of *ports* that nobody takes before it does.

    Args:
        command: mongod and its flags, without port and folder.
        folder: An empty folder, for data and log.
        ports: Candidates; at most `PORTS_TO_TRY` are used.
        released: Waits so many seconds, and says whether the owner has let go meanwhile.
    """
    outcome: Running | NotStarted = NotStarted(code=None, log="no port to try")
    for port in itertools.islice(ports, PORTS_TO_TRY):
        outcome = _launch_on(port, command, folder, released)
        if isinstance(outcome, Running) or "Address already in use" not in outcome.log:
            break
    return outcome


def free_ports() -> Iterator[int]:
    """Yield ports of 127.0.0.1 that were free a moment ago."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        yield port


def telling(log: str) -> str:
    """Return the last lines of *log* that say more than that all is well, or else just the last."""
    lines = log.splitlines()
    warnings = [line for line in lines if '"s":"I"' not in line]
    return "\n".join((warnings or lines)[-LOG_LINES:])


def _launch_on(
    port: int, command: Sequence[str], folder: Path, released: Callable[[float], bool]
) -> Running | NotStarted:
    log = folder / "log"
    place = ("--dbpath", str(folder), "--port", str(port))
    try:
        with log.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603 - the owner's choice
                [*command, *place], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
    except OSError as error:
        return NotStarted(code=None, log=str(error))
    give_up_at = time.monotonic() + START_WITHIN_SEC
    while process.poll() is None:
        if "Waiting for connections" in log.read_text(errors="replace"):
            return Running(process=process, port=port)
        if released(POLL_SEC) or time.monotonic() > give_up_at:
            _end(process)
            return NotStarted(code=None, log=log.read_text(errors="replace"))
    return NotStarted(code=process.returncode, log=log.read_text(errors="replace"))


def _released(wait_sec: float) -> bool:
    return bool(select.select([sys.stdin], [], [], wait_sec)[0])


def _tell(**fields: str | int | None) -> None:
    with suppress(BrokenPipeError):  # the owner is gone: nobody to tell, still a mongod to end
        os.write(sys.stdout.fileno(), json.dumps(fields).encode() + b"\n")


def _keep(process: subprocess.Popen[bytes]) -> None:
    threading.Thread(target=process.wait, daemon=True).start()  # a test may kill mongod: leave no zombie
    os.read(sys.stdin.fileno(), 1)


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()  # nothing in it is worth an orderly shutdown
    process.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
