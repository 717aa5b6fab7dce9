"""The emulator of AWS: localemu in a process of its own, on a free port of loopback, with a folder of its own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

from tools.deployed.processes import end_group, end_processes_in, read_end

ROOT: Final = Path(__file__).parents[2]
REGION: Final = "eu-central-1"
START_WITHIN_SEC: Final = 60.0
RETRY_SEC: Final = 10
"""Lambda repeats a failed asynchronous invocation after 60 s, and once more after 120 s; the emulator after so many."""


class EmulatorError(Exception):
    """The emulator did not start."""


class Emulator:
    """The emulator, while the block lasts. With it all processes end that it started, and its folder goes.

    Attributes:
        folder: What the emulator writes, and the code and the logs of the functions.
    """

    def __init__(self, *, python: Path, runtime_python: Path) -> None:
        self._python = python
        self._runtime_python = runtime_python
        # A short name: functions make sockets below it.
        self.folder = Path(tempfile.mkdtemp(prefix="tide-"))
        self.port = find_free_port()
        self._process: subprocess.Popen[str] | None = None
        self._log: IO[str] | None = None

    @property
    def url(self) -> str:
        """Where AWS is."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def aws_environment(self) -> dict[str, str]:
        """The environment of a program that is to take the emulator for AWS, and to know of no other."""
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "LANG": "C.UTF-8",
            "TMPDIR": str(self.folder),
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": REGION,
            "AWS_CONFIG_FILE": "/dev/null",
            "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Kill it: nothing in it is worth an orderly end."""
        if self._process is not None:
            end_group(self._process)
        if self._log is not None:
            self._log.close()
        end_processes_in(self.folder)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self) -> None:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "LANG": "C.UTF-8",
            "TMPDIR": str(self.folder),
            "GATEWAY_LISTEN": f"127.0.0.1:{self.port}",
            "DNS_ADDRESS": "0",  # no DNS server
            "LAMBDA_RETRY_BASE_DELAY": str(RETRY_SEC),
            "TIDEMILL_RUNTIME_PYTHON": str(self._runtime_python),
            "TIDEMILL_RUN_FOLDER": str(self.folder),
        }
        self._log = (self.folder / "emulator.log").open("w")
        self._process = subprocess.Popen(
            [str(self._python), "-m", "tools.deployed.process_executor"],
            env=environment,
            cwd=ROOT,
            stdin=subprocess.PIPE,  # when it ends, the emulator does
            stdout=self._log,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        until = time.monotonic() + START_WITHIN_SEC
        while not self._is_healthy():
            if self._process.poll() is not None or time.monotonic() > until:
                log = (self.folder / "emulator.log").read_text(errors="replace")
                raise EmulatorError(f"the emulator did not start within {START_WITHIN_SEC:g} s: {read_end(log)}")
            time.sleep(0.1)

    def _is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/_localemu/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


def find_free_port() -> int:
    """Return a port of 127.0.0.1 that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port
