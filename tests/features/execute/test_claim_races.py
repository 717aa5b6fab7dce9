"""Executions that are beaten to it, or find what nobody can take: they go on, and they come to an end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from bson import Decimal128

from tests.builders import add, document, whole
from tests.claimers import Rival, a_claimer, beaten, numbers, the_caps
from tests.faults import Beforehand, heard
from tests.features.conftest import Bench
from tests.features.worker.at_work import Time
from tidemill.documents import decode
from tidemill.executor.claimer import CONTENDED_EXTRA_LOOKS, RETRIES_FIRST_EXTRA_LOOKS
from tidemill.executor.idle import compute_pause
from tidemill.executor.lifetime import TIMING
from tidemill.settings import Settings
from tidemill.store.connection import Tasks, open_tasks

pytestmark = pytest.mark.slow

SECOND = timedelta(seconds=1)


def refuse_stamps_of(bench: Bench, note: int) -> None:
    """Let the server refuse to write to documents with this note."""
    bench.db.command("collMod", "tasks", validator={"note": {"$ne": note}})


def replace_sleep(monkeypatch: pytest.MonkeyPatch, pause: Callable[[float], object]) -> None:
    """Let this thread do *pause* in place of each sleep; the driver's threads sleep as before."""
    sleep, mine = time.sleep, threading.get_ident()

    def pause_or_sleep(seconds: float) -> None:
        (pause if threading.get_ident() == mine else sleep)(seconds)

    monkeypatch.setattr(time, "sleep", pause_or_sleep)


@pytest.mark.parametrize("times", [1, 2, 5])
def test_an_execution_that_loses_its_first_races_goes_on(bench: Bench, now: datetime, times: int) -> None:
    add(bench.tasks, [document(now) for _ in range(500)])
    with beaten(bench.tasks, now, times=times) as mine:
        report = bench.execute(tasks=mine)

    assert report["done"] + report["contended_ids"] == 500
    assert report["contended_ids"] > 16 * (times - 1)  # a skip to the end of the queue finds fewer than slots


@pytest.mark.parametrize("times", [1, CONTENDED_EXTRA_LOOKS])
def test_a_claim_that_lost_all_looks_elsewhere_at_once(tasks: Tasks, now: datetime, times: int) -> None:
    add(tasks, [document(now) for _ in range(600)])
    with beaten(tasks, now, times=times) as mine:
        claimed = a_claimer(mine).claim(free=8, slots=8, now=now)

    assert (len(claimed.tasks), claimed.contended) == (8, False)


def test_a_claim_that_lost_all_everywhere_says_so(tasks: Tasks, now: datetime) -> None:
    add(tasks, [document(now) for _ in range(600)])
    with beaten(tasks, now, times=1 + CONTENDED_EXTRA_LOOKS) as mine:
        claimed = a_claimer(mine).claim(free=8, slots=8, now=now)

    assert (claimed.tasks, claimed.contended) == ((), True)


