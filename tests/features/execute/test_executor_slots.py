"""An invocation takes a seat or leaves, and whoever leaves sees to it that somebody comes, but never for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import pytest
from pymongo import MongoClient

from tests.builders import add, document
from tests.commands import CapturedUpdates, Commands
from tests.faults import failing
from tests.features.conftest import Bench
from tests.features.execute.fleet import Fleet
from tidemill import MissingIndexError, Retry, Snooze, UnavailableError
from tidemill.control.fleet import ExecutorSlots
from tidemill.control.queues import change_queue
from tidemill.control.semaphores import PermitOwner, acquire
from tidemill.errors import RefusedError
from tidemill.executor.context import ExecutionOptions, Report
from tidemill.executor.invocation import describe_short_timeout, needs_successor, run_invocation
from tidemill.model import QueueOptions
from tidemill.reclaim import NAMES
from tidemill.settings import Settings
from tidemill.store.connection import Tasks, open_tasks
from tidemill.testing import Mongod

pytestmark = pytest.mark.slow

SECOND = timedelta(seconds=1)
SHORT = Settings(task_timeout=SECOND, max_task_timeout=SECOND, margin=SECOND / 2, linger=timedelta(0))
OTHER = PermitOwner(owner="other", execution="other-1")


@pytest.fixture
def fleet(bench: Bench) -> Fleet:
    return Fleet(bench=bench)


@pytest.fixture
def listened(mongod: Mongod, bench: Bench) -> Iterator[tuple[Tasks, Commands]]:
    commands = Commands()
    with MongoClient[dict[str, Any]](mongod.uri, tz_aware=True, event_listeners=[commands]) as client:
        yield open_tasks(client[bench.db.name]), commands


@pytest.fixture
def captured(mongod: Mongod, bench: Bench) -> Iterator[tuple[Tasks, CapturedUpdates]]:
    listener = CapturedUpdates()
    with MongoClient[dict[str, Any]](
        mongod.uri, tz_aware=True, appname=bench.db.name, event_listeners=[listener]
    ) as client:
        yield open_tasks(client[bench.db.name]), listener


def sit(fleet: Fleet, *, holder: PermitOwner = OTHER) -> None:
    """Have somebody else sit."""
    now = fleet.bench.clock.now()
    assert fleet.executor_slots.acquire(holder, until=now + timedelta(minutes=2), now=now)


def knock(fleet: Fleet) -> None:
    """Have somebody come and find no seat."""
    now = fleet.bench.clock.now()
    assert not ExecutorSlots(fleet.bench.db, limit=0).acquire(
        PermitOwner(owner="late", execution="late-1"), until=now + timedelta(minutes=2), now=now
    )


def holds(bench: Bench) -> list[dict[str, Any]]:
    document = bench.db["control"].find_one({"_id": "executor_slots"})
    assert document is not None
    found: list[dict[str, Any]] = document["holds"]
    return found


# Sitting and leaving


def test_without_a_seat_nothing_is_looked_for(fleet: Fleet, now: datetime, listened: tuple[Tasks, Commands]) -> None:
    tasks, commands = listened
    add(fleet.bench.tasks, [document(now)])
    sit(fleet)

    report = fleet.come(tasks=tasks)

    assert report.as_dict() == {"skipped": "executor_slots"} | Report().as_dict()
    assert commands.names == ["findAndModify"]
    assert (fleet.bench.ran, fleet.launched) == ([], 0)


def test_no_more_work_at_once_than_there_are_seats(fleet: Fleet, now: datetime) -> None:
    fleet.max_executors = 3
    full, release = threading.Barrier(4), threading.Event()
    lock = threading.Lock()
    working: list[int] = [0]
    most: list[int] = [0]

    def counted(_payload: dict[str, Any], _ctx: Any) -> None:
        with lock:
            working[0] += 1
            most[0] = max(most[0], working[0])
        full.wait(30)
        assert release.wait(30)
        with lock:
            working[0] -= 1

    fleet.bench.task("counted")(counted)
    add(fleet.bench.tasks, [document(now, name="counted") for _ in range(3)])

    with ThreadPoolExecutor(20) as pool:
        first = [pool.submit(fleet.come, source="tick", concurrency=1, batch_size=1) for _ in range(3)]
        full.wait(30)
        late = [pool.submit(fleet.come, source="tick") for _ in range(17)]
        turned_away = [one.result(60).skipped for one in late]
        release.set()
        reports = [one.result(60) for one in first]

    assert turned_away == ["executor_slots"] * 17
    assert ([one["done"] for one in reports], most[0]) == ([1, 1, 1], 3)
    assert holds(fleet.bench) == []
    assert fleet.launched == 1  # for the seventeen together


def test_a_seat_ends_with_the_leases_of_its_invocation(fleet: Fleet, now: datetime) -> None:
    seen: list[dict[str, Any]] = []
    fleet.bench.task("looks")(lambda _payload, _ctx: seen.extend(holds(fleet.bench)))
    add(fleet.bench.tasks, [document(now, name="looks")])

    fleet.come(remaining=100 * SECOND)

    [seat] = seen
    assert 0 <= (now + 105 * SECOND - seat["until"]).total_seconds() < 5
    assert seat["owner"].startswith("owner-")


def test_what_taking_the_seat_took_is_not_there_for_tasks(fleet: Fleet, now: datetime) -> None:
    clock = [0.0]
    runtime = fleet.runtime(monotonic=lambda: clock[0])
    leases: list[datetime] = []
    fleet.bench.task("looks")(lambda _payload, _ctx: leases.append(_lease_end(fleet.bench)))
    add(fleet.bench.tasks, [document(now, name="looks")])

    class SlowSeats(ExecutorSlots):
        def acquire(self, *args: Any, **when: Any) -> bool:
            clock[0] += 7
            return super().acquire(*args, **when)

    run_invocation(
        runtime,
        ExecutionOptions(owner="A", remaining=100 * SECOND),
        executor_slots=SlowSeats(fleet.bench.db, limit=1),
        launcher=None,
    )

    assert leases == [now + (100 - 7 + 5) * SECOND]


def _lease_end(bench: Bench) -> datetime:
    [task] = bench.db["tasks"].find()
    ends: datetime = task["lease"]["expires_at"]
    return ends


def test_a_seat_is_left_where_the_execution_breaks_off(fleet: Fleet, now: datetime) -> None:
    add(fleet.bench.tasks, [document(now)])
    fleet.bench.db["tasks"].drop_index("claim")

    with pytest.raises(MissingIndexError):
        fleet.come()

    assert holds(fleet.bench) == []
    assert fleet.launched == 0


def test_who_was_turned_away_is_let_in_even_where_the_execution_breaks_off(fleet: Fleet, now: datetime) -> None:
    add(fleet.bench.tasks, [document(now)])
    fleet.bench.db["tasks"].drop_index("claim")
    knock(fleet)

    with pytest.raises(MissingIndexError):
        fleet.come()
    assert fleet.launched == 1

    fleet.launched = 0
    with pytest.raises(MissingIndexError):
        fleet.come()
    assert fleet.launched == 0


def test_a_seat_that_cannot_be_left_is_counted_and_ends_by_itself(fleet: Fleet, now: datetime, mine: Tasks) -> None:
    def cut(_payload: dict[str, Any], _ctx: Any) -> None:
        data = {"failCommands": ["findAndModify"], "appName": fleet.bench.db.name, "errorCode": 6}
        mine.database.client.admin.command("configureFailPoint", "failCommand", mode="alwaysOn", data=data)

    fleet.bench.settings = SHORT
    fleet.bench.task("cut")(cut)
    add(fleet.bench.tasks, [document(now, name="cut")])
    try:
        report = fleet.come(tasks=mine, remaining=3 * SECOND)
    finally:
        mine.database.client.admin.command("configureFailPoint", "failCommand", mode="off")

    assert (report["done"], report["errors"], fleet.launched) == (1, 1, 0)
    assert fleet.come().skipped == "executor_slots"
    fleet.bench.clock.move(9 * SECOND)
    assert fleet.come().skipped is None


def test_an_invocation_that_is_not_told_whether_there_is_a_seat_does_nothing(
    fleet: Fleet, now: datetime, mine: Tasks
) -> None:
    fleet.bench.settings = SHORT
    add(fleet.bench.tasks, [document(now)])

    with failing(mine, "findAndModify", times=100_000, errorCode=6), pytest.raises(UnavailableError):
        fleet.come(tasks=mine, remaining=2 * SECOND)

    assert (fleet.bench.ran, fleet.launched) == ([], 0)


def slot_is_free(fleet: Fleet) -> bool:
    return fleet.executor_slots.count_free(now=fleet.bench.clock.now()) == fleet.max_executors


def test_an_acquire_that_is_applied_after_its_invocation_gave_up_takes_no_seat(
    fleet: Fleet, captured: tuple[Tasks, CapturedUpdates]
) -> None:
    tasks, listener = captured
    with failing(tasks, "findAndModify", errorCode=50), pytest.raises(UnavailableError):
        fleet.come(tasks=tasks)
    [late, _cancelled] = listener.updates

    fleet.bench.db.command(late)

    assert slot_is_free(fleet)
    assert [hold["n"] for hold in holds(fleet.bench)] == [0]
    assert fleet.come().skipped is None


def test_a_seat_that_was_taken_without_an_answer_is_free_once_its_invocation_gave_up(fleet: Fleet, mine: Tasks) -> None:
    knock(fleet)
    unknown = {"code": 64, "errmsg": "waiting for replication timed out"}

    with failing(mine, "findAndModify", writeConcernError=unknown), pytest.raises(UnavailableError):
        fleet.come(tasks=mine)

    assert slot_is_free(fleet)
    assert fleet.launched == 0
    assert fleet.executor_slots.clear_waiter()  # who was refused is not forgotten


def test_an_invocation_fails_by_its_acquire_though_its_cancellation_is_refused(fleet: Fleet, mongod: Mongod) -> None:
    name, admin = fleet.bench.db.name, fleet.bench.db.client.admin
    refusal = {"failCommands": ["findAndModify"], "appName": name, "errorCode": 13}

    class RefuseNext(CapturedUpdates):
        """Has the server refuse what follows a failure."""

        def failed(self, event: Any) -> None:
            if event.command_name == "findAndModify":
                admin.command("configureFailPoint", "failCommand", mode={"times": 1}, data=refusal)

    listener = RefuseNext()
    with MongoClient[dict[str, Any]](mongod.uri, tz_aware=True, appname=name, event_listeners=[listener]) as client:
        tasks = open_tasks(client[name])
        with failing(tasks, "findAndModify", errorCode=50), pytest.raises(UnavailableError):
            fleet.come(tasks=tasks)

    assert len(listener.updates) == 2


def test_an_invocation_that_was_refused_by_mongodb_cancels_nothing(
    fleet: Fleet, captured: tuple[Tasks, CapturedUpdates]
) -> None:
    tasks, listener = captured
    with failing(tasks, "findAndModify", errorCode=13), pytest.raises(RefusedError):
        fleet.come(tasks=tasks)

    assert len(listener.updates) == 1


def test_an_invocation_without_a_seat_tries_to_leave_within_its_time(
    fleet: Fleet, captured: tuple[Tasks, CapturedUpdates]
) -> None:
    fleet.bench.settings = SHORT
    tasks, listener = captured
    with failing(tasks, "findAndModify", times=9, blockConnection=True, blockTimeMS=3000):
        began = time.monotonic()
        with pytest.raises(UnavailableError):
            fleet.come(tasks=tasks, remaining=2 * SECOND)
        took = time.monotonic() - began

    assert len(listener.updates) == 2
    assert took < 4


def test_the_seat_of_a_dead_executor_is_free_once_its_death_is_known(fleet: Fleet) -> None:
    sit(fleet)
    assert fleet.come().skipped == "executor_slots"

    report = fleet.bench.reclaim(dead_owner=OTHER.owner)

    assert report.items() >= dict.fromkeys(NAMES, 0).items()
    assert fleet.come().skipped is None


# Who comes after whom


def test_who_leaves_lets_one_in_for_all_who_were_turned_away(fleet: Fleet) -> None:
    for _ in range(3):
        knock(fleet)

    fleet.come()

    assert fleet.launched == 1
    assert fleet.let_all_come() == 1


def test_who_leaves_undisturbed_summons_nobody(fleet: Fleet, now: datetime) -> None:
    add(fleet.bench.tasks, [document(now) for _ in range(9)])

    assert fleet.come()["done"] == 9
    assert fleet.launched == 0


def test_a_backlog_is_worked_off_by_one_executor_after_the_other_without_a_tick(fleet: Fleet, now: datetime) -> None:
    fleet.bench.settings = SHORT
    waits = threading.Event()
    fleet.bench.task("slow")(lambda _payload, _ctx: waits.wait(0.05))
    add(fleet.bench.tasks, [document(now, name="slow") for _ in range(30)])

    fleet.come(source="tick", remaining=2 * SECOND, concurrency=1, batch_size=1)
    came = fleet.let_all_come(remaining=2 * SECOND, concurrency=1, batch_size=1)

    assert came >= 2
    assert fleet.bench.tasks.count_documents({"status": "done"}) == 30


@pytest.mark.parametrize("life", [0.0, 1.0, 1.4])
def test_those_who_have_no_time_to_claim_take_no_seat_and_summon_nobody(
    fleet: Fleet, now: datetime, life: float
) -> None:
    fleet.bench.settings = SHORT
    add(fleet.bench.tasks, [document(now)])
    knock(fleet)

    report = fleet.come(remaining=life * SECOND)

    assert (report.skipped, fleet.launched) == ("time", 0)
    fleet.come()
    assert fleet.launched == 1  # the mark of the refused executor stays


def test_a_paused_queue_with_due_tasks_keeps_nobody_coming(fleet: Fleet, now: datetime) -> None:
    add(fleet.bench.tasks, [document(now) for _ in range(50)])
    change_queue(fleet.bench.db, "default", QueueOptions(paused=True), now=now)
    knock(fleet)

    fleet.come()

    assert (fleet.launched, fleet.let_all_come()) == (1, 1)


def test_retries_that_get_no_permit_keep_nobody_coming(fleet: Fleet, now: datetime) -> None:
    add(fleet.bench.tasks, [document(now, lane="retry", attempts=1, max_retries=9) for _ in range(50)])
    change_queue(fleet.bench.db, "default", QueueOptions(max_in_flight_retries=1), now=now)
    permits: dict[str, Any] = {"held": 0, "wanted": 1, "limit": 1, "until": now + timedelta(minutes=9), "now": now}
    assert acquire(fleet.bench.db, "retries:default", OTHER, seq=1, **permits) == 1
    knock(fleet)

    first = fleet.come(source="tick")

    assert (first["claimed"], fleet.launched, fleet.let_all_come()) == (0, 1, 1)


@pytest.mark.parametrize("name", ["snoozes", "unknown"])
def test_tasks_that_come_back_by_themselves_keep_nobody_coming(fleet: Fleet, now: datetime, name: str) -> None:
    def snoozes(_payload: dict[str, Any], _ctx: Any) -> None:
        raise Snooze(now + timedelta(minutes=5))

    fleet.bench.task("snoozes")(snoozes)
    add(fleet.bench.tasks, [document(now, name=name) for _ in range(50)])
    knock(fleet)

    fleet.come(source="tick")

    assert (fleet.launched, fleet.let_all_come()) == (1, 1)


def test_each_launch_is_paid_for_by_a_task_that_ended_or_by_one_refusal(fleet: Fleet, now: datetime) -> None:
    """The chain of launches that Lambda's recursive loop detection is told to allow: this is what bounds it."""
    fleet.bench.settings = SHORT
    waits = threading.Event()
    fleet.bench.task("slow")(lambda _payload, _ctx: waits.wait(0.05))
    add(fleet.bench.tasks, [document(now, name="slow") for _ in range(40)])
    one_at_a_time: dict[str, Any] = {"remaining": 2 * SECOND, "concurrency": 1, "batch_size": 1}
    knock(fleet)

    fleet.come(source="tick", **one_at_a_time)
    came = fleet.let_all_come(**one_at_a_time)

    launched_another = [one for one in fleet.reports if needs_successor(one, has_waiter=False)]
    assert fleet.bench.tasks.count_documents({"status": "done"}) == 40
    assert sum(one["done"] for one in fleet.reports) == 40
    assert len(launched_another) <= came <= len(launched_another) + 1  # the refusal
    assert fleet.come(**one_at_a_time)["claimed"] == fleet.let_all_come() == 0


