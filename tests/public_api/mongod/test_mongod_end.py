"""However the process that started a MongoDB ends, nothing is left of it."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tests.public_api.mongod.mongods import (
    END_WITHIN_SEC,
    LISTENING,
    Trace,
    alive,
    child,
    client,
    eventually,
    exists,
    fake_mongod,
    folder_of,
    let_go,
    line_of,
    trace_of,
)
from tidemill.testing import Mongod
from tidemill.testing._mongod_guard import Guard, ListeningMongod


@pytest.mark.parametrize(
    ("body", "sent", "status"),
    [
        ("pass", None, 0),
        ("raise ValueError", None, 1),
        ("sys.exit(3)", None, 3),
        ("os._exit(4)", None, 4),
        ("await_signal()", signal.SIGINT, -signal.SIGINT),
        ("await_signal()", signal.SIGTERM, -signal.SIGTERM),
        ("await_signal()", signal.SIGKILL, -signal.SIGKILL),
    ],
)
def test_however_its_process_ends_nothing_is_left(body: str, sent: signal.Signals | None, status: int) -> None:
    with child(f"with Mongod(standalone=True) as server:\n    tell(server)\n    {body}") as process:
        trace = trace_of(process)
        let_go(process)
        if sent:
            os.killpg(process.pid, sent)

        assert process.wait(timeout=END_WITHIN_SEC) == status
        eventually(trace.is_gone)


def test_one_that_is_never_stopped_goes_with_its_process() -> None:
    with child("server = Mongod(standalone=True)\nserver.start()\ntell(server)") as process:
        trace = trace_of(process)
        let_go(process)

        assert process.wait(timeout=END_WITHIN_SEC) == 0
        eventually(trace.is_gone)


def test_ctrl_c_leaves_it_alone_until_its_process_is_done_with_it() -> None:
    body = """
with Mongod() as server, MongoClient(server.uri) as client:
    try:
        tell(server)
        await_signal()
    except KeyboardInterrupt:
        time.sleep(0.1)
        print("ok" if client.admin.command("ping")["ok"] else "not ok", flush=True)
"""
    with child(body) as process:
        trace = trace_of(process)
        let_go(process)
        os.killpg(process.pid, signal.SIGINT)

        assert line_of(process) == "ok"
        assert process.wait(timeout=END_WITHIN_SEC) == 0
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


def test_stopping_it_does_not_wait_for_others_that_hold_its_pipe(tmp_path: Path) -> None:
    guard = Guard(str(tmp_path), [str(fake_mongod(tmp_path, LISTENING))])
    listening = guard.report()
    assert isinstance(listening, ListeningMongod)
    other = os.dup(guard.pipe)

    guard.release()

    assert not exists(listening.pid)
    os.close(other)


def test_the_guard_survives_the_signals_that_end_other_processes(tmp_path: Path) -> None:
    fake = fake_mongod(tmp_path, LISTENING)
    guard = Guard(str(tmp_path), [str(fake)])
    assert isinstance(guard.report(), ListeningMongod)

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
