"""The helper: replaced where it is lost, and gone once the nursery is closed."""

from __future__ import annotations

import os
import signal

import pytest

from tests.isolation.runs import (
    LONG,
    SECOND,
    MakeNursery,
    Package,
    Trace,
    an_order,
    begin,
    helper_of,
    runner,
    sooner_or_later,
)
from tests.unit.make import eventually
from tidemill.conclusions import Returned
from tidemill.errors import IsolationError
from tidemill.isolation import Nursery


def test_a_helper_that_was_killed_between_runs_is_replaced(nursery: Nursery) -> None:
    run = runner(nursery)
    run("noop")
    first = helper_of(nursery)
    os.kill(first, signal.SIGKILL)

    assert run("noop") == Returned(None)
    assert helper_of(nursery) != first


def test_a_helper_that_is_frozen_is_replaced(make_nursery: MakeNursery) -> None:
    nursery = make_nursery(answer_within=2 * SECOND)
    run = runner(nursery)
    run("noop")
    first = helper_of(nursery)
    os.kill(first, signal.SIGSTOP)

    ends = [one.end() for one in [begin(nursery, an_order("noop")) for _ in range(4)]]

    assert ends == [Returned(None)] * 4
    assert helper_of(nursery) != first


def test_a_helper_that_was_thawed_goes_on(make_nursery: MakeNursery) -> None:
    nursery = make_nursery(answer_within=LONG * SECOND)
    run = runner(nursery)
    run("noop")
    first = helper_of(nursery)
    os.kill(first, signal.SIGSTOP)
    waiting = begin(nursery, an_order("noop"))
    assert not eventually(lambda: bool(waiting.ends), within=1.5)

    os.kill(first, signal.SIGCONT)

    assert waiting.end() == Returned(None)
    assert helper_of(nursery) == first


def test_a_helper_that_was_too_busy_does_not_start_the_function_afterwards(
    make_nursery: MakeNursery, trace: Trace
) -> None:
    nursery = make_nursery(begin_within=SECOND, answer_within=LONG * SECOND)
    sooner_or_later(nursery, "noop")
    os.kill(helper_of(nursery), signal.SIGSTOP)
    with pytest.raises(IsolationError, match="too busy"):
        runner(nursery)("leaves_thread", trace=trace.path)

    os.kill(helper_of(nursery), signal.SIGCONT)

    assert sooner_or_later(nursery, "noop") == Returned(None)
    assert not trace.is_told()


def test_a_helper_that_is_lost_each_time_is_missed_in_the_end(make_nursery: MakeNursery, package: Package) -> None:
    nursery = make_nursery(package("import os\nos.register_at_fork(before=lambda: os._exit(0))"))

    with pytest.raises(IsolationError, match="the helper process is gone"):
        runner(nursery)("noop")


def test_a_closed_nursery_runs_nothing(nursery: Nursery) -> None:
    runner(nursery)("noop")
    nursery.close()
    nursery.close()

    with pytest.raises(IsolationError, match="closed"):
        runner(nursery)("noop")


def test_a_nursery_that_never_ran_can_be_closed(nursery: Nursery) -> None:
    nursery.close()

    with pytest.raises(IsolationError, match="closed"):
        runner(nursery)("noop")
