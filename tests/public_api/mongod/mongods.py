"""What tests of the embedded MongoDB share: children that start one, fakes, and how to see what is left."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pymongo import MongoClient

from tidemill.testing import mongod
from tidemill.testing._mongod_guard import NotStarted, RunningMongod, launch

TEST_URI = "TIDEMILL_TEST_MONGODB_URI"
END_WITHIN_SEC = 60.0
"""A process that takes longer hangs; on a busy machine the end of one takes seconds."""

LISTENING = "echo Waiting for connections; exec sleep 60"


@dataclass(frozen=True)
class Trace:
    """What a process that started a mongod could leave behind."""

    folder: Path
    mongod: int
    guard: int

    def is_gone(self) -> bool:
        return not (self.folder.exists() or alive(self.mongod) or alive(self.guard))


# Started from a background job, a process inherits that SIGINT is ignored; these are about its usual effect.
CHILD = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from pathlib import Path
from pymongo import MongoClient
from tidemill.testing import Mongod

def tell(server):
    print(server.uri, server.pid, server._guard.process.pid, flush=True)
    sys.stdin.read()

def await_signal():
    # Python sleeps all through where a signal comes between its last look for one and the sleep: so sleep briefly.
    for _ in range(6000):
        time.sleep(0.01)

"""


@contextmanager
def child(body: str) -> Iterator[subprocess.Popen[str]]:
    """Run *body* in a session of its own, which does not outlive the block."""
    with subprocess.Popen(
        [sys.executable, "-c", CHILD + body],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def trace_of(process: subprocess.Popen[str]) -> Trace:
    uri, pid, guard = line_of(process).split()
    with client(uri) as connected:
        return Trace(folder_of(connected), int(pid), int(guard))


def let_go(process: subprocess.Popen[str]) -> None:
    """Let the child run on from where it told of its server."""
    assert process.stdin
    process.stdin.close()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


def client(uri: str) -> MongoClient[dict[str, Any]]:
    return MongoClient(uri, serverSelectionTimeoutMS=5000)


def folder_of(connected: MongoClient[dict[str, Any]]) -> Path:
    folder = Path(connected.admin.command("getCmdLineOpts")["parsed"]["storage"]["dbPath"])
    assert folder.is_dir()
    return folder


def alive(pid: int) -> bool:
    """Say whether *pid* runs; a zombie, which an init that is no init may leave, does not."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    return exists(pid)


def exists(pid: int | None) -> bool:
    assert pid
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def eventually(condition: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + END_WITHIN_SEC
    while not condition():
        assert time.monotonic() < give_up_at, f"not within {END_WITHIN_SEC:g} s"
        time.sleep(0.01)


def fake_mongod(folder: Path, script: str) -> Path:
    fake = folder / "mongod"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(fake.stat().st_mode | stat.S_IXUSR)
    return fake


@contextmanager
def taken_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def launch_real(folder: Path, ports: tuple[int, ...]) -> RunningMongod | NotStarted:
    command = [str(mongod.find_mongod()), *mongod.FLAGS]
    return launch(command, folder, ports=ports, released=not_released)


def not_released(wait_sec: float) -> bool:
    time.sleep(wait_sec)
    return False
