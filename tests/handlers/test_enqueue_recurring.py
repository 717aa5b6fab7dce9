"""Recurring tasks: once for each time a schedule was to fire, whatever is delivered when."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database

from tests.at_once import at_once
from tests.builders import make_service, new_tasks
from tests.faults import enqueue_failing as failing
from tests.handlers.calls import sample
from tests.handlers.conftest import Deployed
from tidemill import DuplicateKeyError, InvalidRequestError, Queue, indexes
from tidemill.enqueue.documents import Accepted
from tidemill.enqueue.enqueue import EnqueueService
from tidemill.enqueue.rules import EnqueueRules
from tidemill.errors import RefusedError
from tidemill.requests.events import Occurrence
from tidemill.requests.tasks import NewTask
from tidemill.testing import FakeContext, Mongod

NOOP: dict[str, Any] = {"name": "noop", "payload": {}}
SCHEDULE = "arn:aws:scheduler:eu-central-1:123456789012:schedule/default/daily"
AT = "2026-07-01T06:00:00Z"


def event(at: Any = AT, *, schedule: Any = SCHEDULE, tasks: Any = (NOOP, NOOP)) -> dict[str, Any]:
    return {"tasks": list(tasks), "occurrence": {"schedule": schedule, "at": at}}


def test_a_time_is_enqueued_once_however_often_it_is_delivered(deployed: Deployed, db: Database[Any]) -> None:  # F32
    first = deployed.invoke("enqueue", event(), FakeContext())
    again = deployed.invoke("enqueue", event(), FakeContext())

    assert (first["is_new"], again["is_new"]) == (True, False)
    assert first["tasks"] == again["tasks"]
    assert db.tasks.count_documents({}) == 2


@pytest.mark.parametrize("became", ["done", "cancelled", "dead", "gone"])
def test_also_a_day_later_and_whatever_became_of_its_tasks(deployed: Deployed, db: Database[Any], became: str) -> None:
    told = deployed.invoke("enqueue", event())
    if became == "done":
        deployed.invoke("execute")
    elif became == "cancelled":
        for one in db.tasks.find():
            Queue(db).cancel(one["_id"])
    elif became == "dead":
        db.tasks.update_many({}, {"$set": {"status": "failed", "finished_at": datetime.now(UTC)}})
        deployed.invoke("archive")
    else:
        db.tasks.delete_many({})
    before = list(db.tasks.find())
    db.occurrences.update_many({}, {"$set": {"created_at": datetime.now(UTC) - timedelta(hours=30)}})

    assert deployed.invoke("enqueue", event()) == told | {"is_new": False}
    assert list(db.tasks.find()) == before


def test_other_times_and_other_schedules_are_others(deployed: Deployed, db: Database[Any]) -> None:  # F32
    for at in (AT, "2026-07-01T06:00:00.001Z", "2026-07-02T06:00:00Z"):
        for schedule in (SCHEDULE, f"{SCHEDULE}-2"):
            assert deployed.invoke("enqueue", event(at, schedule=schedule))["is_new"]

    assert db.tasks.count_documents({}) == 12


def test_one_instant_is_one_time_however_it_is_written(deployed: Deployed) -> None:
    assert deployed.invoke("enqueue", event("2026-07-01T08:00:00+02:00"))["is_new"]
    assert not deployed.invoke("enqueue", event("2026-07-01T06:00:00.000Z"))["is_new"]


def test_tasks_keep_their_order_by_their_ids(deployed: Deployed, db: Database[Any]) -> None:
    told = deployed.invoke("enqueue", event(tasks=[NOOP | {"payload": {"n": n}} for n in range(1000)]))

    in_order = [str(one["_id"]) for one in db.tasks.find().sort("_id", 1)]
    assert [one["id"] for one in told["tasks"]] == in_order
    assert [one["payload"]["n"] for one in db.tasks.find().sort("_id", 1)] == list(range(1000))


def test_where_the_tasks_cannot_be_stored_the_time_is_not_known(
    deployed: Deployed, db: Database[Any], client: MongoClient[Any]
) -> None:
    with failing(client, "insert", namespace=f"{db.name}.tasks", errorCode=13), pytest.raises(RefusedError):
        deployed.invoke("enqueue", event())
    assert (db.tasks.count_documents({}), db.occurrences.count_documents({})) == (0, 0)

    assert deployed.invoke("enqueue", event())["is_new"]
    assert db.tasks.count_documents({}) == 2


def test_a_delivery_of_a_known_time_is_not_judged_again(deployed: Deployed, db: Database[Any]) -> None:
    soon = datetime.now(UTC) + timedelta(minutes=1)
    first = deployed.invoke("enqueue", event(tasks=[NOOP | {"expires_at": soon.isoformat()}]))
    db.task_types.delete_one({"_id": "noop"})
    deployed.cool_down()

    late = event(tasks=[NOOP | {"expires_at": "2020-01-01T00:00:00Z"}])

    assert deployed.invoke("enqueue", late) == first | {"is_new": False}


def test_a_time_that_is_forgotten_while_a_task_of_it_lives_is_known(deployed: Deployed, db: Database[Any]) -> None:
    deployed.invoke("enqueue", event())
    db.occurrences.delete_many({})
    db.tasks.delete_one({})

    assert not deployed.invoke("enqueue", event())["is_new"]
    assert db.tasks.count_documents({}) == 1


def test_one_task_may_recur_without_a_list(deployed: Deployed, db: Database[Any]) -> None:
    single = NOOP | {"occurrence": {"schedule": SCHEDULE, "at": AT}}

    assert [deployed.invoke("enqueue", single)["is_new"] for _ in range(2)] == [True, False]
    assert db.tasks.count_documents({}) == 1


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"occurrence": None}, "occurrence"),
        ({"occurrence": {}}, "occurrence.schedule"),
        ({"occurrence": "daily"}, "occurrence"),
        ({"occurrence": {"schedule": SCHEDULE}}, "occurrence.at"),
        ({"occurrence": {"at": AT}}, "occurrence.schedule"),
        ({"occurrence": {"schedule": "", "at": AT}}, "occurrence.schedule"),
        ({"occurrence": {"schedule": "<aws.scheduler.schedule-arn>", "at": AT}}, "occurrence.schedule"),
        ({"occurrence": {"schedule": {"$gt": ""}, "at": AT}}, "occurrence.schedule"),
        ({"occurrence": {"schedule": SCHEDULE, "at": "<aws.scheduler.scheduled-time>"}}, "occurrence.at"),
        ({"occurrence": {"schedule": SCHEDULE, "at": "2026-07-01T06:00:00"}}, "occurrence.at"),
        ({"occurrence": {"schedule": SCHEDULE, "at": 1767225600}}, "occurrence.at"),
        ({"occurrence": {"schedule": SCHEDULE, "at": AT, "id": 1}}, "occurrence.id"),
        ({"tasks": [NOOP | {"idempotency_key": " k"}]}, "tasks.0.idempotency_key"),
        ({"tasks": [NOOP, NOOP | {"queue": ""}]}, "tasks.1.queue"),
        ({"tasks": [NOOP, NOOP | {"name": "missing"}]}, "tasks.1.name"),
        ({"tasks": [NOOP | {"expires_at": "2020-01-01T00:00:00Z"}]}, "tasks.0.expires_at"),
    ],
)
def test_without_an_occurrence_or_with_a_broken_one_nothing_is_enqueued(
    unchanged: Deployed, changes: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        unchanged.invoke("enqueue", event() | changes)

    assert field in [one.field for one in caught.value.problems]


def test_what_was_never_enqueued_is_no_known_occurrence(deployed: Deployed) -> None:
    with pytest.raises(InvalidRequestError):
        deployed.invoke("enqueue", event(tasks=[NOOP | {"name": "missing"}]))

    assert deployed.invoke("enqueue", event())["is_new"]


@pytest.mark.parametrize(
    "at", ["0001-01-01T00:00:00Z", "1969-12-31T23:59:59Z", "2106-02-07T06:28:16Z", "9999-12-31T23:59:59Z"]
)
def test_any_time_will_do(deployed: Deployed, at: str) -> None:
    assert deployed.invoke("enqueue", event(at))["is_new"]


def test_twenty_deliveries_at_once_enqueue_once(db: Database[Any]) -> None:  # F32
    assert delivered_at_once(db) == 1
    assert db.tasks.count_documents({}) == 2


def delivered_at_once(db: Database[Any]) -> int:
    occurrence = Occurrence(schedule=SCHEDULE, at=datetime(2026, 7, 1, 6, tzinfo=UTC))
    services = [make_service(db) for _ in range(20)]
    return sum(at_once(services, lambda service: occur(service, occurrence, new_tasks([NOOP, NOOP]))[0].is_new))


def occur(service: EnqueueService, occurrence: Occurrence, tasks: list[NewTask]) -> list[Accepted]:
    """Submit *tasks* as a delivery of *occurrence*."""
    return service.submit(tasks, rules=EnqueueRules(origin=occurrence))


@pytest.fixture
def lonely() -> Iterator[Database[Any]]:
    """A database of a standalone server, which has no transactions."""
    with Mongod(standalone=True) as mongod, MongoClient[dict[str, Any]](mongod.uri, tz_aware=True) as client:
        indexes.create(client["x"])
        yield client["x"]


def test_a_standalone_server_enqueues_once_too_and_completes_what_was_cut_short(lonely: Database[Any]) -> None:
    occurrence = Occurrence(schedule=SCHEDULE, at=datetime(2026, 7, 1, 6, tzinfo=UTC))
    service, wanted = make_service(lonely), new_tasks([NOOP, NOOP, NOOP])
    first = occur(service, occurrence, wanted)
    lonely.occurrences.delete_many({})  # as if it had been cut short after the second task
    lonely.tasks.delete_one({"_id": first[2].id})

    again, known = (occur(service, occurrence, wanted) for _ in range(2))

    assert (again[0].is_new, known[0].is_new) == (True, False)
    assert [one.id for one in again] == [one.id for one in first]
    assert lonely.tasks.count_documents({}) == 3
    lonely.tasks.delete_many({})
    lonely.occurrences.delete_many({})
    delivered_at_once(lonely)
    assert lonely.tasks.count_documents({}) == 2


KEYED = NOOP | {"idempotency_key": "report"}
DAYS = (AT, "2026-07-02T06:00:00Z", "2026-07-03T06:00:00Z")


def test_a_task_whose_key_is_held_is_that_task_and_the_time_is_done(deployed: Deployed, db: Database[Any]) -> None:
    told = [deployed.invoke("enqueue", event(day, tasks=[KEYED])) for day in DAYS]
    again = deployed.invoke("enqueue", event(DAYS[1], tasks=[KEYED]))

    [task] = db.tasks.find()
    assert (task["idempotency_key"], task["trace"]["source"]) == ("direct:report", "direct")
    assert {one["tasks"][0]["id"] for one in [*told, again]} == {str(task["_id"])}
    assert [one["is_new"] for one in [*told, again]] == [True, False, False, False]
    assert db.occurrences.count_documents({}) == 3


def test_a_key_that_is_free_again_is_taken_by_the_next_time_and_not_by_a_repeat(
    deployed: Deployed, db: Database[Any]
) -> None:
    [first, other] = [deployed.invoke("enqueue", event(day, tasks=[KEYED])) for day in DAYS[:2]]
    [task] = db.tasks.find()
    Queue(db).cancel(task["_id"])

    assert [deployed.invoke("enqueue", event(day, tasks=[KEYED])) for day in DAYS[:2]] == [
        first | {"is_new": False},
        other,
    ]
    assert deployed.invoke("enqueue", event(DAYS[2], tasks=[KEYED]))["is_new"]
    assert db.tasks.count_documents({"status": "pending"}) == 1


def test_the_key_of_an_occurrence_is_the_key_of_any_direct_task(deployed: Deployed, db: Database[Any]) -> None:
    sent = deployed.invoke("enqueue", KEYED)

    told = deployed.invoke("enqueue", event(tasks=[NOOP | {"payload": {"n": 1}}, KEYED]))

    assert told["is_new"]
    assert told["tasks"][1]["id"] == sent["id"]
    assert db.tasks.count_documents({}) == 2
    assert deployed.post(NOOP, key="report").status == 202  # a caller over HTTP has keys of its own


def test_two_tasks_of_one_time_with_one_key_are_one(deployed: Deployed, db: Database[Any]) -> None:
    told = deployed.invoke("enqueue", event(tasks=[KEYED, KEYED]))

    assert told["tasks"][0] == told["tasks"][1]
    assert deployed.invoke("enqueue", event(tasks=[KEYED, KEYED])) == told | {"is_new": False}
    assert db.tasks.count_documents({}) == 1


@pytest.mark.parametrize("place", [0, 1])
def test_a_key_of_another_request_is_refused_and_nothing_is_stored(
    deployed: Deployed, db: Database[Any], place: int
) -> None:
    deployed.invoke("enqueue", KEYED | {"payload": {"n": 1}})
    tasks = [KEYED, NOOP] if place == 0 else [NOOP, KEYED]

    with pytest.raises(DuplicateKeyError) as caught:
        deployed.invoke("enqueue", event(tasks=tasks))

    assert [one.field for one in caught.value.problems] == [f"tasks.{place}.idempotency_key"]
    assert (db.tasks.count_documents({}), db.occurrences.count_documents({})) == (1, 0)


def test_twenty_times_at_once_with_one_key_are_one_task(db: Database[Any]) -> None:
    assert times_at_once(db) == 1


def times_at_once(db: Database[Any]) -> int:
    times = [Occurrence(schedule=SCHEDULE, at=datetime(2026, 7, day, 6, tzinfo=UTC)) for day in range(1, 21)]
    services = {one: make_service(db) for one in times}
    told = at_once(times, lambda one: occur(services[one], one, new_tasks([NOOP, KEYED])))
    assert db.tasks.count_documents({"idempotency_key": "report"}) == 1
    assert db.tasks.count_documents({}) == 21
    assert len({tasks[1].id for tasks in told}) == 1
    assert db.occurrences.count_documents({}) == 20
    return sum(tasks[1].is_new for tasks in told)


def test_a_standalone_server_takes_keys_beside_a_time_too(lonely: Database[Any]) -> None:
    times = [Occurrence(schedule=SCHEDULE, at=datetime(2026, 7, day, 6, tzinfo=UTC)) for day in (1, 2)]
    service, wanted = make_service(lonely), new_tasks([NOOP, KEYED, NOOP])

    [first, other, again] = [occur(service, one, wanted) for one in (*times, times[1])]

    assert [one.is_new for one in first + other + again] == [True, True, True, True, False, True, False, False, False]
    assert {tasks[1].id for tasks in (first, other, again)} == {first[1].id}
    assert [one.id for one in again] == [one.id for one in other]
    lonely.occurrences.delete_one({"_id.at": times[1].at})  # as if it had been cut short after the first task
    lonely.tasks.delete_one({"_id": other[2].id})
    assert [one.is_new for one in occur(service, times[1], wanted)] == [True, False, True]
    with pytest.raises(DuplicateKeyError):
        occur(
            service,
            Occurrence(schedule=SCHEDULE, at=datetime(2026, 7, 3, tzinfo=UTC)),
            new_tasks([NOOP, KEYED | {"priority": 1}]),
        )
    assert lonely.tasks.count_documents({}) == 5
    lonely.tasks.delete_many({})
    lonely.occurrences.delete_many({})
    times_at_once(lonely)


def test_an_occurrence_is_forgotten_fifteen_days_after_it_was_enqueued(db: Database[Any]) -> None:
    [kept] = [one for one in db.occurrences.list_indexes() if one["name"] == indexes.RETENTION]

    assert (dict(kept["key"]), kept["expireAfterSeconds"]) == ({"created_at": 1}, 15 * 86400)
    # As an earlier release made it: two days.
    change = {"name": indexes.RETENTION, "expireAfterSeconds": 48 * 3600}
    db.command("collMod", "occurrences", index=change)
    indexes.create(db)
    [kept] = [one for one in db.occurrences.list_indexes() if one["name"] == indexes.RETENTION]
    assert kept["expireAfterSeconds"] == 15 * 86400


def test_the_sample_event_enqueues_once(deployed: Deployed, db: Database[Any]) -> None:
    for _ in range(2):
        deployed.invoke("enqueue", sample("enqueue_recurring"))

    assert [one["trace"]["source"] for one in db.tasks.find()] == ["direct"]
