"""The handlers of reclaim and archive: what they take, refuse and report."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pymongo.database import Database

from tests.builders import document
from tests.handlers.calls import CALLER, app, request, sample
from tests.handlers.conftest import Deployed
from tests.handlers.test_enqueue_direct import SCHEDULED
from tests.handlers.test_enqueue_events import ALB, V2
from tidemill import InvalidRequestError, UnavailableError
from tidemill.dead_letters.archive import Report
from tidemill.reclaim import NAMES
from tidemill.store.counts import GAUGES
from tidemill.testing import FakeContext

EMPTY: dict[str, dict[str, Any]] = {
    "reclaim": dict.fromkeys(NAMES, 0) | {"missing_indexes": []},
    "archive": asdict(Report()),
}
IDLE = {"reclaim": EMPTY["reclaim"] | dict.fromkeys(GAUGES, 0), "archive": EMPTY["archive"]}
BOTH = tuple(EMPTY)
INTERRUPTED = 11601
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("function", BOTH)
@pytest.mark.parametrize("event", [None, {}])
def test_nothing_to_do_is_a_report_of_zeros(deployed: Deployed, function: str, event: Any) -> None:
    assert deployed.invoke(function, event) == IDLE[function]
    assert app(function).lambda_handler(event, None) == IDLE[function]


@pytest.mark.parametrize("function", BOTH)
@pytest.mark.parametrize("event", [[], "text", 7, {"key1": "v"}, {"batch_size": 5}, SCHEDULED, ALB])
def test_what_is_no_tick_is_refused(unchanged: Deployed, function: str, event: Any) -> None:  # F66
    with pytest.raises(InvalidRequestError):
        unchanged.invoke(function, event)


@pytest.mark.parametrize("function", BOTH)
@pytest.mark.parametrize("event", [request(body="{}"), V2 | {"requestContext": {"requestId": "r"}}])
def test_a_request_of_an_api_is_refused(unchanged: Deployed, function: str, event: Any) -> None:
    with pytest.raises(InvalidRequestError):
        unchanged.invoke(function, event)


@pytest.mark.parametrize(
    "change",
    [{"requestContext": None}, {"requestContext": {"requestId": ""}}, {"requestContext": {"requestId": {"$ne": 1}}}],
)
def test_a_report_of_a_death_without_a_name_is_refused(deployed: Deployed, db: Database[Any], change: Any) -> None:
    lease = {"token": "t", "owner": "o", "expires_at": datetime.now(UTC) + timedelta(minutes=1)}
    db.tasks.insert_one(document(LONG_AGO, status="processing", attempts=1, lease=lease))

    with pytest.raises(InvalidRequestError):
        deployed.invoke("reclaim", sample("execute_failed") | change)

    assert db.tasks.count_documents({"status": "processing"}) == 1


def test_a_second_report_of_a_death_takes_nothing_more(deployed: Deployed, db: Database[Any]) -> None:
    event = sample("execute_failed")
    owner = event["requestContext"]["requestId"]
    lease = {"token": "t", "owner": owner, "expires_at": datetime.now(UTC) + timedelta(minutes=1)}
    db.tasks.insert_one(document(LONG_AGO, status="processing", attempts=1, lease=lease))

    assert [deployed.invoke("reclaim", event)["reclaimed"] for _ in range(2)] == [1, 0]
    [task] = db.tasks.find()
    assert (task["attempts"], task["crashes"]) == (0, 1)


def test_a_death_is_not_lost_on_an_index_that_could_not_be_looked_for(deployed: Deployed, db: Database[Any]) -> None:
    event = sample("execute_failed")
    lease = {
        "token": "t",
        "owner": event["requestContext"]["requestId"],
        "expires_at": datetime.now(UTC) + timedelta(minutes=1),
    }
    db.tasks.insert_one(document(LONG_AGO, status="processing", attempts=1, lease=lease))
    data = {"failCommands": ["listIndexes"], "appName": "tidemill-reclaim", "errorCode": INTERRUPTED}
    db.client.admin.command("configureFailPoint", "failCommand", mode={"times": 1}, data=data)

    report = deployed.invoke("reclaim", event)

    assert report["reclaimed"] == 1
    assert report["missing_indexes"]


@pytest.mark.parametrize(
    ("declared", "wait"),
    [
        (None, 60),
        ({"strategy": "fixed", "base_sec": 90.0, "jitter": "none"}, 90),
        ({"strategy": "of a later release", "base_sec": 90.0}, 60),
    ],
)
def test_a_lost_task_waits_as_its_registration_says_else_as_the_deployment(
    deployed: Deployed, db: Database[Any], declared: Any, wait: float
) -> None:
    deployed.set(RETRY_POLICY='{"strategy": "fixed", "base_sec": 60, "jitter": "none"}')
    db.task_types.update_one({"_id": "noop"}, {"$set": {"backoff_policy": declared, "max_retries": None}})
    lease = {"token": "t", "owner": "o", "expires_at": LONG_AGO}
    db.tasks.insert_one(document(LONG_AGO, status="processing", attempts=1, crashes=1, lease=lease))

    deployed.invoke("reclaim")

    [task] = db.tasks.find()
    assert task["next_retry_at"] - task["updated_at"] == timedelta(seconds=wait)


def test_the_second_loss_of_a_task_is_a_failure_by_its_policy(deployed: Deployed, db: Database[Any]) -> None:
    lease = {"token": "t", "owner": "o", "expires_at": LONG_AGO}
    lost = {"status": "processing", "attempts": 1, "crashes": 1, "lease": lease}
    db.tasks.insert_many([document(LONG_AGO, **lost, max_retries=n) for n in (0, 5)])

    report = deployed.invoke("reclaim")

    assert (report["reclaimed"], report["failed"]) == (1, 1)
    assert {task["max_retries"]: task["status"] for task in db.tasks.find()} == {0: "failed", 5: "pending"}


def test_the_policy_of_the_registration_is_looked_up_without_task_code(deployed: Deployed, db: Database[Any]) -> None:
    db.task_types.update_one({"_id": "noop"}, {"$set": {"max_retries": 0}})
    lease = {"token": "t", "owner": "o", "expires_at": LONG_AGO}
    db.tasks.insert_one(document(LONG_AGO, status="processing", attempts=1, crashes=1, lease=lease))

    assert deployed.invoke("reclaim")["failed"] == 1


def test_a_document_of_the_users_own_shape_is_adopted_by_the_default_task(
    deployed: Deployed, db: Database[Any]
) -> None:
    mine = {"payload": {}, "status": "pending", "attempts": 0, "next_retry_at": None}
    db.tasks.insert_one(dict(mine))
    deployed.set(DEFAULT_TASK="noop")

    assert deployed.invoke("reclaim")["adopted"] == 1
    assert deployed.invoke("execute")["done"] == 1


def test_who_failed_a_task_and_whether_it_was_moved_makes_no_difference_to_its_status(  # F19
    deployed: Deployed, db: Database[Any]
) -> None:
    lease = {"token": "t", "owner": "o", "expires_at": LONG_AGO}
    lost = {"status": "processing", "attempts": 1, "crashes": 1, "lease": lease}
    mine = {"trace": {"source": CALLER}, "max_retries": 0}
    ids = [
        str(db.tasks.insert_one(document(LONG_AGO, **mine, **ending)).inserted_id)
        for ending in (lost, {"expires_at": LONG_AGO}, {"attempts": 1})
    ]
    deployed.invoke("reclaim")
    deployed.invoke("execute")

    alive = [deployed.get(one).body for one in ids]
    assert deployed.invoke("archive")["moved"] == 3
    dead = [deployed.get(one).body for one in ids]

    assert alive == dead
    assert [one["reason"] for one in dead] == ["worker_lost", "expired", "exhausted"]
    assert {one["status"] for one in dead} == {"failed"}
    assert len({frozenset(one) for one in dead}) == 1


def test_what_expired_or_cannot_be_a_task_ends_as_a_dead_letter(deployed: Deployed, db: Database[Any]) -> None:
    db.tasks.insert_many([document(LONG_AGO, expires_at=LONG_AGO), {"status": "pending", "payload": "text"}])

    report = deployed.invoke("reclaim")

    assert (report["expired"], report["quarantined"]) == (1, 1)
    assert deployed.invoke("archive")["moved"] == 2
    assert sorted(letter["reason"] for letter in db.tasks_dlq.find()) == ["expired", "malformed"]


@pytest.mark.parametrize("function", BOTH)
def test_an_invocation_that_is_nearly_over_does_nothing(deployed: Deployed, db: Database[Any], function: str) -> None:
    lease = {"token": "t", "owner": "o", "expires_at": LONG_AGO}
    db.tasks.insert_one(document(LONG_AGO, status="processing", attempts=1, lease=lease))
    db.tasks.insert_one(document(LONG_AGO, status="failed", finished_at=LONG_AGO))

    assert deployed.invoke(function, {}, FakeContext(timedelta(seconds=5))) == EMPTY[function]

    assert sorted(task["status"] for task in db.tasks.find()) == ["failed", "processing"]


@pytest.mark.parametrize(("function", "message"), [("reclaim", "reclaimed"), ("archive", "archived")])
def test_the_report_is_one_line(deployed: Deployed, function: str, message: str) -> None:
    report = deployed.invoke(function)

    [line] = deployed.log()
    assert (line["message"], line["level"]) == (message, "INFO")
    assert {name: line.get(name) for name in report} == report


def test_an_archive_that_fails_tells_what_it_did_all_the_same(deployed: Deployed, db: Database[Any]) -> None:
    db.tasks.insert_one(document(LONG_AGO, status="failed", finished_at=LONG_AGO))
    data = {"failCommands": ["aggregate"], "appName": "tidemill-archive", "errorCode": INTERRUPTED}
    db.client.admin.command("configureFailPoint", "failCommand", mode={"times": 1}, data=data)

    with pytest.raises(UnavailableError):
        deployed.invoke("archive")

    [line] = deployed.log()
    assert (line["message"], line["level"], line["moved"]) == ("archived", "WARNING", 1)
    assert "MongoDB could not do it now" in line["reason"]


def test_the_line_of_a_death_names_the_dead(deployed: Deployed) -> None:
    event = sample("execute_failed")
    deployed.invoke("reclaim", event)

    assert deployed.log()[0]["dead_owner"] == event["requestContext"]["requestId"]
