"""What can be seen, or done, on Linux only."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from tests.features.isolation.executors import an_executor, kill
from tests.features.isolation.runs import Run, Trace, a_run_spec, all_gone, begin, helper_of, runner
from tests.unit.make import eventually
from tidemill.runner.process_pool import ProcessPool
from tidemill.runner.results import Crashed, Lost, Raised, Returned

pytestmark = pytest.mark.slow


def test_a_child_has_a_process_to_itself_and_nothing_of_the_executors(shared: ProcessPool) -> None:
    others = [begin(shared, a_run_spec("naps", {"seconds": 1})) for _ in range(3)]

    end = begin(shared, a_run_spec("inspects")).end()

    assert [other.end() for other in others] == [Returned(1.0)] * 3
    assert isinstance(end, Returned)
    found = end.result
    assert found["parent"] == helper_of(shared) != os.getpid()
    assert found["group"] == found["pid"]
    assert (found["main_thread"], found["threads"], found["main"]) == (True, 2, "")
    assert (found["term"], found["interrupt"], found["oom"]) == (True, True, "1000")
    assert found["clients"] == 0
    assert found["files"].pop("0") == "/dev/null"
    assert [file.partition(":")[0] for fd, file in found["files"].items() if int(fd) > 2] == ["socket"]


def test_the_helper_has_one_thread_and_no_connection(shared: ProcessPool) -> None:
    runner(shared)("noop")
    helper = helper_of(shared)

    assert "Threads:\t1\n" in Path(f"/proc/{helper}/status").read_text()
    connections = [f"socket:[{line.split()[9]}]" for kind in ("tcp", "tcp6") for line in lines(f"/proc/net/{kind}")]
    assert not {str(file.readlink()) for file in Path(f"/proc/{helper}/fd").iterdir()} & set(connections)


def lines(file: str) -> list[str]:
    """The lines of a table without its head; none where the kernel has no such table."""
    table = Path(file)
    return table.read_text().splitlines()[1:] if table.exists() else []


def test_two_hundred_runs_leave_no_process_no_file_and_no_thread(process_pool: ProcessPool) -> None:
    run = runner(process_pool)
    run("noop")
    before = held(process_pool)

    for _ in range(50):
        run("noop")
        run("exit", code=1)
        run("raises", what="error")
        run("signal", number=int(signal.SIGKILL))

    # The helper may have been about to let go of something when it was looked at first.
    assert eventually(lambda: all(now <= then for now, then in zip(held(process_pool), before, strict=True)))


def held(process_pool: ProcessPool) -> tuple[int, int, int, int]:
    """Open files here and in the helper, its children, dead ones included, and threads."""
    helper = helper_of(process_pool)
    mine, its = (len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in (os.getpid(), helper))
    return mine, its, len(children(helper)), threading.active_count()


def children(pid: int) -> list[int]:
    """The children of a process, the eldest first: of a helper, its guard."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_what_left_the_group_of_a_function_is_found_and_killed(run: Run, trace: Trace) -> None:
    assert run("leaves_strays", trace=trace.path) == Returned("returned")

    assert all_gone(*trace.pids())


def test_what_left_the_group_of_a_function_is_spared_while_that_runs(shared: ProcessPool, trace: Trace) -> None:
    cancelled = threading.Event()
    running = begin(shared, a_run_spec("leaves_orphan", {"trace": trace.path}), cancelled=cancelled)
    _, orphan = trace.pids()

    for _ in range(3):
        runner(shared)("noop")  # each of which ends with a search for what is left
    os.kill(orphan, 0)
    cancelled.set()

    assert running.end() == Returned("stopped")
    assert all_gone(orphan)


def test_a_function_dies_with_its_helper_though_nobody_is_left_to_kill_it(tmp_path: Path) -> None:
    with an_executor(tmp_path, ["sleep", "ignores", "holds_gil", "regex", "stops"]) as executor:
        guard = children(executor.helper)[0]

        kill(executor.pid, guard, executor.helper)

        assert all_gone(*executor.functions)


def test_a_function_kills_itself_and_its_children_where_its_executor_is_gone(tmp_path: Path) -> None:
    with an_executor(tmp_path, ["ignores", "leaves_and_sleeps"]) as executor:
        guard = children(executor.helper)[0]
        os.kill(executor.helper, signal.SIGSTOP)

        kill(guard, executor.pid)

        assert all_gone(*executor.functions)


def test_a_helper_that_lost_its_guard_is_replaced(process_pool: ProcessPool, trace: Trace) -> None:
    running = begin(process_pool, a_run_spec("children", {"trace": trace.path}))
    pids = trace.pids()
    first = helper_of(process_pool)

    kill(children(first)[0])

    assert isinstance(running.end(), Lost)
    assert all_gone(first, *pids)
    assert runner(process_pool)("noop") == Returned(None)


def test_a_signal_without_a_name_is_told_by_its_number(run: Run) -> None:
    number = signal.SIGRTMIN + 1

    assert run("signal", number=number) == Crashed(f"its process was killed by signal {number}")


def test_memory_beyond_a_limit_ends_at_most_its_process(run: Run) -> None:
    concluded = run("memory")

    assert isinstance(concluded, Crashed) or (isinstance(concluded, Raised) and concluded.failure.code == "MemoryError")
    assert run("noop") == Returned(None)
