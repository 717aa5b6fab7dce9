"""Nothing is left, whoever of those that watch over a function is killed."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.features.isolation.executors import Executor, an_executor, kill
from tests.features.isolation.runs import (
    PACKAGE,
    PLAIN,
    MakeProcessPool,
    Package,
    Trace,
    a_run_spec,
    all_gone,
    begin,
    helper_of,
    runner,
)
from tests.public_api.mongod.mongods import alive
from tidemill import TaskTimeoutError
from tidemill.runner.process_pool import ProcessPool
from tidemill.runner.results import Crashed, Returned

pytestmark = pytest.mark.slow

FUNCTIONS = ["sleep", "ignores", "holds_gil", "regex", "stops", "children"]


def kill_with_helper_stopped(executor: Executor) -> None:
    os.kill(executor.helper, signal.SIGSTOP)
    kill(executor.pid)


DEATHS: dict[str, Callable[[Executor], None]] = {
    "the executor": lambda executor: kill(executor.pid),
    "the executor, its helper stopped": kill_with_helper_stopped,
    "the helper": lambda executor: kill(executor.helper),
    "the helper with its group": lambda executor: os.killpg(executor.helper, signal.SIGKILL),
    "both": lambda executor: kill(executor.pid, executor.helper),
    "both, the helper first": lambda executor: kill(executor.helper, executor.pid),
}


WITHOUT_HELP = ["the executor", "the helper", "both"]


@pytest.mark.parametrize(
    ("death", "package"), [*((death, PACKAGE) for death in DEATHS), *((death, PLAIN) for death in WITHOUT_HELP)]
)
def test_no_function_and_none_of_its_children_outlives(tmp_path: Path, death: str, package: str) -> None:
    with an_executor(tmp_path, FUNCTIONS, package=package) as executor:
        assert all(map(alive, executor.functions))
        assert len(executor.functions) == len(FUNCTIONS) + 2

        DEATHS[death](executor)

        assert all_gone(executor.helper, *executor.functions)


def test_the_pipe_of_a_killed_executor_is_let_go(tmp_path: Path) -> None:
    with an_executor(tmp_path, FUNCTIONS) as executor:
        kill(executor.pid)

        assert executor.output.read() == b""  # at the end, when nobody has it any more


def test_closing_ends_what_runs_and_the_helper(process_pool: ProcessPool, trace: Trace) -> None:
    running = begin(process_pool, a_run_spec("children", {"trace": trace.path}))
    pids = [helper_of(process_pool), *trace.pids()]

    process_pool.close()

    assert isinstance(running.end(), Crashed)
    assert all_gone(*pids)


STARTS_AT_IMPORT = """
import os, subprocess, sys
from tidemill import task
quiet = subprocess.DEVNULL
in_group = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stdout=quiet)
on_its_own = subprocess.Popen([*in_group.args], stdout=quiet, start_new_session=True)
@task("hostile.started")
def started(payload):
    return [os.getppid(), in_group.pid, on_its_own.pid]
"""


@pytest.mark.parametrize("end", ["closed", "killed"])
def test_what_task_modules_started_at_import_ends_with_the_helper(
    make_process_pool: MakeProcessPool, package: Package, end: str
) -> None:
    pool = make_process_pool(package(STARTS_AT_IMPORT))
    returned = runner(pool)("started")
    assert isinstance(returned, Returned)
    helper, in_group, on_its_own = returned.result

    if end == "killed":
        kill(helper)
        assert all_gone(in_group)
        kill(on_its_own)  # nothing has its number any more
    else:
        pool.close()
        assert all_gone(in_group, on_its_own)


def test_a_run_whose_thread_is_interrupted_leaves_nothing(shared: ProcessPool, trace: Trace) -> None:
    running = begin(shared, a_run_spec("children", {"trace": trace.path}))
    pids = trace.pids()

    thread = ctypes.c_ulong(running.thread.ident or 0)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(TaskTimeoutError))

    assert isinstance(running.end(), TaskTimeoutError)
    assert all_gone(*pids)
    assert runner(shared)("noop") == Returned(None)


def test_what_an_executor_has_forked_does_not_keep_its_functions_alive(tmp_path: Path) -> None:
    with an_executor(tmp_path, FUNCTIONS, kind="forked") as executor:
        kill(executor.pid)

        assert all_gone(executor.helper, *executor.functions)
        assert all(map(alive, executor.forks))
