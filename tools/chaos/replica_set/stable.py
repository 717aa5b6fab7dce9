"""The process that keeps the servers, so that none is left however whoever started it ends.

This file is also its program, and so uses the standard library alone: ``python stable.py PARENT`` makes a folder in
PARENT, says its name, and takes orders from standard input, each a JSON list: the name of a server, and the command
that starts it but for its folder. It answers each with a line: the process id. When its input ends, which a SIGKILL of
whoever holds the other end does too, it kills all of them, stopped ones as well, and removes the folder.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO, Any, Final, cast

PREFIX: Final = "tidemill-chaos-"


class Stable:
    """The end of whoever wants servers.

    ``folder`` is a folder that goes with them, for whatever else is not to be left behind.
    """

    def __init__(self, parent: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, parent],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # it has to outlive all others, to clean up behind them
        )
        self.folder = Path(cast("IO[bytes]", self._process.stdout).readline().decode().rstrip("\n"))

    def start(self, name: str, command: list[str]) -> int:
        """Start a server, anew in the folder that it had before, and return its process id.

        The process that it had before is killed first, and is gone: until then it holds the port and the folder.
        """
        orders, answers = self._process.stdin, self._process.stdout
        cast("IO[bytes]", orders).write(json.dumps([name, command]).encode() + b"\n")
        cast("IO[bytes]", orders).flush()
        return int(cast("IO[bytes]", answers).readline())

    def close(self) -> None:
        """Return when the servers and their folder are gone."""
        with self._process:
            cast("IO[bytes]", self._process.stdin).close()


def main(parent: str) -> None:
    """Be the stable."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # not SIG_IGN, which the servers would inherit
    with tempfile.TemporaryDirectory(prefix=PREFIX, dir=parent, ignore_cleanup_errors=True) as folder:
        started: dict[str, subprocess.Popen[Any]] = {}
        print(folder, flush=True)
        for order in iter(sys.stdin.readline, ""):
            name, command = json.loads(order)
            if name in started:
                _end(started[name])
            started[name] = _start(Path(folder), name, command)
            print(started[name].pid, flush=True)
        for process in started.values():
            _end(process)


def _start(folder: Path, name: str, command: list[str]) -> subprocess.Popen[Any]:
    own = folder / name
    own.mkdir(exist_ok=True)
    with (own / "log").open("ab") as log:
        process = subprocess.Popen(
            [*command, "--dbpath", str(own)], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
        )
    threading.Thread(target=process.wait, daemon=True).start()  # it will be killed: leave no zombie
    return process


def _end(process: subprocess.Popen[Any]) -> None:
    process.kill()
    process.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
