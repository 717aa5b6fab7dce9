"""A repeat that finds its tasks there is told so only once a majority has them: till then they may be taken back."""

from __future__ import annotations

from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database
from pymongo.monitoring import CommandStartedEvent

from tests.builders import make_service, new_tasks
from tests.commands import Commands
from tests.handlers.conftest import Deployed
from tidemill import UnavailableError
from tidemill.enqueue.rules import EnqueueRules
from tidemill.requests.events import Occurrence
from tidemill.testing import Mongod

NOOP: dict[str, Any] = {"name": "noop", "payload": {}}
OCCURRENCE = {
    "schedule": "arn:aws:scheduler:eu-central-1:123456789012:schedule/default/daily",
    "at": "2026-07-01T06:00:00Z",
}


class TakenBack(Commands):
    """Empties *db* before a majority is waited for, as a change of primary takes back what only the old one had."""

    def __init__(self, db: Database[Any]) -> None:
        super().__init__()
        self._db = db

    def started(self, event: CommandStartedEvent) -> None:
        """Take note of *event*; a ping goes before what waits."""
        super().started(event)
        if event.command_name == "ping":
            self._db.occurrences.delete_many({})
            self._db.tasks.delete_many({})


def waits_for_majority(deployed: Deployed) -> bool:
    """Whether something was read of which a majority had to have all that was there."""
    reads = [sent.get("readConcern", {}) for command, sent in deployed.commands() if command == "find"]
    return any(read.get("level") == "majority" and "afterClusterTime" in read for read in reads)


@pytest.mark.parametrize("forgets", ["nothing", "occurrences"])
def test_a_delivery_of_a_known_time_waits_for_a_majority(deployed: Deployed, db: Database[Any], forgets: str) -> None:
    event = {"tasks": [NOOP], "occurrence": OCCURRENCE}
    deployed.invoke("enqueue", event)
    deployed.commands()
    db[forgets].delete_many({})

    assert not deployed.invoke("enqueue", event)["is_new"]
    assert waits_for_majority(deployed)


def test_a_repeat_that_would_be_refused_today_waits_for_a_majority(deployed: Deployed, db: Database[Any]) -> None:
    first = deployed.post(NOOP, key="order-7")
    db.task_types.delete_one({"_id": "noop"})
    deployed.cool_down()
    deployed.commands()

    assert deployed.post(NOOP, key="order-7").id == first.id
    assert waits_for_majority(deployed)


@pytest.mark.parametrize("found", ["mark", "tasks"])
def test_a_time_that_a_change_of_primary_takes_back_is_not_called_known(
    mongod: Mongod, db: Database[Any], found: str
) -> None:
    rules, requests = EnqueueRules(origin=Occurrence.model_validate(OCCURRENCE)), new_tasks([NOOP])
    make_service(db).submit(requests, rules=rules)
    if found == "tasks":
        db.occurrences.delete_many({})

    with MongoClient[dict[str, Any]](mongod.uri, event_listeners=[TakenBack(db)]) as client:
        service = make_service(client[db.name])
        if found == "tasks":
            with pytest.raises(UnavailableError):
                service.submit(requests, rules=rules)
        [accepted] = service.submit(requests, rules=rules)

    assert accepted.is_new
    assert db.tasks.count_documents({"_id": accepted.id}) == 1
