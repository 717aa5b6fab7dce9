"""In one call: why a task is not running, from all that is in the database."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from bson import ObjectId
from pymongo import MongoClient
from pymongo.database import Database

from tests.builders import add, claim_one, document
from tests.commands import Commands
from tests.faults import Afterwards, heard
from tests.features.conftest import Bench
from tests.features.execute.fleet import Fleet
from tests.features.worker.at_work import AtWork
from tests.fixtures import ManualClock
from tidemill import Queue
from tidemill.control.declarer import declare_types
from tidemill.control.fleet import ExecutorSlots, Subscription, load_fleet_status
from tidemill.control.queues import change_queue
from tidemill.control.semaphores import PermitOwner, acquire
from tidemill.dead_letters.archive import move_failed
from tidemill.errors import NotDelayedError, TaskNotFoundError
from tidemill.model import LANES, SELECTIONS, Lane, Malformed, QueueOptions, Selection, Task, TaskId
from tidemill.registry import Registry
from tidemill.store import counts as store_counts
from tidemill.store import tasks
from tidemill.store.connection import Tasks
from tidemill.testing import Mongod

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)


@pytest.fixture
def queue(bench: Bench) -> Queue:
    return Queue(bench.db, clock=bench.clock)


@pytest.fixture
def attended(bench: Bench) -> None:
    attend(bench)


def attend(bench: Bench) -> None:
    """See to it that an executor is at work, and has registered its functions."""
    sit(bench.db, bench.clock.now())
    declare_types(bench.db, bench.registry, package="tasks", release="1", now=bench.clock.now())


def sit(db: Database[Any], now: datetime, *, limit: int = 5) -> None:
    assert ExecutorSlots(db, limit=limit).acquire(PermitOwner(owner="A", execution="A-1"), until=now + HOUR, now=now)


def codes(queue: Queue, task_id: TaskId) -> list[str]:
    return [one.code for one in queue.explain(task_id).reasons]


# Pending


def test_in_an_empty_deployment_nobody_ever_came(queue: Queue, bench: Bench, now: datetime) -> None:
    [task_id] = add(bench.tasks, [document(now)])

    explanation = queue.explain(task_id)

    assert (explanation.task_id, explanation.status, explanation.is_dead_letter) == (task_id, "pending", False)
    assert [one.code for one in explanation.reasons] == ["no_tick"]


@pytest.mark.usefixtures("attended")
def test_each_is_behind_those_that_are_claimed_before_it(queue: Queue, bench: Bench, now: datetime) -> None:
    fields: list[dict[str, Any]] = [
        {"priority": 5}, {"due_at": now - SECOND}, {}, {}, {"priority": -1, "due_at": now - HOUR},
    ]  # fmt: skip
    in_order = add(bench.tasks, [document(now, **one) for one in fields])
    add(bench.tasks, [document(now, queue="eu", priority=9), document(now, lane="retry", priority=9)])
    add(bench.tasks, [document(now, due_at=now + SECOND, priority=9), document(now, status="done", priority=9)])

    explained = [queue.explain(one).reasons[0] for one in in_order]

    assert [one.code for one in explained] == ["next", "behind", "behind", "behind", "behind"]
    assert [one.message.split()[3] for one in explained[1:]] == ["1", "2", "3", "4"]


@pytest.mark.usefixtures("attended")
def test_what_a_queue_chooses_is_told(queue: Queue, bench: Bench, now: datetime) -> None:
    change_queue(bench.db, "default", QueueOptions(paused=True, max_in_flight_retries=2), now=now)
    holder = PermitOwner(owner="B", execution="B-1")
    acquire(bench.db, "retries:default", holder, seq=1, held=0, wanted=2, limit=2, until=now + HOUR, now=now)
    [fresh, retry] = add(bench.tasks, [document(now), document(now, lane="retry", attempts=1)])

    assert codes(queue, fresh) == ["paused"]
    assert codes(queue, retry) == ["paused", "retry_cap"]
    assert "2 by B until" in queue.explain(retry).reasons[1].message


@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.usefixtures("attended")
def test_a_pause_of_retries_is_told_of_a_retry_and_stands_before_no_fresh_task(
    queue: Queue, bench: Bench, now: datetime, selection: Selection
) -> None:
    # S10
    change_queue(bench.db, "default", QueueOptions(selection=selection, max_in_flight_retries=0), now=now)
    [fresh, retry] = add(bench.tasks, [document(now), document(now - HOUR, lane="retry", attempts=1)])

    assert codes(queue, fresh) == ["next"]
    assert codes(queue, retry) == ["retries_paused"]


@pytest.mark.parametrize(
    ("options", "fresh", "retry"),
    [
        (QueueOptions(retry_share=0.5), "next", "next"),
        (QueueOptions(selection="retries_first"), "behind", "next"),
        (QueueOptions(selection="oldest_first"), "behind", "behind"),
        (QueueOptions(retry_share=0), "next", "retry_share"),
        (QueueOptions(retry_share=1), "retry_share", "next"),
    ],
)
@pytest.mark.parametrize("lane", LANES)
def test_what_is_said_to_be_next_is_and_nothing_else(
    bench: Bench, lane: Lane, options: QueueOptions, fresh: str, retry: str
) -> None:
    """One of a lane, and fifty of the other that have been due for longer."""
    now, started = bench.clock.now(), list[int]()
    bench.task("mine")(lambda _payload, _ctx: started.append(len(bench.ran)))
    attend(bench)
    change_queue(bench.db, "default", options, now=now)
    [other] = set(LANES) - {lane}
    add(bench.tasks, [document(now - SECOND, lane=other) for _ in range(50)])
    [task_id] = add(bench.tasks, [document(now, lane=lane, name="mine")])

    [told] = codes(Queue(bench.db, clock=bench.clock), task_id)
    bench.execute(concurrency=2, batch_size=2)

    assert told == {"fresh": fresh, "retry": retry}[lane]
    assert (started[0] < 25) == (told == "next")


@pytest.mark.usefixtures("attended")
def test_a_function_that_no_executor_has_is_told(queue: Queue, bench: Bench, now: datetime) -> None:
    [task_id] = add(bench.tasks, [document(now, name="gone")])

    assert codes(queue, task_id) == ["unknown_task"]


def test_seats_that_are_all_taken_are_told(queue: Queue, bench: Bench, now: datetime) -> None:
    [task_id] = add(bench.tasks, [document(now)])
    sit(bench.db, now, limit=1)
    declare_types(bench.db, bench.registry, package="tasks", release="1", now=now)

    assert codes(queue, task_id) == ["executor_slots"]


def test_between_two_ticks_nobody_is_at_work_and_after_many_somebody_should_look(bench: Bench, now: datetime) -> None:
    fleet = Fleet(bench=bench)
    fleet.come(source="tick")
    declare_types(bench.db, bench.registry, package="tasks", release="1", now=now)
    [task_id] = add(bench.tasks, [document(now)])
    queue = Queue(bench.db, clock=bench.clock)

    assert codes(queue, task_id) == ["no_executor"]
    bench.clock.move(HOUR)
    assert codes(queue, task_id) == ["no_tick"]


def test_of_those_that_go_first_only_the_due_ones_do(bench: Bench, now: datetime) -> None:
    add(bench.tasks, [document(now, lane="retry", due_at=now + n * SECOND, priority=n) for n in (-1, 0, 1, 2)])
    [due, _, early] = add(bench.tasks, [document(now, due_at=now + n * SECOND) for n in (-1, 1, 2)])
    expected = {due: {"fresh": 0, "retry": 2}, early: {"fresh": 1, "retry": 2}}

    for task_id, counts in expected.items():
        task = tasks.get(bench.tasks, task_id)
        assert isinstance(task, Task)
        assert store_counts.count_ahead(bench.tasks, task, now=now, in_order=("fresh",), first=("retry",)) == counts
        assert store_counts.count_ahead(bench.tasks, task, now=now, in_order=("fresh",)) == counts | {"retry": 0}


def test_a_lane_that_is_no_text_is_in_nobodys_way(queue: Queue, bench: Bench, now: datetime) -> None:
    attend(bench)
    [_, task_id] = add(bench.tasks, [document(now, lane=["fresh"], priority=1), document(now)])

    assert codes(queue, task_id) == ["next"]


def test_one_that_an_executor_without_its_function_put_off_is_told(queue: Queue, bench: Bench, now: datetime) -> None:
    [task_id] = add(bench.tasks, [document(now, name="gone")])
    earlier = Registry()
    earlier.task("gone")(lambda _payload: None)
    declare_types(bench.db, earlier, package="tasks", release="1", now=now)
    for passed in (SECOND, 100 * SECOND):
        bench.clock.move(passed)
        Fleet(bench=bench).come(source="tick")
        assert codes(queue, task_id) == ["not_due", "put_off"]


# Workers


def test_a_worker_is_seen_while_it_works_and_no_longer(queue: Queue, bench: Bench, now: datetime) -> None:
    change_queue(bench.db, "default", QueueOptions(paused=True), now=now)
    [task_id] = add(bench.tasks, [document(now)])
    declare_types(bench.db, bench.registry, package="tasks", release="1", now=now)

    with AtWork(bench) as at_work:
        assert at_work.until(lambda: codes(queue, task_id) == ["paused"])
        at_work.lives(100)
        assert codes(queue, task_id) == ["paused"]
        at_work.ended()

    assert codes(queue, task_id) == ["paused", "no_tick"]


def test_a_worker_of_another_queue_is_no_help(queue: Queue, bench: Bench, now: datetime) -> None:
    [task_id, other] = add(bench.tasks, [document(now), document(now, queue="eu", due_at=now + 9 * HOUR)])
    declare_types(bench.db, bench.registry, package="tasks", release="1", now=now)

    with AtWork(bench, queues=("eu",)) as at_work:
        assert at_work.until(lambda: codes(queue, other) == ["not_due"])
        assert codes(queue, task_id) == ["not_served"]
        assert "A serves queue eu" in queue.explain(task_id).reasons[0].message


@pytest.mark.parametrize("event", [{"queues": ["eu"]}, {"lanes": ("retry",)}])
def test_an_invocation_at_work_for_others_is_no_help(
    queue: Queue, bench: Bench, now: datetime, event: dict[str, Any]
) -> None:
    seen: list[str] = []
    [task_id] = add(bench.tasks, [document(now, queue="us", name="look")])
    bench.task("look")(lambda _payload, _ctx: seen.extend(codes(queue, task_id)))
    declare_types(bench.db, bench.registry, package="tasks", release="1", now=now)
    add(bench.tasks, [document(now, name="look", queue="eu", lane="retry", attempts=1)])

    Fleet(bench=bench, max_executors=2).come(source="tick", **event)

    assert seen == ["not_served"]


def test_an_invocation_says_what_it_serves_and_how(bench: Bench) -> None:
    bench.settings = replace(bench.settings, selection="oldest_first", retry_share=0.7)

    Fleet(bench=bench).come(source="tick", queues=["eu"], lanes=("retry",), selection="retries_first")

    assert load_fleet_status(bench.db, queue="eu", now=bench.clock.now()).last_request == Subscription(
        queues=("eu",), lanes=("retry",), asked="retries_first", selection="oldest_first", retry_share=0.7
    )


def test_an_invocation_is_known_by_its_seat_alone(bench: Bench) -> None:
    Fleet(bench=bench).come(source="tick")

    assert set(bench.db["control"].distinct("_id")) == {"executor_slots", "tidemill"}


def test_a_worker_says_that_it_is_there_no_more_often_than_it_extends_leases(mongod: Mongod, bench: Bench) -> None:
    commands = Commands()
    with MongoClient[dict[str, Any]](mongod.uri, tz_aware=True, event_listeners=[commands]) as client:
        mine = Bench(db=client[bench.db.name], clock=bench.clock)
        with AtWork(mine) as at_work:
            at_work.lives(100)
            at_work.ended()

    assert 4 <= commands.names.count("findAndModify") <= 6
    assert commands.names.count("update") == 1  # it leaves


def test_a_worker_that_cannot_say_so_works_all_the_same(bench: Bench, now: datetime, db: Database[Any]) -> None:
    db["control"].insert_one({"_id": "made"})
    db["control"].delete_one({"_id": "made"})
    db.command("collMod", "control", validator={"nobody": True})
    add(bench.tasks, [document(now) for _ in range(3)])

    with AtWork(bench) as at_work:
        assert at_work.until(lambda: len(bench.ran) == 3)
        report = at_work.ended()

    assert (report["done"], report["errors"]) == (3, 0)
    assert db["control"].count_documents({"_id": {"$ne": "tidemill"}}) == 0


# Whatever else became of it


def test_one_that_runs_says_by_whom(queue: Queue, bench: Bench, now: datetime) -> None:
    add(bench.tasks, [document(now)])
    held = claim_one(bench.tasks, now, owner="B")
    queue.cancel(held.id)

    running, asked = queue.explain(held.id).reasons

    assert (running.code, asked.code) == ("running", "cancel_asked")
    assert "B claimed it" in running.message
    bench.clock.move(HOUR)
    assert codes(queue, held.id)[0] == "lease_over"


@pytest.mark.parametrize("status", ["done", "cancelled", "failed"])
def test_one_that_has_ended_says_so(queue: Queue, bench: Bench, now: datetime, status: str) -> None:
    [task_id] = add(bench.tasks, [document(now, status=status, finished_at=now)])

    explanation = queue.explain(task_id)

    assert (explanation.status, explanation.is_dead_letter) == (status, False)
    assert [one.code for one in explanation.reasons] == ["ended"]


@pytest.mark.parametrize("task_id", [ObjectId("0" * 24), "by hand", 7])
def test_a_dead_letter_is_found_where_it_is(bench: Bench, dead: Tasks, now: datetime, task_id: TaskId) -> None:
    add(bench.tasks, [document(now, _id=task_id, status="failed", reason="exhausted", finished_at=now)])
    move_failed(bench.tasks, dead, clock=bench.clock, until=1e12)

    explanation = Queue(bench.db, clock=bench.clock).explain(task_id)

    assert (explanation.task_id, explanation.status, explanation.is_dead_letter) == (task_id, "failed", True)
    assert "exhausted" in explanation.reasons[0].message


def test_a_malformed_document_is_explained_too(queue: Queue, bench: Bench, now: datetime) -> None:
    [task_id] = add(bench.tasks, [document(now, attempts="many")])

    explanation = queue.explain(task_id)

    assert explanation.status == "malformed"
    assert "attempts is not what it has to be" in explanation.reasons[0].message


def test_a_task_that_comes_back_between_two_looks_is_found(bench: Bench, now: datetime) -> None:
    redriven = document(now, status="done")

    with heard(bench.db, Afterwards("find", lambda: add(bench.tasks, [redriven]))) as db:
        assert codes(Queue(db, clock=bench.clock), redriven["_id"]) == ["ended"]


def test_there_is_nothing_to_explain_about_no_task(queue: Queue) -> None:
    with pytest.raises(TaskNotFoundError):
        queue.explain(ObjectId())


# Retry now


def test_a_task_that_is_hurried_is_next(queue: Queue, bench: Bench, now: datetime) -> None:
    later = now + HOUR
    [task_id] = add(bench.tasks, [document(now, due_at=later, next_retry_at=later)])
    assert codes(queue, task_id)[0] == "not_due"

    hurried = queue.retry_now(task_id)

    assert isinstance(hurried, Task)
    assert (hurried.due_at, hurried.next_retry_at) == (now, None)
    assert "not_due" not in codes(queue, task_id)
    bench.execute()
    assert codes(queue, task_id) == ["ended"]


def test_a_malformed_document_is_hurried_as_it_is(queue: Queue, bench: Bench, now: datetime) -> None:
    [task_id] = add(bench.tasks, [document(now, due_at=now + HOUR, payload=7)])

    assert isinstance(queue.retry_now(task_id), Malformed)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({}, "is due already"),
        ({"status": "processing"}, "is processing"),
        ({"status": "done"}, "is done"),
        ({"status": "failed"}, "is failed"),
        ({"due_at": 5}, "is malformed"),
    ],
)
def test_where_there_is_nothing_to_hurry_it_says_why(
    queue: Queue, bench: Bench, now: datetime, fields: dict[str, Any], says: str
) -> None:
    [task_id] = add(bench.tasks, [document(now, **fields)])

    with pytest.raises(NotDelayedError, match=says):
        queue.retry_now(task_id)


def test_no_task_is_no_task_to_hurry(queue: Queue) -> None:
    with pytest.raises(TaskNotFoundError):
        queue.retry_now(ObjectId())


# Cost


@dataclass(frozen=True, kw_only=True)
class Listened:
    """A queue whose commands are heard."""

    queue: Queue
    commands: Commands


@pytest.fixture
def listened(mongod: Mongod, bench: Bench, clock: ManualClock) -> Iterator[Listened]:
    commands = Commands()
    with MongoClient[dict[str, Any]](mongod.uri, tz_aware=True, event_listeners=[commands]) as client:
        yield Listened(queue=Queue(client[bench.db.name], clock=clock), commands=commands)


@pytest.mark.parametrize("waiting", [1, 50])
def test_an_explanation_costs_five_commands_however_much_there_is(
    listened: Listened, bench: Bench, now: datetime, waiting: int
) -> None:
    add(bench.tasks, [document(now, queue=f"q{n % 9}", priority=n % 4) for n in range(waiting)])
    fields: list[dict[str, Any]] = [{}, {"due_at": now + HOUR}, {"name": "gone", "lane": "retry"}]
    for task_id in add(bench.tasks, [document(now, **one) for one in fields]):
        listened.commands.names.clear()
        listened.queue.explain(task_id)
        assert listened.commands.names == ["find", "find", "find", "find", "aggregate"]


def test_what_is_not_pending_costs_one_command(listened: Listened, bench: Bench, now: datetime) -> None:
    for task_id in add(bench.tasks, [document(now, status=one) for one in ("processing", "done", "failed")]):
        listened.commands.names.clear()
        listened.queue.explain(task_id)
        assert listened.commands.names == ["find"]


def test_what_is_there_is_found_by_indexes_and_never_counted_to_the_end(queue: Queue, bench: Bench) -> None:
    now = bench.clock.now()
    for _ in range(3):
        add(bench.tasks, [document(now - SECOND, priority=n % 5) for n in range(5_000)])
    add(bench.tasks, [document(now, due_at=now + HOUR, priority=9) for _ in range(1_000)])
    [task_id] = add(bench.tasks, [document(now, priority=-1)])
    bench.db.command("profile", 2)

    [_, behind] = queue.explain(task_id).reasons

    bench.db.command("profile", 0)
    done = list(
        bench.db["system.profile"].find({"op": {"$in": ["query", "command"]}, "ns": {"$not": {"$regex": "profile"}}})
    )
    assert "10000+ other due tasks" in behind.message
    assert [one["docsExamined"] for one in done if "aggregate" in one["command"]] == [0]
    assert sum(one["keysExamined"] for one in done) <= 10_020
    assert not [one for one in done if "COLLSCAN" in one.get("planSummary", "")]
