"""Functions that run too long, and those whose task is cancelled."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from tests.features.isolation.runs import (
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
)
from tidemill.runner.process_pool import ProcessPool
from tidemill.runner.results import Crashed, Returned, TimedOut

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", ["sleep", "ignores", "stops", "holds_gil", "regex", "children", "leaves_group"])
def test_a_function_that_runs_too_long_is_killed_with_all_it_started(
    everywhere: ProcessPool, trace: Trace, name: str
) -> None:
    run = runner(everywhere)
    run("noop")
    helper = helper_of(everywhere)
    before = time.monotonic()

    assert run(name, timeout=0.6, trace=trace.path) == TimedOut()

    assert time.monotonic() - before < PATIENT.total_seconds() / 2  # the time to begin is longer, and does not count
    assert all_gone(*trace.pids())
    assert run("noop") == Returned(None)
    assert helper_of(everywhere) == helper


def test_it_is_killed_though_the_helper_does_not_answer(make_process_pool: MakeProcessPool, trace: Trace) -> None:
    process_pool = make_process_pool(answer_within=SECOND)
    running = begin(process_pool, a_run_spec("children", {"trace": trace.path}, timeout=2))
    pids = trace.pids()
    os.kill(helper_of(process_pool), signal.SIGSTOP)

    assert running.end() == TimedOut()

    assert all_gone(*pids)


def test_the_time_counts_from_when_the_function_is_called(make_process_pool: MakeProcessPool, package: Package) -> None:
    source = "import time\nfrom tidemill import task\ntime.sleep(1.5)\ntask('hostile.noop')(lambda p: None)"
    process_pool = make_process_pool(package(source))

    assert runner(process_pool)("noop", timeout=1) == Returned(None)


LEAVING = {
    "leaves_children": Returned("returned"),
    "leaves_thread": Returned("returned"),
    "leaves_and_dies": Crashed("its process exited with code 9"),
}


@pytest.mark.parametrize("name", LEAVING)
def test_a_function_that_ended_leaves_nothing_behind(everywhere: ProcessPool, trace: Trace, name: str) -> None:
    assert runner(everywhere)(name, trace=trace.path) == LEAVING[name]

    assert all_gone(*trace.pids())


def test_a_cancellation_reaches_the_function_it_is_meant_for(shared: ProcessPool, trace: Trace) -> None:
    cancelled, other = threading.Event(), threading.Event()
    meant = begin(shared, a_run_spec("waits", {"trace": trace.path}), cancelled=cancelled)
    beside = begin(shared, a_run_spec("waits", {"trace": trace.path + "2"}, timeout=1), cancelled=other)
    trace.pids()

    cancelled.set()

    assert meant.end() == Returned("stopped")
    assert beside.end() == TimedOut()


def test_what_is_cancelled_before_it_starts_is_told_so(shared: ProcessPool, trace: Trace) -> None:
    cancelled = threading.Event()
    cancelled.set()

    assert begin(shared, a_run_spec("waits", {"trace": trace.path}), cancelled=cancelled).end() == Returned("stopped")


def test_a_cancellation_does_not_hurt_a_function_that_does_not_look(shared: ProcessPool) -> None:
    cancelled = threading.Event()
    cancelled.set()

    assert begin(shared, a_run_spec("naps", {"seconds": 0.5}), cancelled=cancelled).end() == Returned(0.5)
