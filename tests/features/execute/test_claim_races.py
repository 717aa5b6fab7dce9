"""Executions that are beaten to it, or find what nobody can take: they go on, and they come to an end."""

from __future__ import annotations

import threading
import time
from datetime import datetime, timedelta
from typing import Any

import pytest
from bson import Decimal128

from tests.builders import add, document, lease, whole
from tests.claimers import a_claimer, numbers, the_caps
from tests.features.conftest import Bench
from tests.features.worker.at_work import Time
from tidemill.documents import decode
from tidemill.executor import execution
from tidemill.executor.claimer import CONTENDED_EXTRA_LOOKS, RETRIES_FIRST_EXTRA_LOOKS
from tidemill.executor.idle import compute_pause
from tidemill.executor.lifetime import Invocation
from tidemill.executor.timing import TIMING, Timing
from tidemill.settings import Settings
from tidemill.store import claims
from tidemill.store.connection import Tasks

pytestmark = pytest.mark.slow

SECOND = timedelta(seconds=1)


def beaten(monkeypatch: pytest.MonkeyPatch, tasks: Tasks, now: datetime, *, times: int) -> None:
    """Before each of the first stamps a rival takes the very same ids."""
    original, left = claims.take, [times]

    def take(mine: Tasks, ids: list[Any], **options: Any) -> claims.Claim:
        if left[0] > 0:
            left[0] -= 1
            original(tasks, ids, lease=lease(now, owner="rival"), now=now)
        return original(mine, ids, **options)

    monkeypatch.setattr(claims, "take", take)


def refuse_stamps_of(bench: Bench, note: int) -> None:
    """Let the server refuse to write to documents with this note."""
    bench.db.command("collMod", "tasks", validator={"note": {"$ne": note}})


@pytest.mark.parametrize("times", [1, 2, 5])
def test_an_execution_that_loses_its_first_races_goes_on(
    bench: Bench, now: datetime, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    add(bench.tasks, [document(now) for _ in range(500)])
    beaten(monkeypatch, bench.tasks, now, times=times)

    report = bench.execute()

    assert report["done"] + report["contended_ids"] == 500
    assert report["contended_ids"] > 16 * (times - 1)  # a skip to the end of the queue finds fewer than slots


@pytest.mark.parametrize("times", [1, CONTENDED_EXTRA_LOOKS])
def test_a_claim_that_lost_all_looks_elsewhere_at_once(
    tasks: Tasks, now: datetime, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    add(tasks, [document(now) for _ in range(600)])
    beaten(monkeypatch, tasks, now, times=times)
    claimer = a_claimer(tasks)

    claimed = claimer.claim(free=8, slots=8, now=now)

    assert (len(claimed.tasks), claimed.contended) == (8, False)


def test_a_claim_that_lost_all_everywhere_says_so(tasks: Tasks, now: datetime, monkeypatch: pytest.MonkeyPatch) -> None:
    add(tasks, [document(now) for _ in range(600)])
    beaten(monkeypatch, tasks, now, times=1 + CONTENDED_EXTRA_LOOKS)
    claimer = a_claimer(tasks)

    claimed = claimer.claim(free=8, slots=8, now=now)

    assert (claimed.tasks, claimed.contended) == ((), True)


def test_whoever_lingers_and_is_beaten_to_it_looks_again_soon(
    bench: Bench, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.settings = Settings(linger=SECOND / 5)
    add(bench.tasks, [document(now) for _ in range(2_000)])
    beaten(monkeypatch, bench.tasks, now, times=1 + CONTENDED_EXTRA_LOOKS)
    time_of_test, pauses = Time(bench.clock), list[float]()

    def pause(_: Invocation, seconds: float) -> None:
        pauses.append(seconds)
        time_of_test.pass_(seconds)  # no other time passes, however busy the machine is

    monkeypatch.setattr(Invocation, "pause", pause)

    assert bench.execute(source="wake", monotonic=time_of_test)["done"]
    assert pauses[0] <= TIMING.first_claim_pause_sec


def test_one_with_work_in_hand_that_is_beaten_to_more_asks_again_soon(
    bench: Bench, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_go = threading.Event()
    bench.task("slow")(lambda _payload, _ctx: let_go.wait(20))
    bench.task("first")(lambda _payload, _ctx: beaten(monkeypatch, bench.tasks, now, times=1 + CONTENDED_EXTRA_LOOKS))
    bench.task("last")(lambda _payload, _ctx: let_go.set())
    names = [("slow", 9), ("first", 8), *[("noop", 0)] * 400, ("last", -1)]
    add(bench.tasks, [document(now, name=name, priority=priority) for name, priority in names])
    asked: list[int] = []

    def pause(in_vain: int, *, timing: Timing, draw: float) -> float:
        asked.append(in_vain)
        return compute_pause(in_vain, timing=timing, draw=draw)

    monkeypatch.setattr(execution, "compute_pause", pause)

    assert bench.execute(concurrency=2)["done"]

    assert asked == [1]


def test_pauses_grow_to_their_limit_and_never_beyond() -> None:
    pauses = [compute_pause(in_vain, timing=TIMING, draw=0.999999) for in_vain in (1, 2, 3, 4, 5, 6, 2000)]

    assert pauses == pytest.approx([0.02, 0.04, 0.08, 0.16, 0.32, 0.5, 0.5], rel=1e-3)
    assert compute_pause(3, timing=TIMING, draw=0) == 0.04


def test_an_execution_that_loses_every_race_comes_to_an_end(
    bench: Bench, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    add(bench.tasks, [document(now) for _ in range(3_000)])
    beaten(monkeypatch, bench.tasks, now, times=1_000)

    report = bench.execute()

    assert (report["done"], report.backlog) == (0, False), "those that were faster are there already"


def test_a_lost_race_for_retries_starts_no_fresh_task_before_them(
    tasks: Tasks, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(tasks, [document(now, lane="retry", attempts=1, payload={"n": "retry"}) for _ in range(50)])
    add(tasks, [document(now, payload={"n": "fresh"}) for _ in range(50)])
    beaten(monkeypatch, tasks, now, times=1)

    claimer = a_claimer(tasks, selection="retries_first")

    assert numbers(claimer.claim(free=8, slots=8, now=now).tasks) == ["retry"] * 8


def test_while_others_are_quicker_with_the_retries_no_fresh_task_is_started(
    tasks: Tasks, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(tasks, [document(now, lane="retry", attempts=1) for _ in range(400)])
    add(tasks, [document(now) for _ in range(50)])
    beaten(
        monkeypatch, tasks, now, times=1 + RETRIES_FIRST_EXTRA_LOOKS
    )  # every look at the retries, and none at the fresh

    claimer = a_claimer(tasks, selection="retries_first")

    held = whole(claimer.claim(free=8, slots=8, now=now).tasks)

    assert [task.lane for task in held] == ["retry"] * 8


def test_a_task_that_changed_its_lane_since_it_was_read_is_not_taken(
    tasks: Tasks, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(tasks, [document(now), document(now, lane="retry", attempts=1)])
    original = claims.take

    def take(mine: Tasks, ids: list[Any], **options: Any) -> claims.Claim:
        tasks.update_many({"lane": "fresh"}, {"$set": {"lane": "retry"}})
        return original(mine, ids, **options)

    monkeypatch.setattr(claims, "take", take)
    held = a_claimer(tasks, selection="oldest_first").claim(free=2, slots=2, now=now).tasks

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
