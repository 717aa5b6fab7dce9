"""Processes in which handlers are called and commands given, from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.machine import ROOT
from tools.chaos.security.inside import LOG, TERMINAL

_PATH: Final = os.pathsep.join(map(str, (ROOT, ROOT / "layers/tasks", ROOT / "layers/core")))
ENVIRONMENT: Final[Mapping[str, str]] = {
    "PATH": os.environ.get("PATH", ""),
    "PYTHONPATH": _PATH,
    "PYTHONDONTWRITEBYTECODE": "1",
    "POWERTOOLS_LOG_LEVEL": "DEBUG",
    "POWERTOOLS_LOGGER_LOG_EVENT": "true",
    "POWERTOOLS_DEV": "true",
    "POWERTOOLS_DEBUG": "true",
    "AWS_DEFAULT_REGION": "eu-central-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "TASK_PACKAGE": "tools.chaos.security.functions",
    "LINGER_SEC": "0",
}
"""Of a container; nothing else of this process's environment is in it."""


class EndedError(Exception):
    """The process ended instead of answering."""


class Container:
    """One process; *folder* gets what it prints."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self._process = process
        self._folder = folder

    def start_cold(self, environment: Mapping[str, str]) -> None:
        """Forget everything, and go on in *environment*."""
        self._ask({"environment": dict(environment)})

    def call(self, function: str, event: object) -> dict[str, Any]:
        """Return ``{"returned": ...}`` or ``{"raised": NAME}``."""
        return self._ask({"function": function, "event": event})

    def command(self, *arguments: str) -> int:
        """Give a command and return its exit status."""
        return int(self._ask({"command": arguments})["status"])

    @property
    def log(self) -> str:
        """What the handlers printed so far."""
        return self._printed(LOG)

    @property
    def terminal(self) -> str:
        """What the commands printed so far."""
        return self._printed(TERMINAL)

    def _ask(self, order: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise EndedError(f"a container ended with {self._process.wait()}: {self.log[-2000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _printed(self, name: str) -> str:
        path = self._folder / name
        return path.read_text(encoding="utf-8", errors="backslashreplace") if path.exists() else ""


@contextmanager
def container(folder: Path, environment: Mapping[str, str]) -> Iterator[Container]:
    """Start a container that lives as long as the block, in *environment* and what `ENVIRONMENT` adds to it."""
    folder.mkdir()
    command = [sys.executable, "-c", "from tools.chaos.security.inside import main; main()"]
    whole = {**ENVIRONMENT, **environment}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder, env=whole
    ) as process:
        try:
            made = Container(process, folder)
            made.start_cold(environment)
            yield made
        finally:
            process.kill()