def test_a_failing_database_keeps_nobody_coming(fleet: Fleet, now: datetime, mine: Tasks) -> None:
    fleet.bench.settings = SHORT
    add(fleet.bench.tasks, [document(now) for _ in range(50)])
    knock(fleet)

    # No lost connection: the driver would look for its server for longer than there is to leave the seat.
    with failing(mine, "aggregate", times=100_000, errorCode=112):
        for launched in (1, 0):
            fleet.launched = 0
            with pytest.raises(UnavailableError):
                fleet.come(tasks=mine, remaining=2 * SECOND)
            assert fleet.launched == launched


def test_tasks_that_never_succeed_keep_executors_coming_no_longer_than_their_retries(
    fleet: Fleet, now: datetime
) -> None:
    fleet.bench.settings = SHORT

    def again(_payload: dict[str, Any], _ctx: Any) -> None:
        threading.Event().wait(0.05)
        raise Retry("again", after=timedelta(0))

    fleet.bench.task("again")(again)
    add(fleet.bench.tasks, [document(now, name="again", max_retries=9) for _ in range(3)])

    fleet.come(remaining=2 * SECOND, concurrency=1, batch_size=1)
    fleet.let_all_come(remaining=2 * SECOND, concurrency=1, batch_size=1)

    assert fleet.bench.tasks.count_documents({"status": "failed"}) == 3


