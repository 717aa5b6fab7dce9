"""Dead letters through the operator's function: the samples, and a bucket that takes its time."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pymongo.database import Database

from tests.buried import bury, letter
from tests.handlers.calls import sample
from tests.handlers.conftest import Deployed
from tidemill.bootstrap import deployment
from tidemill.store.connection import Tasks

CARD = "4111111111111111"


@pytest.fixture
def two(db: Database[Any], dead: Tasks) -> None:
    """Two open letters."""
    db["task_types"].insert_one({"_id": "noop"})
    died = datetime.now(UTC) - timedelta(hours=1)
    bury(dead, [letter(died, payload={"card": CARD}, result=CARD) for _ in range(2)])


def ask(deployed: Deployed, event: Any) -> dict[str, Any]:
    """Invoke the function; the answer is as strictly JSON as Lambda's runtime wants it."""
    return dict(json.loads(json.dumps(deployed.invoke("operate", event), allow_nan=False)))


@pytest.mark.usefixtures("two")
def test_groups_are_told(deployed: Deployed) -> None:
    answer = ask(deployed, sample("operate_dlq_groups"))

    assert (answer["dead_letters"], len(answer["groups"])) == (2, 1)
    assert CARD not in json.dumps(answer) + deployed.stdout.getvalue()


@pytest.mark.usefixtures("two")
def test_a_redrive_is_tried_and_done(deployed: Deployed, tasks: Tasks) -> None:
    event = sample("operate_dlq_redrive")

    looked, before = ask(deployed, event), tasks.count_documents({})
    done = ask(deployed, event | {"dry_run": False})

    assert (looked["redriven"], before) == (2, 0)
    assert (done["redriven"], tasks.count_documents({})) == (2, 2)
    assert [line["op"] for line in deployed.log()] == ["dlq.redrive"] * 2


@pytest.mark.usefixtures("two")
def test_an_export_may_take_longer_than_mongodb(deployed: Deployed, dead: Tasks) -> None:
    deployed.request_budget_sec = 0.3
    deployment().put = lambda _key, _body: time.sleep(0.3)

    assert ask(deployed, {"op": "dlq.export"})["exported"] == 2
    assert dead.count_documents({"archived_at": None}) == 0
