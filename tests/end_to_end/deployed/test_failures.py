"""What becomes of invocations that fail: what nobody waited for is told to whoever can do something about it."""

from __future__ import annotations

import socket
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.end_to_end.deployed.cloud import Answer
from tests.end_to_end.deployed.conftest import Deploy
from tests.end_to_end.deployed.stack import StackAtWork, sample
from tests.waiting import eventually

# Shorter than any that the template allows, so that the test is: a longest task must still fit.
TIMEOUT_SEC = 12.5
QUICK = {"TASK_PACKAGE": "quick", "TASK_TIMEOUT_SEC": "1", "MAX_TASK_TIMEOUT_SEC": "1"}


@dataclass(frozen=True, slots=True)
class Frozen:
    """A stack whose executor runs a task that lets nothing else run, until there is a cure."""

    stack: StackAtWork
    task_id: str
    cure: Path


@dataclass(frozen=True, slots=True)
class CutOff:
    """A stack to which a task was sent while MongoDB could not be reached."""

    stack: StackAtWork
    uri: str
    sent: Future[Answer]


@pytest.fixture(scope="module", autouse=True)
def frozen(deploy_once: Deploy, tmp_path_factory: pytest.TempPathFactory) -> Frozen:
    stack = deploy_once(timeouts={"ExecuteFunction": TIMEOUT_SEC}, variables={"ExecuteFunction": QUICK}).start()
    cure = tmp_path_factory.mktemp("frozen") / "cure"
    return Frozen(stack, stack.post("freezes", {"cure": str(cure)}), cure)


@pytest.fixture(scope="module", autouse=True)
def cut_off(deploy_once: Deploy, frozen: Frozen) -> CutOff:  # noqa: ARG001 - both take their time: at the same time
    stack = deploy_once().start()
    uri = stack.secret_value()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        nobody = listener.getsockname()[1]
    stack.keep_secret(f"mongodb://127.0.0.1:{nobody}/")
    return CutOff(stack, uri, stack.cloud.send("EnqueueFunction", sample("enqueue_direct")))


def test_an_executor_that_is_frozen_is_killed_at_its_timeout_and_its_task_runs_again(frozen: Frozen) -> None:
    stack = frozen.stack

    assert eventually(lambda: any(one.how == "timeout" for one in stack.cloud.reports), within=30)
    frozen.cure.touch()
    stack.cloud.calm()

    def is_done() -> bool:
        # With so little time, the executor that reclaim launches does not wait until what it took back is due.
        stack.cloud.tick("ExecuteFunction").result(60)
        return bool(stack.task(frozen.task_id)["status"] == "done")

    assert eventually(is_done, within=30)

    [killed] = [one for one in stack.cloud.reports if one.how == "timeout"]
    again = [one for one in stack.cloud.reports if one.function == "ExecuteFunction"][-1]
    task = stack.task(frozen.task_id)
    assert killed.duration_ms >= TIMEOUT_SEC * 1000
    assert task["attempts"] == 1
    assert task["result"] not in {killed.pid, again.pid}  # in a child of its own


def test_a_task_sent_asynchronously_while_mongodb_is_away_is_kept_and_taken_in_once_it_is_back(cut_off: CutOff) -> None:
    stack = cut_off.stack

    answer = cut_off.sent.result(60)

    assert answer.value["errorType"] == "UnavailableError"
    [(queue, record)] = stack.cloud.handed_over
    tries = [one.request_id for one in stack.cloud.reports if one.function == "EnqueueFunction"]
    assert tries == [record["requestContext"]["requestId"]] * 3
    assert queue == stack.cloud.deployment.stack.arn("EnqueueRetries")
    assert record["requestPayload"] == sample("enqueue_direct")

    with stack.polled(visibility_sec=6):  # longer than the function takes to find nobody
        assert eventually(lambda: len(stack.said("failed", "EnqueueFunction")) > 3, within=30)
        assert stack.queues.count("EnqueueRetries") == 1
        stack.keep_secret(cut_off.uri)
        stack.cloud.recall("EnqueueFunction")
        sent = {"idempotency_key": "direct:order-1043"}
        assert eventually(lambda: stack.db.tasks.count_documents(sent) == 1, within=60)
        assert eventually(lambda: stack.queues.count("EnqueueRetries") == 0, within=60)
    [task] = stack.db.tasks.find(sent)
    stack.ends(str(task["_id"]))
    assert stack.queues.count("EnqueueFailures") == 0
