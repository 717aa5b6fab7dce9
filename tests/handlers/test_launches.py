"""Executors summon those that come after them, and reclaim one in the place of one that died."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pymongo.database import Database

from tests.builders import document
from tests.handlers.calls import sample
from tests.handlers.conftest import Deployed
from tests.handlers.lambda_api import ARN, FakeLambda, refusal
from tidemill.testing import FakeContext

OWN = FakeContext.invoked_function_arn
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def messages(deployed: Deployed) -> list[str]:
    return [line["message"] for line in deployed.log()]


def knock(db: Database[Any], **fields: Any) -> None:
    db.control.update_one(
        {"_id": "executor_slots"}, {"$set": {"waiting_since": datetime.now(UTC), **fields}}, upsert=True
    )


# execute


def test_an_executor_lets_in_who_was_turned_away(deployed: Deployed, db: Database[Any], fake: FakeLambda) -> None:
    deployed.invoke("execute")
    assert fake.invoked == []

    knock(db)
    deployed.invoke("execute")

    assert fake.started() == [(OWN, "backlog")]
    assert messages(deployed) == ["executed", "executed"]


def test_a_successor_that_cannot_be_summoned_is_warned_of(
    deployed: Deployed, db: Database[Any], fake: FakeLambda
) -> None:
    knock(db)
    fake.does = refusal("AccessDeniedException")

    deployed.invoke("execute")

    assert messages(deployed) == ["executed", "launch_failed"]
    assert deployed.log()[-1]["reason"] == "Lambda refused (AccessDeniedException)"


@pytest.mark.parametrize("environment", [{"AWS_SAM_LOCAL": "true"}, {"AWS_LAMBDA_FUNCTION_NAME": None}])
def test_an_executor_on_a_developers_machine_summons_nobody(
    deployed: Deployed, db: Database[Any], fake: FakeLambda, environment: dict[str, str | None]
) -> None:
    deployed.set(**environment)
    knock(db)

    deployed.invoke("execute")

    assert fake.invoked == []


# reclaim


def lose(db: Database[Any], **fields: Any) -> None:
    owner = sample("execute_failed")["requestContext"]["requestId"]
    lease = {"token": "t", "owner": owner, "expires_at": datetime.now(UTC) + timedelta(minutes=1)}
    db.tasks.insert_one(document(LONG_AGO, status="processing", attempts=1, lease=lease, **fields))


def test_a_dead_executor_that_held_tasks_is_replaced(deployed: Deployed, db: Database[Any], fake: FakeLambda) -> None:
    lose(db)

    assert deployed.invoke("reclaim", sample("execute_failed"))["reclaimed"] == 1

    assert fake.started() == [(ARN, "backlog")]


def test_one_that_held_nothing_is_not_replaced(deployed: Deployed, fake: FakeLambda) -> None:
    deployed.invoke("reclaim", sample("execute_failed"))

    assert fake.invoked == []


@pytest.mark.parametrize(
    ("fields", "count"),
    [({"crashes": 1, "max_retries": 0}, "failed"), ({"cancel_requested_at": LONG_AGO}, "cancelled")],
)
def test_so_is_one_whose_tasks_have_ended_for_good_for_the_sake_of_those_that_wait(
    deployed: Deployed, db: Database[Any], fake: FakeLambda, fields: dict[str, Any], count: str
) -> None:
    lose(db, **fields)

    report = deployed.invoke("reclaim", sample("execute_failed"))

    assert (report[count], report["reclaimed"]) == (1, 0)
    assert fake.started() == [(ARN, "backlog")]


def test_a_dead_executor_is_replaced_where_somebody_was_turned_away(
    deployed: Deployed, db: Database[Any], fake: FakeLambda
) -> None:
    owner = sample("execute_failed")["requestContext"]["requestId"]
    until = datetime.now(UTC) + timedelta(minutes=1)
    knock(db, holds=[{"owner": owner, "execution": "e", "n": 1, "until": until}])

    for _ in range(2):
        deployed.invoke("reclaim", sample("execute_failed"))

    assert fake.started() == [(ARN, "backlog")]
    assert db.control.find_one({"_id": "executor_slots"})["holds"] == []  # type: ignore[index]


def test_a_tick_of_reclaim_summons_nobody(deployed: Deployed, db: Database[Any], fake: FakeLambda) -> None:
    lose(db)
    db.tasks.update_one({}, {"$set": {"lease.expires_at": LONG_AGO}})
    knock(db)

    assert deployed.invoke("reclaim")["reclaimed"] == 1
    assert fake.invoked == []


def dropped(source: str) -> dict[str, Any]:
    """What Lambda sends of a launch that it never ran: no response, and a request id that nobody knows."""
    event = sample("execute_failed")
    event["requestContext"] |= {"condition": "EventAgeExceeded", "approximateInvokeCount": 0}
    del event["responseContext"], event["responsePayload"]
    return event | {"requestPayload": {"source": source}}


def add_due_task(db: Database[Any]) -> None:
    db.tasks.insert_one(document(LONG_AGO))


@pytest.mark.parametrize("source", ["wake", "backlog"])
def test_a_launch_that_was_dropped_is_made_up_for_once_where_tasks_are_due(
    deployed: Deployed, db: Database[Any], fake: FakeLambda, source: str
) -> None:
    add_due_task(db)

    report = deployed.invoke("reclaim", dropped(source))

    assert (report["reclaimed"], report["errors"]) == (0, 0)
    assert fake.started() == [(ARN, "tick")]
    deployed.invoke("reclaim", dropped("tick"))  # it is dropped as well
    assert len(fake.started()) == 1
    assert db.tasks.count_documents({"status": "pending", "attempts": 0}) == 1


def test_a_launch_that_was_dropped_is_not_missed_where_nothing_is_due(deployed: Deployed, fake: FakeLambda) -> None:
    deployed.invoke("reclaim", dropped("backlog"))

    assert fake.invoked == []


def test_a_launch_that_was_dropped_is_not_missed_where_an_executor_is_at_work(
    deployed: Deployed, db: Database[Any], fake: FakeLambda
) -> None:
    add_due_task(db)
    until = datetime.now(UTC) + timedelta(minutes=1)
    held = {"owner": "another", "execution": "e", "n": 1, "until": until}
    db.control.update_one({"_id": "executor_slots"}, {"$set": {"holds": [held]}}, upsert=True)

    deployed.invoke("reclaim", dropped("backlog"))

    assert fake.invoked == []
    [left] = db.control.find_one({"_id": "executor_slots"})["holds"]  # type: ignore[index]
    assert left["execution"] == "e"


def test_an_executor_that_ran_and_held_nothing_is_not_replaced_though_tasks_are_due(
    deployed: Deployed, db: Database[Any], fake: FakeLambda
) -> None:
    """It would fail again at once, and the next one, for ever: its import, say."""
    add_due_task(db)

    deployed.invoke("reclaim", sample("execute_failed") | {"requestPayload": {"source": "backlog"}})

    assert fake.invoked == []


def change_arn(arn: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda event: event | {"requestContext": event["requestContext"] | {"functionArn": arn}}


@pytest.mark.parametrize("arn", [None, 7, "name", "arn:aws:sqs:eu-central-1:123456789012:queue"])
def test_a_death_of_something_else_is_reclaimed_and_summons_nobody(
    deployed: Deployed, db: Database[Any], fake: FakeLambda, arn: Any
) -> None:
    lose(db)

    assert deployed.invoke("reclaim", change_arn(arn)(sample("execute_failed")))["reclaimed"] == 1
    assert fake.invoked == []


def test_a_replacement_that_cannot_be_summoned_fails_no_reclaim(
    deployed: Deployed, db: Database[Any], fake: FakeLambda
) -> None:
    lose(db)
    fake.does = refusal("TooManyRequestsException")

    assert deployed.invoke("reclaim", sample("execute_failed"))["reclaimed"] == 1
    assert messages(deployed) == ["attempt", "reclaimed", "launch_failed"]
