"""What a function finds around it, and that nothing of it is left for the next."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.features.isolation.runs import MakeProcessPool, Package, Run, Trace, a_run_spec, begin, runner
from tidemill.runner.process_pool import ProcessPool
from tidemill.runner.results import Crashed, Raised, Returned

pytestmark = pytest.mark.slow

NO_SEMAPHORES = """
import _multiprocessing, sys

def refuse(*_, **__):
    raise OSError(38, "Function not implemented")

_multiprocessing.SemLock = refuse
sys.modules["multiprocessing.synchronize"] = None
"""


def test_what_a_function_changes_the_next_does_not_see(run: Run) -> None:  # F53
    before = run("looks")

    assert run("spoils") == Returned(None)

    assert isinstance(before, Returned)
    assert before.result["module"] == []
    assert run("looks") == before


def test_what_a_function_changes_the_executor_does_not_see(run: Run) -> None:
    here = Path.cwd()

    run("spoils")

    assert (Path.cwd(), os.environ.get("SPOILT")) == (here, None)


def test_a_helper_starts_where_the_executor_was_though_that_is_in_a_directory_that_is_gone(
    process_pool: ProcessPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = str(Path.cwd())
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()

    concluded = runner(process_pool)("looks")

    assert isinstance(concluded, Returned)
    assert concluded.result["folder"] == here


def test_signals_that_the_executor_ignores_have_their_usual_effect_on_a_function(process_pool: ProcessPool) -> None:
    ignored = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        assert runner(process_pool)("signal", number=int(signal.SIGTERM)) == Crashed(
            "its process was killed by SIGTERM"
        )
        interrupted = runner(process_pool)("signal", number=int(signal.SIGINT))
    finally:
        for number, handler in ignored.items():
            signal.signal(number, handler)

    assert isinstance(interrupted, Raised)
    assert interrupted.failure.code == "KeyboardInterrupt"


def test_it_works_where_sockets_have_a_timeout_by_default(process_pool: ProcessPool, trace: Trace) -> None:  # F53
    cancelled = threading.Event()
    socket.setdefaulttimeout(0.001)
    try:
        assert runner(process_pool)("length", text="x" * 10**6) == Returned(10**6)
        running = begin(process_pool, a_run_spec("waits", {"trace": trace.path}), cancelled=cancelled)
        trace.pids()
        cancelled.set()
        assert running.end() == Returned("stopped")
    finally:
        socket.setdefaulttimeout(None)


def test_it_works_where_there_are_no_semaphores(
    process_pool: ProcessPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(NO_SEMAPHORES)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # for the helper; in this process:
    for name in ("_multiprocessing", "multiprocessing.synchronize"):
        monkeypatch.setitem(sys.modules, name, None)
    run = runner(process_pool)

    refused = run("locks")

    assert isinstance(refused, Raised)
    assert refused.failure.code == "ModuleNotFoundError"
    assert run("echo", a=1) == Returned({"payload": {"a": 1}, "task_id": 1, "attempt": 1, "is_last": False})
    together = [begin(process_pool, a_run_spec("naps", {"seconds": 0.1})) for _ in range(4)]
    assert [one.end() for one in together] == [Returned(0.1)] * 4


def test_nothing_printed_gets_into_a_socket_where_the_standard_files_are_closed(tmp_path: Path) -> None:
    told = tmp_path / "told"
    program = (
        "from datetime import timedelta\n"
        "from pathlib import Path\n"
        "from tests.features.isolation.runs import PACKAGE, runner\n"
        "from tidemill.runner.process_pool import ProcessPool\n"
        "process_pool = ProcessPool(PACKAGE, directory=Path.cwd(), begin_within=timedelta(seconds=60))\n"
        "run = runner(process_pool)\n"
        "ends = [run('writes', text='garbage' * 100), run('noop')]\n"
        f"Path({str(told)!r}).write_text(repr(ends))\n"
        "process_pool.close()\n"
    )
    environment = {"PYTHONPATH": ":".join(sys.path)}

    shell = ["sh", "-c", 'exec "$0" -c "$1" <&- >&- 2>&-', sys.executable, program]
    assert subprocess.run(shell, env=environment, timeout=60, check=False).returncode == 0

    assert told.read_text() == "[Returned(result=None), Returned(result=None)]"


@pytest.mark.parametrize("ids", [("c", "t"), (None, None)])
def test_a_function_is_told_the_ids_of_who_enqueued_it(
    process_pool: ProcessPool, ids: tuple[str | None, str | None]
) -> None:
    spec = a_run_spec("tells_who_asked", correlation_id=ids[0], traceparent=ids[1])

    assert process_pool.run(spec, cancelled=threading.Event(), take_note=bool) == Returned(list(ids))


LEAVES_WORK = """
import atexit, threading, time, weakref
from pathlib import Path
from tidemill import task

def write(path):
    Path(path).write_text("written")

def write_later(path):
    time.sleep(0.5)
    write(path)

@task("hostile.leaves_exit_handler")
def leave_exit_handler(payload):
    atexit.register(write, payload["path"])

@task("hostile.leaves_finalizer")
def leave_finalizer(payload):
    leave_finalizer.kept = threading.Event()
    weakref.finalize(leave_finalizer.kept, write, payload["path"])

@task("hostile.leaves_thread")
def leave_thread(payload):
    threading.Thread(target=write_later, args=[payload["path"]], daemon=False).start()

@task("hostile.joins_thread")
def join_thread(payload):
    thread = threading.Thread(target=write_later, args=[payload["path"]])
    thread.start()
    thread.join()
"""


def test_an_isolated_process_ends_with_the_function_whatever_it_has_left_for_later(
    make_process_pool: MakeProcessPool, package: Package, tmp_path: Path
) -> None:
    # N11b: the guide lists it
    run = runner(make_process_pool(package(LEAVES_WORK)))
    written = tmp_path / "written"

    for name in ("leaves_exit_handler", "leaves_finalizer", "leaves_thread"):
        assert run(name, path=str(written)) == Returned(None)
    assert run("joins_thread", path=str(tmp_path / "joined")) == Returned(None)  # half a second later

    assert (written.exists(), (tmp_path / "joined").exists()) == (False, True)
