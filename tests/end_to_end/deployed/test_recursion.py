"""Chains of executors, with Lambda's recursive loop detection: it stops the seventeenth invocation of a function."""

from __future__ import annotations

from typing import Any, Final

from tests.end_to_end.deployed.chains import MAX_INVOCATIONS
from tests.end_to_end.deployed.conftest import Deploy
from tests.end_to_end.deployed.stack import StackAtWork

QUICK: Final = {"TASK_PACKAGE": "quick", "TASK_TIMEOUT_SEC": "1", "MAX_TASK_TIMEOUT_SEC": "1", "LINGER_SEC": "0"}
TIMEOUT_SEC: Final = 12.0
"""An executor claims for a second: as long as its longest task, and ten seconds to report, are left."""

BACKLOG: Final = 50
"""Tasks of half a second: two or three for each executor."""


def deploy_slow(deploy: Deploy, **how: Any) -> StackAtWork:
    """Make a stack of one executor at a time, which does a task at a time, for a second."""
    return deploy(
        timeouts={"ExecuteFunction": TIMEOUT_SEC},
        variables={"ExecuteFunction": QUICK},
        MaxExecutors="1",
        Concurrency="1",
        **how,
    ).start()


def add_backlog(stack: StackAtWork) -> None:
    """Enqueue tasks by one request, which starts one executor: what it and its successors do is one chain."""
    status, told = stack.http("enqueue_batch", {"tasks": [{"name": "takes_a_while", "payload": {}}] * BACKLOG})
    assert (status, len(told["tasks"])) == (202, BACKLOG)


def executors(stack: StackAtWork) -> list[str]:
    """Return the request ids of the executors that ran for the backlog: the first one came by a tick."""
    return [one.request_id for one in stack.cloud.reports if one.function == "ExecuteFunction"][1:]


def test_a_standing_backlog_is_worked_off_by_more_successors_than_a_loop_may_have(deploy: Deploy) -> None:
    stack = deploy_slow(deploy)

    add_backlog(stack)
    stack.cloud.calm(within=120)

    assert stack.db.tasks.count_documents({"status": "done"}) == BACKLOG
    assert len(executors(stack)) > MAX_INVOCATIONS + 1
    assert stack.cloud.handed_over == []
    # Each was launched by one that had ended tasks; the last one found nothing.
    assert [line["source"] for line in stack.said("executed")][1:] == [
        "wake",
        *["backlog"] * (len(executors(stack)) - 1),
    ]


def test_without_the_property_lambda_stops_the_chain_and_the_rest_waits_for_the_tick(deploy: Deploy) -> None:
    stack = deploy_slow(deploy, allows_recursion=False)

    add_backlog(stack)
    stack.cloud.calm(within=120)

    ran = executors(stack)
    left = stack.db.tasks.count_documents({"status": "pending"})
    assert (len(ran), left > 0) == (MAX_INVOCATIONS, True)
    # Reclaim was told twice, of the successor and of the one that it launched for it, and harmed nobody.
    stopped = [record["requestContext"]["requestId"] for _, record in stack.cloud.handed_over]
    assert len(stopped) == 2
    assert set(stopped).isdisjoint(one.request_id for one in stack.cloud.reports)
    assert [line["reclaimed"] for line in stack.said("reclaimed") if line.get("dead_owner") in stopped] == [0, 0]
    assert stack.db.tasks.count_documents({"status": "done"}) == BACKLOG - left

    stack.cloud.tick("ExecuteFunction").result(60)
    stack.cloud.calm(within=120)
    assert stack.db.tasks.count_documents({"status": "pending"}) < left
