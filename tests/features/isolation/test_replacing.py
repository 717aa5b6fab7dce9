"""The helper: replaced where it is lost, and gone once the process pool is closed."""

from __future__ import annotations

import os
import signal

import pytest

from tests.features.isolation.runs import (
    LONG,
    SECOND,
    MakeProcessPool,
    Package,
    Trace,
    a_run_spec,
    begin,
    helper_of,
    runner,
    sooner_or_later,
)
from tests.unit.make import eventually
from tidemill.errors import IsolationError
from tidemill.runner.process_pool import ProcessPool
from tidemill.runner.results import Returned

pytestmark = pytest.mark.slow


def test_a_helper_that_was_killed_between_runs_is_replaced(process_pool: ProcessPool) -> None:
    run = runner(process_pool)
    run("noop")
    first = helper_of(process_pool)
    os.kill(first, signal.SIGKILL)

    assert run("noop") == Returned(None)
    assert helper_of(process_pool) != first


def test_a_helper_that_is_frozen_is_replaced(make_process_pool: MakeProcessPool) -> None:
    process_pool = make_process_pool(answer_within=2 * SECOND)
    run = runner(process_pool)
    run("noop")
    first = helper_of(process_pool)
    os.kill(first, signal.SIGSTOP)

    ends = [one.end() for one in [begin(process_pool, a_run_spec("noop")) for _ in range(4)]]

    assert ends == [Returned(None)] * 4
    assert helper_of(process_pool) != first


def test_a_helper_that_was_thawed_goes_on(make_process_pool: MakeProcessPool) -> None:
    process_pool = make_process_pool(answer_within=LONG * SECOND)
    run = runner(process_pool)
    run("noop")
    first = helper_of(process_pool)
    os.kill(first, signal.SIGSTOP)
    waiting = begin(process_pool, a_run_spec("noop"))
    assert not eventually(lambda: bool(waiting.ends), within=1.5)

    os.kill(first, signal.SIGCONT)

    assert waiting.end() == Returned(None)
    assert helper_of(process_pool) == first


def test_a_helper_that_is_slow_but_answers_goes_on(make_process_pool: MakeProcessPool, package: Package) -> None:
    source = "import os, time\nos.register_at_fork(before=lambda: time.sleep(1))\n"
    process_pool = make_process_pool(
        package(source + "from tests.features.isolation.hostile_tasks import looking"), answer_within=3 * SECOND
    )
    first = helper_of(process_pool)

    ends = [run.end() for run in [begin(process_pool, a_run_spec("parent")) for _ in range(5)]]

    assert ends == [Returned(first)] * 5


def test_a_helper_that_was_too_busy_does_not_start_the_function_afterwards(
    make_process_pool: MakeProcessPool, trace: Trace
) -> None:
    process_pool = make_process_pool(begin_within=SECOND, answer_within=LONG * SECOND)
    helper = helper_of(process_pool)
    os.kill(helper, signal.SIGSTOP)
    with pytest.raises(IsolationError, match="too busy"):
        runner(process_pool)("leaves_thread", trace=trace.path)

    os.kill(helper, signal.SIGCONT)

    assert sooner_or_later(process_pool, "noop") == Returned(None)
    assert not trace.is_told()


def test_a_helper_that_is_lost_each_time_is_missed_in_the_end(
    make_process_pool: MakeProcessPool, package: Package
) -> None:
    source = "import os\nos.register_at_fork(before=lambda: os._exit(0))"
    process_pool = make_process_pool(package(source), answer_within=LONG * SECOND)  # its end is seen, not its silence

    with pytest.raises(IsolationError, match="the helper process is gone"):
        runner(process_pool)("noop")


def test_a_closed_process_pool_runs_nothing(process_pool: ProcessPool) -> None:
    runner(process_pool)("noop")
    process_pool.close()
    process_pool.close()

    with pytest.raises(IsolationError, match="closed"):
        runner(process_pool)("noop")


def test_a_process_pool_that_never_ran_can_be_closed(process_pool: ProcessPool) -> None:
    process_pool.close()

    with pytest.raises(IsolationError, match="closed"):
        runner(process_pool)("noop")
