"""What a request costs MongoDB, and with which guarantees, whatever its URI says."""

from __future__ import annotations

import time
from typing import Any

import pytest
from pymongo.database import Database

from tests.handlers.calls import request
from tests.handlers.conftest import Deployed
from tidemill.testing import FakeContext, Mongod

NOOP = {"name": "noop", "payload": {}}
OPTIONS = [
    "w=0",
    "w=0&journal=true",
    "w=1",
    "journal=false",
    "retryWrites=false",
    "readPreference=secondaryPreferred",
    "readConcernLevel=linearizable",
    "maxPoolSize=1",
    "timeoutMS=1",
]


def test_a_warm_enqueue_is_one_insert(deployed: Deployed) -> None:
    deployed.post(NOOP)
    deployed.commands()

    deployed.post(NOOP)

    assert [name for name, _ in deployed.commands()] == ["insert"]


KEYED = NOOP | {"idempotency_key": "k"}


@pytest.mark.parametrize(
    ("event", "commands"),
    [
        (NOOP, ["insert"]),
        (KEYED, ["findAndModify"]),
        ({"tasks": [NOOP, NOOP]}, ["insert", "commitTransaction"]),
        ({"tasks": [NOOP, KEYED]}, ["find", "insert", "commitTransaction"]),
    ],
)
def test_a_warm_direct_invocation_costs_what_a_request_costs(
    deployed: Deployed, monkeypatch: pytest.MonkeyPatch, event: Any, commands: list[str]
) -> None:
    monkeypatch.setenv("_X_AMZN_TRACE_ID", f"Root=1-{int(time.time()):08x}-{'a' * 24};Parent={'b' * 16};Sampled=0")
    deployed.invoke("enqueue", NOOP)
    deployed.commands()

    deployed.invoke("enqueue", event)

    assert [name for name, _ in deployed.commands()] == commands


START = ("control", "task_types")
"""What a container looks at once: the mark of the database, and the functions there are."""


@pytest.mark.parametrize("event", [NOOP, KEYED, {"tasks": [NOOP, KEYED]}])
def test_a_later_try_looks_for_living_and_dead_tasks_first(
    deployed: Deployed, monkeypatch: pytest.MonkeyPatch, event: Any
) -> None:
    monkeypatch.setenv("_X_AMZN_TRACE_ID", f"Root=1-{int(time.time()) - 60:08x}-{'a' * 24}")
    context = FakeContext()
    deployed.invoke("enqueue", event, context)
    sent = deployed.commands()

    deployed.invoke("enqueue", event, context)

    looks = [("find", "tasks"), ("find", "tasks_dlq")]
    assert [(name, one.get(name)) for name, one in sent if one.get(name) not in START][:2] == looks
    assert [(name, one[name]) for name, one in deployed.commands()] == looks


@pytest.mark.parametrize("key", ["new", "known"])
def test_a_warm_keyed_enqueue_is_one_find_and_modify(deployed: Deployed, key: str) -> None:
    deployed.post(NOOP, key="known")
    deployed.commands()

    deployed.post(NOOP, key=key)

    assert [name for name, _ in deployed.commands()] == ["findAndModify"]


def test_a_refused_body_costs_nothing(deployed: Deployed) -> None:
    deployed.post(NOOP)
    deployed.commands()

    for body in ("{bad", '{"name": "noop"}', '{"name": "noop", "payload": {}, "priority": 11}'):
        deployed.post(body)

    assert deployed.commands() == []


def test_a_refused_name_costs_one_more_look(deployed: Deployed) -> None:
    deployed.post(NOOP)
    deployed.commands()

    deployed.post({"name": "unknown", "payload": {}})

    assert [(name, sent[name]) for name, sent in deployed.commands()] == [("find", "task_types"), ("find", "queues")]


def test_a_get_is_one_read_and_a_delete_one_more_write(deployed: Deployed) -> None:
    task_id = deployed.post(NOOP).id
    deployed.commands()

    deployed.get(task_id)
    assert [name for name, _ in deployed.commands()] == ["find"]
    deployed.delete(task_id)
    assert [name for name, _ in deployed.commands()] == ["find", "findAndModify"]


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_a_task_of_somebody_else_costs_what_no_task_costs(deployed: Deployed, method: str) -> None:
    of_others = deployed.post(NOOP, caller="somebody").id
    costs = []

    for task_id in (of_others, "0" * 24):
        deployed.commands()
        answer = deployed.http(request(method, f"/tasks/{task_id}"))
        costs.append((answer.status, answer.text, [name for name, _ in deployed.commands()]))

    assert costs[0] == costs[1]
    assert costs[0][0] == 404


@pytest.mark.parametrize("options", OPTIONS)
def test_writes_are_of_a_majority_and_reads_of_the_primary(
    deployed: Deployed, mongod: Mongod, db: Database[Any], options: str
) -> None:
    deployed.set(MONGODB_URI=f"{mongod.uri}&{options}")

    for key in (None, "a"):
        answer = deployed.post(NOOP, key=key)
        assert answer.status == 202
        assert deployed.get(answer.id).status == 200
    assert deployed.invoke("execute")["done"] == 2
    assert deployed.invoke("reclaim")["missing_indexes"] == []
    assert deployed.invoke("archive")["moved"] == 0
    sent = deployed.commands()
    writes = [command for name, command in sent if name in {"insert", "update", "findAndModify", "delete"}]
    assert {command["writeConcern"]["w"] for command in writes} == {"majority"}
    assert all("txnNumber" in command for command in writes if "updates" not in command)
    assert {command.get("$readPreference", {}).get("mode") for _, command in sent} <= {None, "primary"}
    assert db.tasks.count_documents({"status": "done"}) == 2


def test_one_connection_of_one_client_serves_all_calls(deployed: Deployed) -> None:  # F90
    task_id = deployed.post(NOOP).id

    for turn in range(25):
        deployed.post(NOOP, key=str(turn % 3))
        deployed.get(task_id)

    assert (len(deployed.clients), deployed.connections()) == (1, 1)


def test_cold_starts_that_fail_leave_no_client_behind(bare: Deployed) -> None:
    bare.set(MONGODB_URI="mongodb://user:pass@h:abc/")
    assert {bare.post(NOOP).status for _ in range(3)} == {503}
    assert bare.clients == []


def test_each_function_has_one_client_of_its_own(deployed: Deployed) -> None:
    for _ in range(2):
        deployed.post(NOOP)
        for function in ("execute", "reclaim", "archive"):
            deployed.invoke(function)

    names = [one.options.pool_options.appname for one in deployed.clients]
    assert sorted(str(name) for name in names) == [
        f"tidemill-{f}" for f in ("archive", "enqueue", "execute", "reclaim")
    ]
