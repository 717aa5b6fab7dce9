"""``GET /queues/{queue}``: the state of a queue, for API keys with the right to it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pymongo.database import Database

from tests.builders import add, claim, document
from tests.handlers.calls import CALLER, Answer, request, sample
from tests.handlers.conftest import Deployed
from tidemill.clock import ServerClock
from tidemill.control.callers import grant_right, revoke_right
from tidemill.control.queues import change_queue
from tidemill.model import QueueOptions
from tidemill.store.connection import Tasks


def ask(deployed: Deployed, queue: str = "default", **changes: Any) -> Answer:
    """``GET /queues/{queue}``."""
    return deployed.http(request("GET", f"/queues/{queue}", **changes))


def test_a_key_with_the_right_is_told_the_state_of_a_queue(deployed: Deployed, db: Database[Any], tasks: Tasks) -> None:
    # S06
    now = ServerClock(db).now()
    grant_right(db, CALLER, "queues.read")
    [running] = add(tasks, [document(now, lane="retry", attempts=1)])
    claim(tasks, now, lane="retry")
    later = now + timedelta(hours=1)
    add(
        tasks,
        [
            document(now - timedelta(seconds=90), payload={"card": "4111"}),
            document(later),
            document(later, lane="retry"),
        ],
    )

    answer = deployed.http(sample("get_queue"))

    assert answer.status == 200
    age = answer.body.pop("oldest_due_age_sec")
    assert 90 <= age < 900
    [current] = answer.body.pop("current")
    assert (current.pop("since")[-1], current) == (
        "Z",
        {"id": str(running), "name": "noop", "attempts": 2, "is_retry": True},
    )
    assert answer.body == {
        "queue": "default", "queue_size": 2, "retry_queue_size": 1, "delayed": 2, "processing": 1,
        "paused": False, "retries_paused": False,
    }  # fmt: skip
    assert "4111" not in answer.text


@pytest.mark.parametrize("caller", [CALLER, None, "callers", "_id"])
def test_without_the_right_nothing_is_told_not_even_whether_there_is_such_a_queue(
    deployed: Deployed, db: Database[Any], caller: str | None
) -> None:
    grant_right(db, "another", "queues.read")

    answers = [ask(deployed, queue, caller=caller) for queue in ("default", "nowhere")]

    assert [(answer.status, answer.code) for answer in answers] == [(403, "missing_right")] * 2
    assert answers[0].text == answers[1].text


def test_a_right_that_was_revoked_is_gone_at_the_next_read(deployed: Deployed, db: Database[Any]) -> None:
    grant_right(db, CALLER, "queues.read")
    assert ask(deployed).status == 200
    revoke_right(db, CALLER, "queues.read")

    assert ask(deployed).status == 200  # cached
    deployed.cool_down()
    assert ask(deployed).status == 403


def test_a_queue_that_is_not_there_is_not_found(deployed: Deployed, db: Database[Any]) -> None:
    grant_right(db, CALLER, "queues.read")

    assert (ask(deployed, "nowhere").status, ask(deployed, "nowhere").code) == (404, "not_found")
    assert ask(deployed, "nowhere/else").status == 404


@pytest.mark.parametrize(
    ("options", "paused"),
    [
        (QueueOptions(), (False, False)),
        (QueueOptions(paused=True), (True, True)),
        (QueueOptions(max_in_flight_retries=0), (False, True)),
    ],
)
def test_both_pauses_are_told(
    deployed: Deployed, db: Database[Any], options: QueueOptions, paused: tuple[bool, bool]
) -> None:
    grant_right(db, CALLER, "queues.read")
    change_queue(db, "default", options, now=ServerClock(db).now())

    told = ask(deployed).body

    assert (told["paused"], told["retries_paused"]) == paused


def test_the_rights_of_a_key_open_no_task_of_another(deployed: Deployed, db: Database[Any]) -> None:
    grant_right(db, CALLER, "queues.read")
    task_id = deployed.post({"name": "noop", "payload": {}}, caller="another").id

    assert deployed.get(task_id).status == 404
    assert deployed.delete(task_id).status == 404


def test_options_in_a_query_are_refused(deployed: Deployed, db: Database[Any]) -> None:
    grant_right(db, CALLER, "queues.read")

    assert ask(deployed, queryStringParameters={"limit": "5"}).status == 422
