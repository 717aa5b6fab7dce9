"""Functions that run too long, and those whose task is cancelled."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from tests.isolation.runs import SECOND, MakeNursery, Package, Trace, all_gone, an_order, begin, helper_of, runner
from tidemill.conclusions import Crashed, Overran, Returned
from tidemill.isolation import Nursery


@pytest.mark.parametrize("name", ["sleep", "ignores", "stops", "holds_gil", "regex", "children", "leaves_group"])
def test_a_function_that_runs_too_long_is_killed_with_all_it_started(
    everywhere: Nursery, trace: Trace, name: str
) -> None:
    run = runner(everywhere)
    run("noop")
    helper = helper_of(everywhere)

    assert run(name, timeout=0.6, trace=trace.path) == Overran()

    assert all_gone(*trace.pids())
    assert run("noop") == Returned(None)
    assert helper_of(everywhere) == helper


def test_it_is_killed_though_the_helper_does_not_answer(make_nursery: MakeNursery, trace: Trace) -> None:
    nursery = make_nursery(answer_within=SECOND)
    running = begin(nursery, an_order("children", {"trace": trace.path}, timeout=2))
    pids = trace.pids()
    os.kill(helper_of(nursery), signal.SIGSTOP)

    assert running.end() == Overran()

    assert all_gone(*pids)


def test_the_time_counts_from_when_the_function_is_called(make_nursery: MakeNursery, package: Package) -> None:
    source = "import time\nfrom tidemill import task\ntime.sleep(1.5)\ntask('hostile.noop')(lambda p: None)"
    nursery = make_nursery(package(source))

    assert runner(nursery)("noop", timeout=1) == Returned(None)


LEAVING = {
    "leaves_children": Returned("returned"),
    "leaves_thread": Returned("returned"),
    "leaves_and_dies": Crashed("its process exited with code 9"),
}


@pytest.mark.parametrize("name", LEAVING)
def test_a_function_that_ended_leaves_nothing_behind(everywhere: Nursery, trace: Trace, name: str) -> None:
    assert runner(everywhere)(name, trace=trace.path) == LEAVING[name]

    assert all_gone(*trace.pids())


def test_a_cancellation_reaches_the_function_it_is_meant_for(shared: Nursery, trace: Trace) -> None:
    cancelled, other = threading.Event(), threading.Event()
    meant = begin(shared, an_order("waits", {"trace": trace.path}), cancelled=cancelled)
    beside = begin(shared, an_order("waits", {"trace": trace.path + "2"}, timeout=1), cancelled=other)
    trace.pids()

    cancelled.set()

    assert meant.end() == Returned("stopped")
    assert beside.end() == Overran()


def test_what_is_cancelled_before_it_starts_is_told_so(shared: Nursery, trace: Trace) -> None:
    cancelled = threading.Event()
    cancelled.set()

    assert begin(shared, an_order("waits", {"trace": trace.path}), cancelled=cancelled).end() == Returned("stopped")


def test_a_cancellation_does_not_hurt_a_function_that_does_not_look(shared: Nursery) -> None:
    cancelled = threading.Event()
    cancelled.set()

    assert begin(shared, an_order("naps", {"seconds": 0.5}), cancelled=cancelled).end() == Returned(0.5)
