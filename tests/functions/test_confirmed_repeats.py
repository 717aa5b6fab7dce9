"""A repeat that finds its tasks there is told so only once a majority has them: till then they may be taken back."""

from __future__ import annotations

from typing import Any

import pytest
from pymongo.database import Database

from tests.functions.conftest import Deployed

NOOP: dict[str, Any] = {"name": "noop", "payload": {}}
OCCURRENCE = {
    "schedule": "arn:aws:scheduler:eu-central-1:123456789012:schedule/default/daily",
    "at": "2026-07-01T06:00:00Z",
}


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