def test_two_who_take_turns_at_being_turned_away_come_to_an_end(fleet: Fleet) -> None:
    """Each knock is one invocation that ends: who comes for it is one in its place, not one more."""
    sit(fleet)
    for _ in range(5):
        fleet.come(source="wake")
    now = fleet.bench.clock.now()
    fleet.launched += fleet.executor_slots.release(OTHER, now=now)

    assert fleet.let_all_come() == 1


def test_a_successor_that_cannot_be_summoned_is_no_error_of_the_execution(fleet: Fleet, now: datetime) -> None:
    add(fleet.bench.tasks, [document(now)])
    fleet.can_summon = False
    knock(fleet)

    report = fleet.come()

    assert (report["done"], report["errors"], fleet.launched) == (1, 0, 0)


def report(*, backlog: bool, **counts: int) -> Report:
    made = Report()
    made.update(counts)
    made.backlog = backlog
    return made


@pytest.mark.parametrize("outcome", ["done", "retried", "failed", "cancelled", "quarantined"])
def test_who_got_something_done_and_left_work_is_succeeded(outcome: str) -> None:
    assert needs_successor(report(backlog=True, claimed=9, **{outcome: 1}), has_waiter=False)
    assert not needs_successor(report(backlog=False, claimed=9, **{outcome: 1}), has_waiter=False)


@pytest.mark.parametrize(
    "outcome",
    ["claimed", "released", "snoozed", "lost", "unknown", "write_rejected", "contended_ids", "errors", "timed_out"],
)
def test_who_got_nothing_done_is_not(outcome: str) -> None:
    assert not needs_successor(report(backlog=True, **{outcome: 9}), has_waiter=False)


def test_a_knock_is_answered_whatever_was_done() -> None:
    assert needs_successor(report(backlog=False), has_waiter=True)
    assert needs_successor(None, has_waiter=True)
    assert not needs_successor(None, has_waiter=False)


@pytest.mark.parametrize(
    ("life", "says"),
    [
        (120, None), (116, None), (900, None),
        (114, "less than half of it is left for claiming"), (60, "less than half of it is left for claiming"),
        (59, "nothing can be claimed"), (0, "nothing can be claimed"),
    ],
)  # fmt: skip
def test_what_is_short_of_time_is_told_what_to_change(life: float, says: str | None) -> None:
    told = describe_short_timeout(Settings(), life=life * SECOND)

    change = ": give the function a timeout of 120 s, or lower MAX_TASK_TIMEOUT_SEC"
    assert told == (None if says is None else says + change)
