"""What each function is given: the table of the design, its code, its failures, its logs."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.template.deployment import Deploy
from tidemill.enqueue.rules import MAX_EVENT_AGE
from tidemill.indexes import OCCURRENCE_RETENTION


class Expected(NamedTuple):
    memory: int
    timeout: Any
    retries: int
    max_age: int


TABLE = {
    "EnqueueFunction": Expected(memory=512, timeout=10, retries=2, max_age=3600),
    "ExecuteFunction": Expected(memory=1024, timeout={"Ref": "ExecuteTimeout"}, retries=0, max_age=60),
    "ReclaimFunction": Expected(memory=512, timeout=50, retries=0, max_age=60),
    "ArchiveFunction": Expected(memory=512, timeout=240, retries=0, max_age=60),
    "OperateFunction": Expected(memory=512, timeout=15, retries=0, max_age=60),
}
each_function = pytest.mark.parametrize("name", TABLE)


def invoke_config(resources: dict[str, Any], name: str) -> dict[str, Any]:
    config: dict[str, Any] = resources[f"{name}EventInvokeConfig"]["Properties"]
    return config


def allowed(resources: dict[str, Any], name: str) -> list[tuple[object, object]]:
    policies = resources[f"{name}Role"]["Properties"]["Policies"]
    statements = [one for policy in policies for one in policy["PolicyDocument"]["Statement"] if "Action" in one]
    return [(statement["Action"], statement["Resource"]) for statement in statements]


def test_these_are_all_functions_there_are(resources: dict[str, Any]) -> None:
    assert {name for name, r in resources.items() if r["Type"] == "AWS::Lambda::Function"} == TABLE.keys()


@each_function
def test_a_function_has_the_memory_and_the_time_of_the_design(resources: dict[str, Any], name: str) -> None:
    properties = resources[name]["Properties"]

    assert (properties["MemorySize"], properties["Timeout"]) == (TABLE[name].memory, TABLE[name].timeout)


@each_function
def test_a_function_runs_on_python_313_on_the_chosen_processor(resources: dict[str, Any], name: str) -> None:
    properties = resources[name]["Properties"]

    assert properties["Runtime"] == "python3.13"
    assert properties["Architectures"] == [{"Ref": "Architecture"}]
    assert properties["Handler"] == "app.lambda_handler"


@each_function
def test_a_functions_handler_is_where_the_template_says(source: dict[str, Any], root: Path, name: str) -> None:
    folder = root / source["Resources"][name]["Properties"]["CodeUri"]

    assert folder == root / "functions" / name.removesuffix("Function").lower()
    assert (folder / "app.py").is_file()


@each_function
def test_lambda_repeats_an_asynchronous_invoke_as_the_design_says(resources: dict[str, Any], name: str) -> None:
    config = invoke_config(resources, name)

    assert config["Qualifier"] == "$LATEST"
    assert config["MaximumRetryAttempts"] == TABLE[name].retries
    assert config["MaximumEventAgeInSeconds"] == TABLE[name].max_age


@each_function
def test_a_function_has_no_snapstart_and_at_most_enqueue_reserved_concurrency(
    resources: dict[str, Any], name: str
) -> None:
    reserved = {"EnqueueFunction"} if "ReservedConcurrentExecutions" in resources[name]["Properties"] else set()

    assert "SnapStart" not in resources[name]["Properties"]
    assert reserved <= {name}


@pytest.mark.parametrize(("chosen", "reserved"), [("", None), ("0", None), ("1", "1"), ("25", "25")])
def test_enqueue_reserves_concurrency_where_that_is_chosen(deploy: Deploy, chosen: str, reserved: str | None) -> None:
    functions = deploy(EnqueueConcurrency=chosen).of_type("AWS::Lambda::Function")
    found = {name: one.get("ReservedConcurrentExecutions") for name, one in functions.items()}

    assert found == dict.fromkeys(TABLE) | {"EnqueueFunction": reserved}


@each_function
def test_only_a_function_whose_chain_our_code_bounds_may_be_invoked_in_a_chain(
    resources: dict[str, Any], name: str
) -> None:
    recursive = {"EnqueueFunction", "ExecuteFunction", "ReclaimFunction"}

    assert resources[name]["Properties"].get("RecursiveLoop") == ("Allow" if name in recursive else None)


def test_reclaim_learns_of_an_executor_that_died(resources: dict[str, Any]) -> None:
    reclaim = {"Fn::GetAtt": ["ReclaimFunction", "Arn"]}

    assert invoke_config(resources, "ExecuteFunction")["DestinationConfig"] == {"OnFailure": {"Destination": reclaim}}
    assert ("lambda:InvokeFunction", reclaim) in allowed(resources, "ExecuteFunction")


DAY = 86400
RETRIES = {"Fn::GetAtt": ["EnqueueRetries", "Arn"]}
FAILURES = {"Fn::GetAtt": ["EnqueueFailures", "Arn"]}


def test_a_task_that_could_not_be_stored_waits_in_an_encrypted_queue(resources: dict[str, Any]) -> None:
    assert invoke_config(resources, "EnqueueFunction")["DestinationConfig"] == {"OnFailure": {"Destination": RETRIES}}
    assert resources["EnqueueFailures"]["Properties"] == {
        "MessageRetentionPeriod": 14 * DAY,
        "SqsManagedSseEnabled": True,
    }
    for queue in ("EnqueueRetries", "EnqueueFailures"):
        assert resources[queue]["DeletionPolicy"] == "RetainExceptOnCreate"
        assert resources[queue]["UpdateReplacePolicy"] == "Retain"


def test_it_is_tried_every_five_minutes_for_a_day_and_then_set_aside(resources: dict[str, Any]) -> None:
    queue = resources["EnqueueRetries"]["Properties"]

    assert queue["SqsManagedSseEnabled"] is True
    assert queue["RedrivePolicy"]["deadLetterTargetArn"] == FAILURES
    assert queue["VisibilityTimeout"] * queue["RedrivePolicy"]["maxReceiveCount"] == DAY
    assert queue["VisibilityTimeout"] >= 6 * TABLE["EnqueueFunction"].timeout  # what AWS asks for
    assert queue["MessageRetentionPeriod"] == 14 * DAY
    assert timedelta(seconds=queue["MessageRetentionPeriod"]) < OCCURRENCE_RETENTION


def test_lambda_reads_the_queue_of_retries_two_batches_at_a_time(resources: dict[str, Any]) -> None:
    [source] = [r["Properties"] for r in resources.values() if r["Type"] == "AWS::Lambda::EventSourceMapping"]

    assert source == {
        "EventSourceArn": RETRIES,
        "FunctionName": {"Ref": "EnqueueFunction"},
        "BatchSize": 10,
        "FunctionResponseTypes": ["ReportBatchItemFailures"],
        "ScalingConfig": {"MaximumConcurrency": 2},
    }
    assert resources["EnqueueFunction"]["Properties"]["Environment"]["Variables"]["FAILURES_QUEUE_URL"] == {
        "Ref": "EnqueueFailures"
    }


def test_a_first_try_is_no_older_than_the_code_takes_it_to_be(resources: dict[str, Any]) -> None:
    kept = invoke_config(resources, "EnqueueFunction")["MaximumEventAgeInSeconds"]

    assert timedelta(seconds=kept) == MAX_EVENT_AGE


@pytest.mark.parametrize("name", ["ReclaimFunction", "ArchiveFunction"])
def test_what_the_next_tick_repeats_has_no_destination(resources: dict[str, Any], name: str) -> None:
    assert not invoke_config(resources, name).get("DestinationConfig")


@each_function
def test_whatever_a_function_or_its_runtime_logs_is_json_of_level_info_or_above(
    resources: dict[str, Any], name: str
) -> None:
    how = resources[name]["Properties"]["LoggingConfig"]

    assert (how["LogFormat"], how["ApplicationLogLevel"]) == ("JSON", "INFO")
    assert how.keys() == {"LogFormat", "ApplicationLogLevel", "LogGroup"}


@each_function
def test_a_function_logs_into_a_group_that_forgets(resources: dict[str, Any], name: str) -> None:
    group = resources[name]["Properties"]["LoggingConfig"]["LogGroup"]["Ref"]

    assert group == name.replace("Function", "Logs")
    assert resources[group]["Properties"] == {"RetentionInDays": {"Ref": "LogRetentionDays"}}
