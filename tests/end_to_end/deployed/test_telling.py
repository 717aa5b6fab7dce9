"""What the deployed functions write: metrics as CloudWatch takes them, and one line of JSON for whatever happens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.deployed.conftest import Deploy
from tests.end_to_end.deployed.stack import HIDDEN, StackAtWork, sample

BUG = """
from tidemill.bootstrap import Deployment

def breaks(*_):
    raise ValueError("S3" + "cr3t")

Deployment.enqueue_service = Deployment.create_missing_indexes = Deployment.archive_context = property(breaks)
"""


def test_a_task_that_failed_once_is_told_by_its_numbers_and_by_one_line(stack: StackAtWork) -> None:
    stack.ends(stack.post("fails_first", {"card": "S3cr3t"}))
    stack.cloud.calm()

    assert [stack.metrics(name) for name in ("claimed", "done", "retries_total", "failed")] == [[2], [1], [1], []]
    times = [stack.metrics(name) for name in ("run_time_seconds", "retry_latency_seconds", "lateness_seconds")]
    assert [len(values) for values in times] == [2, 1, 1]
    failures = [line for line in stack.said("attempt") if line["level"] == "WARNING"]
    assert [(line["task_name"], line["code"]) for line in failures] == [("fails_first", "RuntimeError")]


def test_metrics_are_of_the_stack_and_of_nothing_else(stack: StackAtWork) -> None:
    stack.ends(stack.post("noop"))
    stack.invoke("ReclaimFunction")
    stack.cloud.calm()

    lines = [line for line in stack.log() if "_aws" in line]
    described = [one for line in lines for one in line["_aws"]["CloudWatchMetrics"]]
    assert {line["service"] for line in lines} == {stack.cloud.deployment.stack.name}
    assert {(one["Namespace"], str(one["Dimensions"])) for one in described} == {("Tidemill", "[['service']]")}
    assert len({metric["Name"] for one in described for metric in one["Metrics"]}) <= 15
    assert stack.metrics("due_fresh")[-1:] == [0]


def test_the_correlation_id_of_a_request_is_in_the_log_of_whatever_handles_it(stack: StackAtWork) -> None:
    task_id = stack.post("dies", {"cure": "/nowhere"})
    stack.ends(task_id, status="failed")
    stack.cloud.calm()

    [accepted] = stack.said("accepted", "EnqueueFunction")
    by_executor = [line for line in stack.said("attempt", "ExecuteFunction") if line["task_id"] == task_id]
    by_reclaim = [line for line in stack.said("attempt", "ReclaimFunction") if line["task_id"] == task_id]
    assert by_executor != []
    assert by_reclaim != []
    assert {line["correlation_id"] for line in by_executor + by_reclaim} == {accepted["correlation_id"]}


def test_each_invocation_is_told_by_one_line_with_its_id(stack: StackAtWork) -> None:
    usual: dict[str, tuple[str, Any]] = {
        "EnqueueFunction": ("accepted", sample("enqueue_to_cancel")),
        "ExecuteFunction": ("executed", sample("tick")),
        "ReclaimFunction": ("reclaimed", sample("reclaim")),
        "ArchiveFunction": ("archived", sample("archive")),
        "OperateFunction": ("operated", sample("operate_queue_list")),
    }
    for function, (message, event) in usual.items():
        answer = stack.cloud.invoke(function, event)

        lines = [line for line in stack.log(function) if line.get("request_id") == answer.request_id]
        assert [line["message"] for line in lines if "_aws" not in line] == [message], function


@pytest.mark.parametrize(
    ("function", "event"),
    [("EnqueueFunction", "enqueue_direct"), ("ReclaimFunction", "reclaim"), ("ArchiveFunction", "archive")],
)
def test_what_nobody_expected_is_told_with_its_place_and_without_its_words(
    deploy: Deploy, stack_code: Callable[[str], list[Path]], tmp_path: Path, function: str, event: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(BUG)
    path = ":".join(map(str, [tmp_path, *stack_code(function)]))
    stack = deploy(variables={function: {"PYTHONPATH": path}})

    answer = stack.cloud.invoke(function, sample(event))

    assert (answer.error, answer.value["errorType"]) == ("Unhandled", "UnexpectedError")
    ours, runtimes = stack.log(function)
    assert (ours["message"], ours["error_type"]) == ("failed", "ValueError")
    assert runtimes["errorMessage"] == answer.value["errorMessage"]
    assert "in breaks" in ours["stack"]
    assert "in breaks" in runtimes["stackTrace"][-1]
    assert HIDDEN not in stack.cloud.log() + answer.content.decode()