def test_whoever_lingers_and_is_beaten_to_it_looks_again_soon(
    bench: Bench, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.settings = Settings(linger=SECOND / 5)
    add(bench.tasks, [document(now) for _ in range(2_000)])
    time_of_test, pauses = Time(bench.clock), list[float]()

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        time_of_test.pass_(seconds)  # no other time passes, however busy the machine is

    replace_sleep(monkeypatch, pause)
    with beaten(bench.tasks, now, times=1 + CONTENDED_EXTRA_LOOKS) as mine:
        assert bench.execute(tasks=mine, source="wake", monotonic=time_of_test)["done"]
    assert pauses[0] <= TIMING.first_claim_pause_sec


def test_one_with_work_in_hand_that_is_beaten_to_more_asks_again_soon(bench: Bench, now: datetime) -> None:
    let_go, was_let_go = threading.Event(), list[bool]()
    rival = Rival(bench.tasks, now, times=0)

    @bench.task("first")
    def first(_payload: dict[str, Any], _ctx: Any) -> None:
        rival.times = 1 + CONTENDED_EXTRA_LOOKS

    bench.task("slow")(lambda _payload, _ctx: was_let_go.append(let_go.wait(20)))
    bench.task("last")(lambda _payload, _ctx: let_go.set())
    names = [("slow", 9), ("first", 8), *[("noop", 0)] * 400, ("last", -1)]
    add(bench.tasks, [document(now, name=name, priority=priority) for name, priority in names])

    with heard(bench.db, rival) as db:
        assert bench.execute(tasks=open_tasks(db), concurrency=2)["contended_ids"]

    assert (rival.times, was_let_go) == (0, [True])


def test_pauses_grow_to_their_limit_and_never_beyond() -> None:
    pauses = [compute_pause(in_vain, timing=TIMING, draw=0.999999) for in_vain in (1, 2, 3, 4, 5, 6, 2000)]

    assert pauses == pytest.approx([0.02, 0.04, 0.08, 0.16, 0.32, 0.5, 0.5], rel=1e-3)
    assert compute_pause(3, timing=TIMING, draw=0) == 0.04


def test_an_execution_that_loses_every_race_comes_to_an_end(
    bench: Bench, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_sleep(monkeypatch, lambda _: None)
    add(bench.tasks, [document(now) for _ in range(3_000)])

    with beaten(bench.tasks, now, times=1_000) as mine:
        report = bench.execute(tasks=mine)

    assert (report["done"], report.backlog) == (0, False), "those that were faster are there already"


def test_a_lost_race_for_retries_starts_no_fresh_task_before_them(tasks: Tasks, now: datetime) -> None:
    add(tasks, [document(now, lane="retry", attempts=1, payload={"n": "retry"}) for _ in range(50)])
    add(tasks, [document(now, payload={"n": "fresh"}) for _ in range(50)])

    with beaten(tasks, now, times=1) as mine:
        held = a_claimer(mine, selection="retries_first").claim(free=8, slots=8, now=now).tasks

    assert numbers(held) == ["retry"] * 8


def test_while_others_are_quicker_with_the_retries_no_fresh_task_is_started(tasks: Tasks, now: datetime) -> None:
    add(tasks, [document(now, lane="retry", attempts=1) for _ in range(400)])
    add(tasks, [document(now) for _ in range(50)])
    looks_at_retries = 1 + RETRIES_FIRST_EXTRA_LOOKS  # and none at the fresh

    with beaten(tasks, now, times=looks_at_retries) as mine:
        held = whole(a_claimer(mine, selection="retries_first").claim(free=8, slots=8, now=now).tasks)

    assert [task.lane for task in held] == ["retry"] * 8


def test_a_task_that_changed_its_lane_since_it_was_read_is_not_taken(tasks: Tasks, now: datetime) -> None:
    add(tasks, [document(now), document(now, lane="retry", attempts=1)])
    change = Beforehand("update", lambda: tasks.update_many({"lane": "fresh"}, {"$set": {"lane": "retry"}}))
    with heard(tasks.database, change) as db:
        held = a_claimer(open_tasks(db), selection="oldest_first").claim(free=2, slots=2, now=now).tasks

    assert len(held) == 1


@pytest.mark.parametrize("crashes", [0.5, Decimal128("1"), [1], "often"])
def test_what_was_written_into_crashes_by_hand_makes_a_suspect_and_keeps_nobody_waiting(
    bench: Bench, now: datetime, crashes: object
) -> None:
    add(bench.tasks, [document(now - SECOND, crashes=crashes) for _ in range(16)])
    add(bench.tasks, [document(now) for _ in range(20)])

    assert bench.execute()["done"] == 36
    assert {decode(raw)["crashes"] for raw in bench.tasks.find()} == {0}


@pytest.mark.parametrize("selection", ["weighted", "retries_first", "oldest_first"])
def test_what_cannot_be_stamped_at_the_head_keeps_nobody_waiting_behind_a_single_slot(
    bench: Bench, now: datetime, selection: str
) -> None:
    add(bench.tasks, [document(now - SECOND, note=3, lane="retry", attempts=1)])
    add(bench.tasks, [document(now, lane="retry", attempts=1) for _ in range(12)])
    refuse_stamps_of(bench, 3)

    assert bench.execute(concurrency=1, selection=selection)["done"] == 12


def test_a_lease_ends_with_the_invocation_however_slow_the_claim_was(bench: Bench, now: datetime) -> None:
    ends = []

    @bench.task("look")
    def look(_payload: dict[str, Any], ctx: Any) -> None:
        [raw] = bench.tasks.find({"_id": ctx.task_id})
        ends.append(decode(raw)["lease"]["expires_at"])

    at = [1000.0]

    def slow() -> float:  # every look at the clock takes a while
        at[0] += 0.05
        bench.clock.at = now + timedelta(seconds=round(at[0] - 1000.0, 3))
        return at[0]

    add(bench.tasks, [document(now, name="look", queue=queue) for queue in "abc"])
    bench.execute(monotonic=slow)

    assert len(ends) == 3
    assert min(ends) >= now + timedelta(seconds=120)


def test_what_was_contested_an_earlier_time_keeps_no_fresh_task_waiting(tasks: Tasks, now: datetime) -> None:
    add(tasks, [document(now, lane="retry", attempts=1) for _ in range(9)])
    add(tasks, [document(now) for _ in range(4)])
    caps = the_caps(tasks)
    claimer = a_claimer(tasks, caps=caps, selection="retries_first", max_in_flight_retries=4)
    first = whole(claimer.claim(free=4, slots=8, now=now).tasks)
    caps.reserve("default", limit=4, now=now).grant(1)  # one that was denied: the retries are left alone for a moment

    second = whole(claimer.claim(free=4, slots=8, in_hand=first, now=now).tasks)

    assert [task.lane for task in (*first, *second)] == ["retry"] * 4 + ["fresh"] * 4
