"""Workers in processes of their own, as an operator starts them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pymongo.database import Database

from tests.builders import add, document
from tests.unit.make import eventually
from tidemill.clock import ServerClock
from tidemill.store.connection import open_tasks

PACKAGE = "tests.features.worker.worker_tasks"
PATIENCE = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """How a worker ended and all that it said."""

    status: int
    out: list[str]
    err: list[str]


class Process:
    """``tidemill work`` with the functions of `PACKAGE`; up once it says so."""

    def __init__(
        self,
        *options: str,
        package: str = PACKAGE,
        before: tuple[str, ...] = (),
        program: tuple[str, ...] = (),
        **environment: str,
    ) -> None:
        program = program or ("tidemill", "work", "--tasks", package, *options)
        self._process = subprocess.Popen(
            (*before, sys.executable, "-m", *program),
            cwd=Path(__file__).parents[3],
            env={"PATH": os.environ["PATH"], **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.out: list[str] = []
        self.err: list[str] = []
        self._readers = [
            threading.Thread(target=_read, args=(stream, lines))
            for stream, lines in ((self._process.stdout, self.out), (self._process.stderr, self.err))
        ]
        for reader in self._readers:
            reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_up(self) -> bool:
        return eventually(lambda: bool(self.out) or self._process.poll() is not None, within=PATIENCE) and bool(
            self.out
        )

    def says(self, text: str) -> bool:
        """Whether it says *text* on stderr."""
        return eventually(lambda: any(text in line for line in self.err), within=PATIENCE)

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def send_to_all(self, number: signal.Signals) -> None:
        """Send it to the whole group, as a terminal does."""
        os.killpg(self.pid, number)

    def is_over(self) -> bool:
        """Whether it ends; what it started may still have its output open."""
        return eventually(lambda: self._process.poll() is not None, within=PATIENCE)

    def ended(self) -> Stopped:
        """Wait until it ends by itself."""
        status = self._process.wait(PATIENCE)
        for reader in self._readers:
            reader.join(PATIENCE)
        return Stopped(status=status, out=self.out, err=self.err)

    def stopped(self, number: signal.Signals = signal.SIGTERM) -> Stopped:
        """Ask it to stop, and wait until it did."""
        self.send(number)
        return self.ended()

    def abandon(self) -> None:
        """End what a failed test left."""
        if self._process.poll() is None:
            self._process.kill()
        self.ended()


class Yard:
    """Workers of one test, a database for them, and a folder where their functions leave traces."""

    def __init__(self, *, uri: str, db: Database[Any], folder: Path) -> None:
        self.db = db
        self._environment = {"MONGODB_URI": uri, "MONGODB_DATABASE": db.name}
        self._folder = folder
        self._processes: list[Process] = []

    def worker(self, *options: str, **environment: str) -> Process:
        """Start one; it is up on return."""
        made = self.process(*options, before=(), program=(), **environment)
        assert made.is_up(), made.err
        return made

    def brisk(self, **environment: str) -> Process:
        """Start one with short leases; it is up on return."""
        made = self.process(before=(), program=("tests.features.worker.brisk",), **environment)
        assert made.is_up(), made.err
        return made

    def process(
        self, *options: str, before: tuple[str, ...] = (), program: tuple[str, ...] = (), **environment: str
    ) -> Process:
        """Start one, behind the words *before*, whatever becomes of it; or another *program*."""
        made = Process(*options, before=before, program=program, **self._environment | environment)
        self._processes.append(made)
        return made

    def add(self, name: str, count: int = 1, **fields: Any) -> list[Any]:
        """Enqueue tasks that are due now; each knows where its trace and its way on are."""
        now = ServerClock(self.db).now()
        payload = {"trace": str(self._folder / "trace"), "go": str(self._folder / "go")}
        return add(
            open_tasks(self.db),
            [document(now, name=f"watched.{name}", payload=payload | {"n": n}, **fields) for n in range(count)],
        )

    def go(self) -> None:
        """Let what waits end."""
        (self._folder / "go").touch()

    @property
    def began(self) -> list[int]:
        """The numbers in the trace."""
        trace = self._folder / "trace"
        return [int(line) for line in trace.read_text().splitlines()] if trace.exists() else []

    def begins(self, count: int) -> bool:
        """Whether so many functions begin."""
        return eventually(lambda: len(self.began) >= count, within=PATIENCE)

    def status(self, **where: Any) -> dict[str, int]:
        """How many tasks are in which status."""
        found = self.db["tasks"].aggregate([{"$match": where}, {"$group": {"_id": "$status", "n": {"$sum": 1}}}])
        return {one["_id"]: one["n"] for one in found}

    def stored(self, task_id: Any) -> dict[str, Any]:
        """The task, or its dead letter."""
        found = self.db["tasks"].find_one({"_id": task_id}) or self.letter(task_id)
        assert found is not None
        return dict(found)

    def letter(self, task_id: Any) -> Any:
        """The dead letter of the task, if there is one."""
        return self.db["tasks_dlq"].find_one({"_id.task": task_id})

    def buries(self, *task_ids: Any) -> bool:
        """Whether the tasks become dead letters."""
        return eventually(lambda: all(map(self.letter, task_ids)), within=PATIENCE)

    def becomes(self, **status: int) -> bool:
        """Whether so many tasks come to be in these."""
        return eventually(lambda: self.status() == status, within=PATIENCE)

    def close(self) -> None:
        for process in self._processes:
            process.abandon()


def _read(stream: Any, lines: list[str]) -> None:
    with stream:
        for line in stream:
            lines.append(line.rstrip("\n"))  # noqa: PERF401 - others look at the list meanwhile
