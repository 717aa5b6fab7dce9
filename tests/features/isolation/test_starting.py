"""The helper: started once for all, and missed in one clear error."""

from __future__ import annotations

import errno
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.features.isolation.runs import (
    LONG,
    PATIENT,
    SECOND,
    MakeProcessPool,
    Package,
    Trace,
    a_run_spec,
    all_gone,
    begin,
    helper_of,
    runner,
    sooner_or_later,
)
from tests.waiting import eventually
from tidemill.errors import IsolationError
from tidemill.runner.process_pool import ProcessPool
from tidemill.runner.results import Returned

pytestmark = pytest.mark.slow


def refusal(process_pool: ProcessPool, name: str = "noop") -> str:
    """Why the function has not started."""
    end = begin(process_pool, a_run_spec(name)).end()
    assert isinstance(end, IsolationError)
    return end.reason


def test_a_process_pool_starts_nothing_before_the_first_run(
    make_process_pool: MakeProcessPool, package: Package, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    source = f"from pathlib import Path\nPath({str(started)!r}).touch()\n"
    process_pool = make_process_pool(package(source + "from tests.features.isolation.hostile_tasks import looking"))
    assert not eventually(started.exists, within=1)

    assert runner(process_pool)("noop") == Returned(None)
    assert started.exists()


def test_many_first_runs_start_one_helper(process_pool: ProcessPool) -> None:
    ends = [one.end() for one in [begin(process_pool, a_run_spec("inspects")) for _ in range(16)]]

    assert {end.result["parent"] for end in ends if isinstance(end, Returned)} == {helper_of(process_pool)}
    assert len(ends) == 16


BROKEN = {
    "raises": ("raise ValueError('broken')", "cannot be imported: ValueError (module.py:1"),
    "import": ("import nothing_like_this", "No module named"),
    "exits": ("import sys; sys.exit(3)", "cannot be imported: SystemExit (module.py:1"),
    "dies": ("import os; os._exit(3)", "the helper process ended while it started"),
    "segfault": ("import ctypes; ctypes.string_at(0)", "the helper process ended while it started"),
    "twice": ("from tidemill import task\n@task('a')\ndef f(p): ...\n@task('a')\ndef g(p): ...\n", "rename one"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_package_that_cannot_be_imported_is_told_once_and_clearly(
    make_process_pool: MakeProcessPool, package: Package, name: str
) -> None:
    source, told = BROKEN[name]

    assert told in refusal(make_process_pool(package(source)))


def test_a_module_that_fails_leaves_the_functions_of_the_others(
    make_process_pool: MakeProcessPool, package: Package, tmp_path: Path
) -> None:
    name = package("from tidemill import task\ntask('hostile.noop')(lambda p: 'there')")
    (tmp_path / name / "broken.py").write_text("import nothing_like_this")
    process_pool = make_process_pool(name)

    assert runner(process_pool)("noop") == Returned("there")
    assert "no task function is registered as 'hostile.gone'" in refusal(process_pool, "gone")


HOOKED = """
from tidemill import resource, task, task_hook

def trace(line):
    with open({trace!r}, "a") as file:
        print(line, file=file)

@resource
def pool():
    yield "pool"
    trace("pool closed")

@resource
async def client():
    yield "client"
    trace("client closed")

@task_hook
def hook(ctx):
    trace(f"{{ctx.name}} begins")
    yield
    trace("run ends")

@task("hostile.noop")
async def noop(payload):
    return [pool(), await client()]
"""


def test_hooks_and_resources_are_used_and_closed_within_the_child(
    make_process_pool: MakeProcessPool, package: Package, tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    process_pool = make_process_pool(package(HOOKED.format(trace=str(trace))))

    assert runner(process_pool)("noop") == Returned(["pool", "client"])

    assert trace.read_text().splitlines() == ["hostile.noop begins", "run ends", "client closed", "pool closed"]


def test_a_package_that_is_not_there_is_told(make_process_pool: MakeProcessPool) -> None:
    assert "tasks_of_nobody" in refusal(make_process_pool("tasks_of_nobody"))


def test_all_that_wait_for_a_start_that_fails_are_told(
    make_process_pool: MakeProcessPool, package: Package, tmp_path: Path
) -> None:
    starts = tmp_path / "starts"
    process_pool = make_process_pool(
        package(f"open({str(starts)!r}, 'a').write('x')\nimport time; time.sleep(1); raise ValueError")
    )

    ends = [one.end() for one in [begin(process_pool, a_run_spec("noop")) for _ in range(8)]]

    assert [type(end) for end in ends] == [IsolationError] * 8
    assert starts.read_text() == "x"


def test_a_start_that_failed_is_tried_again_by_the_next_run(
    make_process_pool: MakeProcessPool, package: Package, tmp_path: Path
) -> None:
    repaired = tmp_path / "repaired"
    source = f"import os\nfrom tidemill import task\nassert os.path.exists({str(repaired)!r})\n"
    process_pool = make_process_pool(package(source + "task('hostile.noop')(lambda p: 'repaired')"))
    run = runner(process_pool)
    with pytest.raises(IsolationError, match="AssertionError"):
        run("noop")

    repaired.touch()

    assert run("noop") == Returned("repaired")


def test_a_module_may_give_sockets_a_timeout_by_default(
    make_process_pool: MakeProcessPool, package: Package, trace: Trace
) -> None:
    source = (
        "import socket\nsocket.setdefaulttimeout(0.001)\nfrom tests.features.isolation.hostile_tasks import staying"
    )
    process_pool, cancelled = make_process_pool(package(source)), threading.Event()
    running = begin(process_pool, a_run_spec("waits", {"trace": trace.path}), cancelled=cancelled)
    trace.pids()

    cancelled.set()

    assert running.end() == Returned("stopped")


def test_an_import_that_takes_too_long_is_given_up(
    make_process_pool: MakeProcessPool, package: Package, tmp_path: Path
) -> None:
    pid = tmp_path / "pid"
    source = f"import os, time\nopen({str(pid)!r}, 'w').write(str(os.getpid()))\ntime.sleep(1000)"

    process_pool = make_process_pool(package(source), start_within=2 * SECOND)

    assert refusal(process_pool) == "the helper process was not ready within 2 s"
    assert not pid.exists() or all_gone(int(pid.read_text()))


def test_a_function_does_not_start_later_than_it_may(
    make_process_pool: MakeProcessPool, package: Package, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    source = "import time\nfrom pathlib import Path\nfrom tidemill import task\ntime.sleep(2)\n"
    source += f"task('hostile.noop')(lambda p: Path({str(ran)!r}).touch())\ntask('hostile.late')(lambda p: 'late')"
    process_pool = make_process_pool(package(source), begin_within=SECOND)

    assert refusal(process_pool) == "the helper process is not ready yet"

    assert sooner_or_later(process_pool, "late") == Returned("late")
    assert not ran.exists()


def test_a_name_that_only_the_executor_knows_does_not_start(shared: ProcessPool) -> None:
    end = begin(shared, a_run_spec("unheard_of")).end()

    assert isinstance(end, IsolationError)
    assert end.reason == "no task function is registered as 'hostile.unheard_of'"


def test_a_function_is_not_started_where_no_process_can_be(
    make_process_pool: MakeProcessPool, package: Package
) -> None:
    source = "import errno, os\ndef fork(): raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))\nos.fork = fork"

    process_pool = make_process_pool(package(source), answer_within=LONG * SECOND)  # the refusal is not waited out

    assert refusal(process_pool).startswith("no process can be started (Resource temporarily unavailable")


def test_a_function_is_not_started_where_no_helper_can_be(
    make_process_pool: MakeProcessPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")

    assert refusal(make_process_pool("tasks")) == "the helper process cannot be started (No such file or directory)"


def test_a_function_is_not_started_where_too_many_files_are_open(
    make_process_pool: MakeProcessPool, process_pool: ProcessPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runner(process_pool)
    run("noop")
    monkeypatch.setattr(socket, "socketpair", lambda: _raise(OSError(errno.EMFILE, "Too many open files")))

    with pytest.raises(IsolationError, match="no socket can be opened"):
        run("noop")
    with pytest.raises(IsolationError, match="the helper process cannot be started"):
        runner(make_process_pool())("noop")

    monkeypatch.undo()
    assert run("noop") == Returned(None)


def _raise(error: OSError) -> Any:
    raise error


def test_a_child_that_dies_before_it_calls_the_function_has_not_started_it(
    make_process_pool: MakeProcessPool, package: Package
) -> None:
    process_pool = make_process_pool(package("import os\nos.register_at_fork(after_in_child=lambda: os._exit(5))"))

    assert refusal(process_pool) == "its process exited with code 5 before it called the function"


def test_a_child_that_is_killed_before_it_calls_the_function_has_not_started_it(
    make_process_pool: MakeProcessPool, package: Package, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    source = "import os, time\nfrom pathlib import Path\nfrom tidemill import task\n"
    source += "os.register_at_fork(after_in_child=lambda: time.sleep(1000))\n"
    source += f"task('hostile.noop')(lambda p: Path({str(ran)!r}).touch())"
    process_pool = make_process_pool(package(source), begin_within=SECOND)

    # The first runs may be too early for the helper.
    assert eventually(
        lambda: refusal(process_pool).endswith("before it called the function"), within=PATIENT.total_seconds()
    )

    assert not ran.exists()
