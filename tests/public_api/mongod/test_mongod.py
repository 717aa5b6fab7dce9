"""The embedded MongoDB: what it is, where it lives, and what is said where there is none."""

from __future__ import annotations

import gc
import itertools
import sys
import tempfile
from pathlib import Path

import pytest

from tests.public_api.mongod.mongods import (
    LISTENING,
    TEST_URI,
    client,
    exists,
    fake_mongod,
    launch_real,
    not_released,
    taken_port,
)
from tidemill.testing import Mongod, MongodNotFoundError, MongodStartError, mongod
from tidemill.testing._mongod_guard import (
    PORTS_TO_TRY,
    Guard,
    NotStarted,
    RunningMongod,
    free_ports,
    launch,
    select_last_lines,
)


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


def test_without_a_mongod_one_sentence_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(MongodNotFoundError, match=rf"^there is no mongod to start: .* or set {TEST_URI} to"):
        mongod.find_mongod(packages=[str(tmp_path)])


def test_without_the_wheel_the_mongod_on_path_is_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = fake_mongod(tmp_path, "exit")
    monkeypatch.setenv("PATH", str(tmp_path))

    assert mongod.find_mongod(packages=[]) == fake


@pytest.mark.parametrize(
    ("system", "machine", "remedy"),
    [
        ("Linux", "x86_64", "pip install 'tidemill[dev]'"),
        ("Linux", "aarch64", "install MongoDB Community Server"),
        ("Darwin", "arm64", "brew tap mongodb/brew && brew install mongodb-community"),
    ],
)
def test_what_to_do_depends_on_the_platform(system: str, machine: str, remedy: str) -> None:
    assert remedy in mongod.explain_missing_mongod(system, machine)


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


def test_a_mongod_that_never_listens_is_given_up(tmp_path: Path) -> None:
    fake = fake_mongod(tmp_path, "exec sleep 60")

    outcome = launch([str(fake)], tmp_path, ports=free_ports(), released=not_released, timeout_sec=0)

    assert outcome == NotStarted(code=None, log="")


def test_a_mongod_that_becomes_no_primary_is_given_up(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    fake = fake_mongod(tmp_path, f"echo $$ > {pid}; {LISTENING}")

    with pytest.raises(MongodStartError, match=r"did not become a primary within 0\.1 s"):
        Mongod(binary=fake, primary_timeout_sec=0.1).start()

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
    def count_guards() -> int:
        gc.collect()
        return sum(type(kept) is Guard for kept in gc.get_objects())

    before = count_guards()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))

    with pytest.raises(FileNotFoundError):
        Guard(str(tmp_path), ["mongod"])

    assert count_guards() == before


def test_the_quoted_end_of_a_log_leaves_out_what_is_merely_information() -> None:
    told = '{"s":"E", "msg":"no disk"}'
    assert select_last_lines("\n".join([told, *['{"s":"I", "msg":"bye"}'] * 20])) == told


def test_it_lives_on_disk_where_memory_is_short() -> None:
    assert mongod.choose_parent_folder(min_free_bytes=2**60) == tempfile.gettempdir()


def test_a_port_that_somebody_took_meanwhile_is_given_up_for_another(tmp_path: Path) -> None:
    with taken_port() as taken:
        ports = (taken, next(free_ports()))
        outcome = launch_real(tmp_path, ports)

        assert isinstance(outcome, RunningMongod)
        outcome.process.kill()
        outcome.process.wait()
    assert outcome.port == ports[1]


def test_ports_are_not_tried_for_ever(tmp_path: Path) -> None:
    attempts = tmp_path / "attempts"
    fake = fake_mongod(tmp_path, f"echo x >> {attempts}; echo Address already in use; exit 48")

    outcome = launch([str(fake)], tmp_path, ports=itertools.count(1), released=not_released)

    assert outcome == NotStarted(code=48, log="Address already in use\n")
    assert attempts.read_text() == "x\n" * PORTS_TO_TRY
