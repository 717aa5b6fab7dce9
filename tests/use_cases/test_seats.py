"""An invocation takes a seat or leaves, and whoever leaves sees to it that somebody comes, but never for ever."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import pytest
from pymongo import MongoClient

from tests.builders import add, document
from tests.commands import Commands
from tests.faults import failing
from tests.use_cases.conftest import Bench
from tests.use_cases.fleet import Fleet
from tidemill import MissingIndexError, Retry, UnavailableError
from tidemill.control import Holder, Seats, change_queue
from tidemill.executor import Order, Report
from tidemill.executor.attendance import attend, is_succeeded, shortage
from tidemill.policies import QueueOptions
from tidemill.reclaim import NAMES
from tidemill.settings import Settings
from tidemill.store import Tasks, open_tasks
from tidemill.testing import Mongod

SECOND = timedelta(seconds=1)
SHORT = Settings(task_timeout=SECOND, max_task_timeout=SECOND, margin=SECOND / 2, linger=timedelta(0))
OTHER = Holder(owner="other", execution="other-1")


@pytest.fixture
def fleet(bench: Bench) -> Fleet:
    return Fleet(bench=bench)


@pytest.fixture
def listened(mongod: Mongod, bench: Bench) -> Iterator[tuple[Tasks, Commands]]:
    commands = Commands()
    with MongoClient[dict[str, Any]](mongod.uri, tz_aware=True, event_listeners=[commands]) as client:
        yield open_tasks(client[bench.db.name]), commands


def sit(fleet: Fleet, *, holder: Holder = OTHER) -> None:
    """Have somebody else sit."""
    now = fleet.bench.clock.now()
    assert fleet.seats.take(holder, until=now + timedelta(minutes=2), now=now)


def knock(fleet: Fleet) -> None:
    """Have somebody come and find no seat."""
    now = fleet.bench.clock.now()
    assert not Seats(fleet.bench.db, limit=0).take(
        Holder(owner="late", execution="late-1"), until=now + timedelta(minutes=2), now=now
    )


def holds(bench: Bench) -> list[dict[str, Any]]:
    document = bench.db["control"].find_one({"_id": "seats"})
    assert document is not None
    found: list[dict[str, Any]] = document["holds"]
    return found


# Sitting and leaving


def test_without_a_seat_nothing_is_looked_for(fleet: Fleet, now: datetime, listened: tuple[Tasks, Commands]) -> None:
    tasks, commands = listened
    add(fleet.bench.tasks, [document(now)])
    sit(fleet)

    report = fleet.come(tasks=tasks)

    assert report.as_dict() == {"skipped": "seats"} | Report().as_dict()
    assert commands.names == ["findAndModify"]
    assert (fleet.bench.ran, fleet.summoned) == ([], 0)


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

    assert turned_away == ["seats"] * 17
    assert ([one["done"] for one in reports], most[0]) == ([1, 1, 1], 3)
    assert holds(fleet.bench) == []
    assert fleet.summoned == 1  # for the seventeen together


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

    class SlowSeats(Seats):
        def take(self, *args: Any, **when: Any) -> bool:
            clock[0] += 7
            return super().take(*args, **when)

    attend(runtime, Order(owner="A", remaining=100 * SECOND), seats=SlowSeats(fleet.bench.db, limit=1), summoner=None)

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
    assert fleet.summoned == 0


def test_who_was_turned_away_is_let_in_even_where_the_execution_breaks_off(fleet: Fleet, now: datetime) -> None:
    add(fleet.bench.tasks, [document(now)])
    fleet.bench.db["tasks"].drop_index("claim")
    knock(fleet)

    with pytest.raises(MissingIndexError):
        fleet.come()
    assert fleet.summoned == 1

    fleet.summoned = 0
    with pytest.raises(MissingIndexError):
        fleet.come()
    assert fleet.summoned == 0


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

    assert (report["done"], report["errors"], fleet.summoned) == (1, 1, 0)
    assert fleet.come().skipped == "seats"
    fleet.bench.clock.move(9 * SECOND)
    assert fleet.come().skipped is None


def test_an_invocation_that_is_not_told_whether_there_is_a_seat_does_nothing(
    fleet: Fleet, now: datetime, mine: Tasks
) -> None:
    fleet.bench.settings = SHORT
    add(fleet.bench.tasks, [document(now)])

    with failing(mine, "findAndModify", times=100_000, errorCode=6), pytest.raises(UnavailableError):
        fleet.come(tasks=mine, remaining=2 * SECOND)

    assert (fleet.bench.ran, fleet.summoned) == ([], 0)


def test_the_seat_of_a_dead_executor_is_free_once_its_death_is_known(fleet: Fleet) -> None:
    sit(fleet)
    assert fleet.come().skipped == "seats"

    report = fleet.bench.reclaim(dead_owner=OTHER.owner)

    assert report.items() >= dict.fromkeys(NAMES, 0).items()
    assert fleet.come().skipped is None


# Who comes after whom


def test_who_leaves_lets_one_in_for_all_who_were_turned_away(fleet: Fleet) -> None:
    for _ in range(3):
        knock(fleet)

    fleet.come()

    assert fleet.summoned == 1
    assert fleet.let_all_come() == 1


def test_who_leaves_undisturbed_summons_nobody(fleet: Fleet, now: datetime) -> None:
    add(fleet.bench.tasks, [document(now) for _ in range(9)])

    assert fleet.come()["done"] == 9
    assert fleet.summoned == 0


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

    assert (report.skipped, fleet.summoned) == ("time", 0)
    fleet.come()
    assert fleet.summoned == 1  # the knock was not taken for theirs


def test_a_paused_queue_with_due_tasks_keeps_nobody_coming(fleet: Fleet, now: datetime) -> None:
    add(fleet.bench.tasks, [document(now) for _ in range(50)])
    change_queue(fleet.bench.db, "default", QueueOptions(paused=True), now=now)
    knock(fleet)

    fleet.come()

    assert (fleet.summoned, fleet.let_all_come()) == (1, 1)


def test_a_failing_database_keeps_nobody_coming(fleet: Fleet, now: datetime, mine: Tasks) -> None:
    fleet.bench.settings = SHORT
    add(fleet.bench.tasks, [document(now) for _ in range(50)])
    knock(fleet)

    # No lost connection: the driver would look for its server for longer than there is to leave the seat.
    with failing(mine, "aggregate", times=100_000, errorCode=112):
        for summoned in (1, 0):
            fleet.summoned = 0
            with pytest.raises(UnavailableError):
                fleet.come(tasks=mine, remaining=2 * SECOND)
            assert fleet.summoned == summoned


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
    fleet.summoned += fleet.seats.leave(OTHER, now=now)

    assert fleet.let_all_come() == 1


def test_a_successor_that_cannot_be_summoned_is_no_error_of_the_execution(fleet: Fleet, now: datetime) -> None:
    add(fleet.bench.tasks, [document(now)])
    fleet.can_summon = False
    knock(fleet)

    report = fleet.come()

    assert (report["done"], report["errors"], fleet.summoned) == (1, 0, 0)


def report(*, backlog: bool, **counts: int) -> Report:
    made = Report()
    made.update(counts)
    made.backlog = backlog
    return made


@pytest.mark.parametrize("outcome", ["done", "retried", "failed", "cancelled", "quarantined"])
def test_who_got_something_done_and_left_work_is_succeeded(outcome: str) -> None:
    assert is_succeeded(report(backlog=True, claimed=9, **{outcome: 1}), knocked=False)
    assert not is_succeeded(report(backlog=False, claimed=9, **{outcome: 1}), knocked=False)


@pytest.mark.parametrize(
    "outcome", ["claimed", "released", "snoozed", "lost", "unknown", "stuck", "missed", "errors", "timed_out"]
)
def test_who_got_nothing_done_is_not(outcome: str) -> None:
    assert not is_succeeded(report(backlog=True, **{outcome: 9}), knocked=False)


def test_a_knock_is_answered_whatever_was_done() -> None:
    assert is_succeeded(report(backlog=False), knocked=True)
    assert is_succeeded(None, knocked=True)
    assert not is_succeeded(None, knocked=False)


@pytest.mark.parametrize(
    ("life", "says"),
    [
        (120, None), (116, None), (900, None),
        (114, "less than half of it is left for claiming"), (60, "less than half of it is left for claiming"),
        (59, "nothing can be claimed"), (0, "nothing can be claimed"),
    ],
)  # fmt: skip
def test_what_is_short_of_time_is_told_what_to_change(life: float, says: str | None) -> None:
    told = shortage(Settings(), life=life * SECOND)

    change = ": give the function a timeout of 120 s, or lower MAX_TASK_TIMEOUT_SEC"
    assert told == (None if says is None else says + change)
