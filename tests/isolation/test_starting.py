"""The helper: started once for all, and missed in one clear error."""

from __future__ import annotations

import errno
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.isolation.runs import (
    SECOND,
    MakeNursery,
    Package,
    Trace,
    all_gone,
    an_order,
    begin,
    helper_of,
    runner,
    sooner_or_later,
)
from tidemill.conclusions import Returned
from tidemill.errors import IsolationError
from tidemill.isolation import Nursery


def refusal(nursery: Nursery, name: str = "noop") -> str:
    """Why the function has not started."""
    end = begin(nursery, an_order(name)).end()
    assert isinstance(end, IsolationError)
    return end.reason


def test_a_nursery_starts_nothing_before_the_first_run(nursery: Nursery) -> None:
    assert nursery._helper is None


def test_many_first_runs_start_one_helper(nursery: Nursery) -> None:
    ends = [one.end() for one in [begin(nursery, an_order("inspects")) for _ in range(16)]]

    assert {end.result["parent"] for end in ends if isinstance(end, Returned)} == {helper_of(nursery)}
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
    make_nursery: MakeNursery, package: Package, name: str
) -> None:
    source, told = BROKEN[name]

    assert told in refusal(make_nursery(package(source)))


def test_a_package_that_is_not_there_is_told(make_nursery: MakeNursery) -> None:
    assert "tasks_of_nobody" in refusal(make_nursery("tasks_of_nobody"))


def test_all_that_wait_for_a_start_that_fails_are_told(
    make_nursery: MakeNursery, package: Package, tmp_path: Path
) -> None:
    starts = tmp_path / "starts"
    nursery = make_nursery(
        package(f"open({str(starts)!r}, 'a').write('x')\nimport time; time.sleep(1); raise ValueError")
    )

    ends = [one.end() for one in [begin(nursery, an_order("noop")) for _ in range(8)]]

    assert [type(end) for end in ends] == [IsolationError] * 8
    assert starts.read_text() == "x"


def test_a_start_that_failed_is_tried_again_by_the_next_run(
    make_nursery: MakeNursery, package: Package, tmp_path: Path
) -> None:
    repaired = tmp_path / "repaired"
    source = f"import os\nfrom tidemill import task\nassert os.path.exists({str(repaired)!r})\n"
    nursery = make_nursery(package(source + "task('hostile.noop')(lambda p: 'repaired')"))
    run = runner(nursery)
    with pytest.raises(IsolationError, match="AssertionError"):
        run("noop")

    repaired.touch()

    assert run("noop") == Returned("repaired")


def test_a_module_may_give_sockets_a_timeout_by_default(
    make_nursery: MakeNursery, package: Package, trace: Trace
) -> None:
    source = "import socket\nsocket.setdefaulttimeout(0.001)\nfrom tests.isolation.hostile_tasks import staying"
    nursery, cancelled = make_nursery(package(source)), threading.Event()
    running = begin(nursery, an_order("waits", {"trace": trace.path}), cancelled=cancelled)
    trace.pids()

    cancelled.set()

    assert running.end() == Returned("stopped")


def test_an_import_that_takes_too_long_is_given_up(make_nursery: MakeNursery, package: Package, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    source = f"import os, time\nopen({str(pid)!r}, 'w').write(str(os.getpid()))\ntime.sleep(1000)"

    nursery = make_nursery(package(source), start_within=2 * SECOND)

    assert refusal(nursery) == "the helper process was not ready within 2 s"
    assert not pid.exists() or all_gone(int(pid.read_text()))


def test_a_function_does_not_start_later_than_it_may(
    make_nursery: MakeNursery, package: Package, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    source = "import time\nfrom pathlib import Path\nfrom tidemill import task\ntime.sleep(2)\n"
    source += f"task('hostile.noop')(lambda p: Path({str(ran)!r}).touch())\ntask('hostile.late')(lambda p: 'late')"
    nursery = make_nursery(package(source), begin_within=SECOND)

    assert refusal(nursery) == "the helper process is not ready yet"

    assert sooner_or_later(nursery, "late") == Returned("late")
    assert not ran.exists()


def test_a_name_that_only_the_executor_knows_does_not_start(shared: Nursery) -> None:
    end = begin(shared, an_order("unheard_of")).end()

    assert isinstance(end, IsolationError)
    assert end.reason == "no task function is registered as 'hostile.unheard_of'"


def test_a_function_is_not_started_where_no_process_can_be(make_nursery: MakeNursery, package: Package) -> None:
    source = "import errno, os\ndef fork(): raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))\nos.fork = fork"

    assert refusal(make_nursery(package(source))).startswith(
        "no process can be started (Resource temporarily unavailable"
    )


def test_a_function_is_not_started_where_no_helper_can_be(
    make_nursery: MakeNursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")

    assert refusal(make_nursery("tasks")) == "the helper process cannot be started (No such file or directory)"


def test_a_function_is_not_started_where_too_many_files_are_open(
    make_nursery: MakeNursery, nursery: Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runner(nursery)
    run("noop")
    monkeypatch.setattr(socket, "socketpair", lambda: _raise(OSError(errno.EMFILE, "Too many open files")))

    with pytest.raises(IsolationError, match="no socket can be opened"):
        run("noop")
    with pytest.raises(IsolationError, match="the helper process cannot be started"):
        runner(make_nursery())("noop")

    monkeypatch.undo()
    assert run("noop") == Returned(None)


def _raise(error: OSError) -> Any:
    raise error


def test_a_child_that_dies_before_it_calls_the_function_has_not_started_it(
    make_nursery: MakeNursery, package: Package
) -> None:
    nursery = make_nursery(package("import os\nos.register_at_fork(after_in_child=lambda: os._exit(5))"))

    assert refusal(nursery) == "its process exited with code 5 before it called the function"
