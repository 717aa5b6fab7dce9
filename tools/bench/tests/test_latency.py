"""The bench of pickup latency, as a toy: that it measures, and what a start takes that was woken."""

from __future__ import annotations

from tests.waiting import eventually
from tidemill.testing import Mongod
from tools.bench.children import Child
from tools.bench.latency import measure

OF_THE_POST = ["insert"]
OF_THE_SEAT = ["findAndModify"]
OF_THE_QUEUES = ["aggregate"]
OF_THE_CLAIM = ["find", "find", "update", "find"]


def test_a_task_is_picked_up_in_both_ways_and_a_woken_executor_asks_little_before_it_starts(mongod: Mongod) -> None:
    section = measure(mongod.uri, "toy")

    woken, _, found, _, tick, commands = section.figures
    assert woken.absolute.startswith("3 tasks")
    assert found.absolute.startswith("3 tasks")
    assert (tick.value, tick.unit) == (60, "s")
    assert commands.absolute.split(", ") == OF_THE_POST + OF_THE_SEAT + OF_THE_QUEUES + OF_THE_CLAIM
    assert commands.value == 7


def test_a_program_of_the_bench_ends_with_what_started_it() -> None:
    with Child("http.server", "0", variables={}) as child:
        assert child.is_alive

        child.let_go()

        assert eventually(lambda: not child.is_alive)
