"""MongoDB's URI as a secret: read once, and once more where MongoDB does not take it any longer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.end_to_end.deployed.conftest import Deploy
from tests.end_to_end.deployed.stack import StackAtWork, sample
from tests.locked import Locked, locked_mongod

READS = "secretsmanager:GetSecretValue"
EVENTS: dict[str, Any] = {
    "EnqueueFunction": sample("enqueue_to_cancel"),
    "ExecuteFunction": sample("tick"),
    "ReclaimFunction": sample("reclaim"),
    "ArchiveFunction": sample("archive"),
    "OperateFunction": sample("operate_queue_list"),
}


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Locked]:
    with locked_mongod(tmp_path_factory.mktemp("locked")) as server:
        yield server


def at_work(stack: StackAtWork, function: str) -> StackAtWork:
    """The stack, with a warm container of a function."""
    if function == "EnqueueFunction":  # takes only what an executor has registered
        stack.start()
    stack.invoke(function, EVENTS[function])
    return stack


@pytest.mark.parametrize("function", EVENTS)
def test_a_password_that_was_changed_costs_one_look_at_the_secret(
    deploy: Deploy, locked: Locked, function: str
) -> None:
    user = f"changes-{function}"
    stack = at_work(deploy(locked.add(user, "S3cr3t-old")), function)

    locked.admin.admin.command("updateUser", user, pwd="S3cr3t-new")
    stack.keep_secret(locked.of(user, "S3cr3t-new"))
    locked.cut(function.removesuffix("Function").lower())
    for _ in range(2):
        stack.invoke(function, EVENTS[function])

    assert len(stack.calls(READS, function=function)) == 2
    assert len({one.pid for one in stack.cloud.reports if one.function == function}) == 1


@pytest.mark.parametrize("function", EVENTS)
def test_a_user_that_takes_the_place_of_another_costs_one_look_too(
    deploy: Deploy, locked: Locked, function: str
) -> None:
    stack = at_work(deploy(locked.add(f"first-{function}", "S3cr3t-1")), function)

    stack.keep_secret(locked.add(f"second-{function}", "S3cr3t-2"))
    locked.admin.admin.command("dropUser", f"first-{function}")
    for _ in range(2):
        stack.invoke(function, EVENTS[function])

    assert len(stack.calls(READS, function=function)) == 2


def test_a_secret_that_is_no_uri_is_told_by_the_third_step_of_a_deployment(deploy: Deploy) -> None:
    stack = deploy("S3cr3t")

    answer = stack.cloud.invoke("ReclaimFunction")

    assert (answer.error, answer.value["errorType"]) == ("Unhandled", "SettingsError")
    assert "MONGODB_SECRET_ARN" in answer.value["errorMessage"]


def test_the_third_step_of_a_deployment_makes_the_indexes_and_proves_secret_and_network(deploy: Deploy) -> None:
    stack: StackAtWork = deploy()

    assert stack.invoke("ReclaimFunction")["missing_indexes"] == []

    assert {"claim", "leases", "owners", "key", "retention"} <= stack.db.tasks.index_information().keys()
    assert len(stack.calls(READS)) == 1
