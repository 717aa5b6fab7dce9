"""What the steps of a drive work on, and what they all look at."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bson import ObjectId

from tools.deployed.api import Api
from tools.deployed.database import Server
from tools.deployed.emulator import Emulator
from tools.deployed.receiver import Receiver
from tools.deployed.stack import Stack
from tools.deployed.waiting import wait_until

INVOCATIONS: Final = "invocations.jsonl"
"""What the process executor writes in the emulator's folder."""

LOG_LINES: Final = 20
LINE_CHARS: Final = 1000
_PASSWORD: Final = re.compile(r"(://[^:/@\s]*):[^@\s]*@")
_LEVELS: Final = frozenset({"WARNING", "ERROR", "CRITICAL"})


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A stack that is deployed, its MongoDB, the other side of its webhooks, and a caller of its API."""

    emulator: Emulator
    server: Server
    receiver: Receiver
    stack: Stack
    api: Api

    def webhook(self, path: str) -> str:
        """Enqueue a webhook to a path of the receiver; return the task's id."""
        return self.api.enqueue("deliver_webhook", {"url": f"{self.receiver.url}{path}"})

    def find_task(self, task_id: str) -> dict[str, Any]:
        """Return a task as MongoDB has it; an empty one where it is none."""
        return self.server.tidemill["tasks"].find_one({"_id": ObjectId(task_id)}) or {}

    def wait_for_status(self, task_id: str, status: str, *, within_sec: float) -> dict[str, Any]:
        """Wait until a task has a status, and return it."""
        wait_until(
            lambda: self.find_task(task_id).get("status") == status,
            within_sec=within_sec,
            what=f"task {task_id} {status}",
        )
        return self.find_task(task_id)

    def read_log(self, function: str) -> Iterator[dict[str, Any]]:
        """Yield the lines of JSON that all containers of a function have written."""
        for path in sorted(self.emulator.folder.glob(f"{self.stack.function(function)}-*.log")):
            yield from _read_json_lines(path)

    def find_process(self, request_id: str) -> int:
        """Return the id of the process that runs an invocation."""
        [pid] = [
            line["pid"]
            for line in _read_json_lines(self.emulator.folder / INVOCATIONS)
            if line["request_id"] == request_id
        ]
        return int(pid)


def read_complaints(folder: Path) -> list[str]:
    """Return the last lines of the functions' logs that matter, each with its container; passwords are left out."""
    found = []
    for path in sorted(folder.glob("*-*.log")):
        for line in path.read_text(errors="replace").splitlines():
            if _matters(line):
                line_without_passwords = _PASSWORD.sub(r"\1:***@", line)
                found.append(f"{path.stem}: {line_without_passwords[:LINE_CHARS]}")
    return found[-LOG_LINES:]


def _matters(line: str) -> bool:
    try:
        document = json.loads(line)
    except ValueError:
        return bool(line.strip())  # Python's own
    return isinstance(document, dict) and document.get("level") in _LEVELS


def _read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    for line in path.read_text(errors="replace").splitlines():
        try:
            document = json.loads(line)
        except ValueError:
            continue
        if isinstance(document, dict):
            yield document
