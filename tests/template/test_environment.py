"""The functions' environment: whatever the code reads is declared, and whatever can be chosen is readable."""

from __future__ import annotations

from typing import Any

import pytest

from tasks.deliver_webhook import Sender
from tests.template.reading import Asked
from tidemill.aws import metrics
from tidemill.settings import Settings, from_environment

FUNCTIONS = ["EnqueueFunction", "ExecuteFunction", "ReclaimFunction", "ArchiveFunction", "OperateFunction"]
EXPORTERS = {"ArchiveFunction", "OperateFunction"}
TIMEOUTS = [90, 120, 180, 300, 600, 900]
each_function = pytest.mark.parametrize("name", FUNCTIONS)


def ours(asked: Asked, function: str = "EnqueueFunction") -> set[str]:
    """What was looked for and is not the platform's nor another function's: who wakes and sets aside, who exports."""
    others = set() if function == "EnqueueFunction" else {"EXECUTE_FUNCTION", "FAILURES_QUEUE_URL"}
    others |= set() if function in EXPORTERS else {"ARCHIVE_BUCKET"}
    return {name for name in asked.names if not name.startswith("AWS_")} - others


def variables(template: dict[str, Any], name: str) -> dict[str, Any]:
    found: dict[str, Any] = template["Resources"][name]["Properties"]["Environment"]["Variables"]
    return found


def deployed(template: dict[str, Any], name: str, **chosen: object) -> dict[str, str]:
    """The variables of a function as Lambda would set them, with the defaults of what is not *chosen*."""
    defaults = {p: template["Parameters"][p].get("Default", f"the {p}") for p in template["Parameters"]}
    made = {
        "AWS::StackName": "tidemill",
        "ExecuteFunction": "the executor",
        "EnqueueFailures": "the queue",
        "ArchiveBucket": "the-bucket",
    }
    values = made | defaults | chosen

    def resolved(value: Any) -> str:
        if isinstance(value, dict) and "Fn::FindInMap" in value:
            mapping, row, column = value["Fn::FindInMap"]
            value = template["Mappings"][mapping][resolved(row)][column]
        return str(values[value["Ref"]] if isinstance(value, dict) else value)

    return {variable: resolved(value) for variable, value in variables(template, name).items()}


@each_function
def test_every_variable_that_the_core_reads_is_declared(template: dict[str, Any], name: str) -> None:  # F95
    asked = Asked()
    from_environment(asked)

    assert ours(asked, name) - variables(template, name).keys() == set()


def test_every_variable_that_the_task_functions_read_is_declared_for_executors(template: dict[str, Any]) -> None:  # F95
    asked = Asked()
    Sender.from_env(asked)
    declared = {name: ours(asked) & variables(template, name).keys() for name in FUNCTIONS}

    assert declared.pop("ExecuteFunction") == ours(asked)
    assert set().union(*declared.values()) == set()


@each_function
def test_an_untouched_deployment_has_the_defaults_of_the_code(template: dict[str, Any], name: str) -> None:
    woken = "the executor" if name == "EnqueueFunction" else None
    bucket = "the-bucket" if name in EXPORTERS else None
    aside = "the queue" if name == "EnqueueFunction" else None
    expected = Settings(
        secret_arn="the MongoSecretArn", execute_function=woken, failures_queue=aside, archive_bucket=bucket
    )

    assert from_environment(deployed(template, name)) == expected


def test_a_function_is_told_what_was_chosen(template: dict[str, Any]) -> None:
    environment = deployed(
        template,
        "ExecuteFunction",
        MongoDatabase="app",
        Concurrency=4,
        MaxExecutors=2,
        RetentionDays=30,
        DeadLetterRetentionDays=365,
    )
    settings = from_environment(environment)

    assert (settings.database, settings.concurrency) == ("app", 4)
    assert settings.max_executors == 2
    assert (settings.retention.tasks.days, settings.retention.dead_letters.days) == (30, 365)


def test_these_are_all_timeouts_that_can_be_chosen(template: dict[str, Any]) -> None:
    assert template["Parameters"]["ExecuteTimeout"]["AllowedValues"] == [str(timeout) for timeout in TIMEOUTS]


@pytest.mark.parametrize("timeout", TIMEOUTS)
def test_an_executor_has_time_for_a_longest_task_claimed_as_late_as_possible(
    template: dict[str, Any], timeout: int
) -> None:
    settings = from_environment(deployed(template, "ExecuteFunction", ExecuteTimeout=timeout))

    assert 2 * (settings.max_task_timeout + settings.margin).total_seconds() <= timeout
    assert settings.task_timeout <= settings.max_task_timeout


def test_only_enqueue_is_told_whom_to_wake(template: dict[str, Any]) -> None:
    told = {name: variables(template, name).get("EXECUTE_FUNCTION") for name in FUNCTIONS}

    assert told.pop("EnqueueFunction") == {"Ref": "ExecuteFunction"}
    assert set(told.values()) == {None}


@each_function
def test_log_lines_carry_the_name_of_the_stack(template: dict[str, Any], name: str) -> None:
    assert variables(template, name)["POWERTOOLS_SERVICE_NAME"] == {"Ref": "AWS::StackName"}
    assert variables(template, name)["POWERTOOLS_LOG_LEVEL"] == "INFO"


@each_function
def test_what_is_rarely_chosen_is_a_variable_to_be_edited(template: dict[str, Any], name: str) -> None:
    environment = variables(template, name)

    assert (environment["RETRY_POLICY"], environment["DEFAULT_TASK"]) == ("default", "")
    assert {"RetryPolicy", "DefaultTask"}.isdisjoint(template["Parameters"])


@each_function
def test_metrics_are_of_the_stack_in_one_namespace(template: dict[str, Any], name: str) -> None:
    assert variables(template, name)["POWERTOOLS_METRICS_NAMESPACE"] == metrics.NAMESPACE


@each_function
def test_no_secret_is_written_into_the_template(template: dict[str, Any], name: str) -> None:
    assert variables(template, name)["MONGODB_URI"] == ""
    assert variables(template, name).get("WEBHOOK_SECRET", "") == ""
