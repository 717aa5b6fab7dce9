"""When the handlers are started, and which expressions the template lets through."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tidemill.errors import InvalidRequestError
from tidemill.indexes import OCCURRENCE_RETENTION
from tidemill.requests.events import read_direct

SCHEDULES: dict[str, tuple[object, str]] = {
    "ExecuteFunctionTick": ({"Ref": "ExecuteSchedule"}, "tick.json"),
    "ReclaimFunctionTick": ("rate(1 minute)", "reclaim.json"),
    "ArchiveFunctionTick": ("rate(5 minutes)", "archive.json"),
}
RECURRING = "EnqueueFunctionRecurringExample"
ACCEPTED = [
    "rate(1 minute)",
    "rate(2 minutes)",
    "rate(5 minutes)",
    "rate(10 minutes)",
    "rate(90 minutes)",
    "rate(1 hour)",
    "rate(12 hours)",
    "rate(1 day)",
    "rate(7 days)",
    "cron(0/5 * * * ? *)",
    "cron(*/5 * * * ? *)",
    "cron(0 8 1 * ? *)",
    "cron(15 10 ? * MON-FRI *)",
    "cron(0 9 ? * 2-6 *)",
    "cron(0,15,30,45 8-18 ? * MON,WED,FRI *)",
    "cron(0/10 8-18 ? * MON-FRI *)",
    "cron(5-59/10 0-23/2 1-31/2 1-12/3 ? 2025-2030/2)",
    "cron(00 08 L JAN-MAR,DEC ? 2026)",
    "cron(0 12 15W * ? *)",
    "cron(0 12 ? * 6L *)",
    "cron(0 12 ? * MON#1 *)",
    "cron(59 23 31 12 ? 2199)",
]
REFUSED = [
    "",
    "1 minute",
    "rate(0 minutes)",
    "rate(0 minute)",
    "rate(1 minutes)",
    "rate(5 minute)",
    "rate(1 hours)",
    "rate(2 day)",
    "rate(-1 minutes)",
    "rate(1.5 hours)",
    "rate(05 minutes)",
    "rate(10 seconds)",
    "rate(5minutes)",
    "rate( 5 minutes )",
    "rate(5 minutes) ",
    "Rate(5 minutes)",
    "rate(5 minutes)rate(5 minutes)",
    "at(2026-01-01T00:00:00)",
    "*/5 * * * *",
    "cron(*/5 * * * *)",
    "cron(0 8 * * * *)",
    "cron(0 8 ? * ? *)",
    "cron(0 8 1 * MON *)",
    "cron(0 8 * * MON *)",
    "cron(0 0 8 * * ? *)",
    "cron(0 8 * * ?)",
    "cron(60 * * * ? *)",
    "cron(* 24 * * ? *)",
    "cron(0 8 0 * ? *)",
    "cron(0 8 32 * ? *)",
    "cron(0 8 1 0 ? *)",
    "cron(0 8 1 13 ? *)",
    "cron(0 8 ? * 0 *)",
    "cron(0 8 ? * 8 *)",
    "cron(0 8 ? * MON#6 *)",
    "cron(0 8 ? * MONDAY *)",
    "cron(0 8 1 JANUARY ? *)",
    "cron(0 8 1 * ? 1969)",
    "cron(0 8 1 * ? 2200)",
    "cron(0/0 * * * ? *)",
    "cron(0/60 * * * ? *)",
    "cron(0, * * * ? *)",
    "cron(,0 * * * ? *)",
    "cron(5- * * * ? *)",
    "cron(? * * * ? *)",
    "cron(0 8 1 * ? *,)",
    "cron(0 8 1 * ? 2026,)",
    "cron(0  8 1 * ? *)",
    "cron( 0 8 1 * ? *)",
    "cron(0 8 1 * ? * )",
    "cron(0 8 1 * ? *)\n",
]


def test_these_are_all_schedules_there_are(resources: dict[str, Any]) -> None:
    assert {name for name, r in resources.items() if r["Type"] == "AWS::Scheduler::Schedule"} == {*SCHEDULES, RECURRING}


def test_the_example_of_a_recurring_task_is_off_until_somebody_enables_it(resources: dict[str, Any]) -> None:
    properties = resources[RECURRING]["Properties"]

    assert properties["State"] == "DISABLED"
    assert properties["ScheduleExpressionTimezone"] == "UTC"  # F33
    assert "Name" not in properties


def test_a_recurring_task_sends_its_sample_event_once_the_placeholders_are_filled_in(
    resources: dict[str, Any], parameters: dict[str, Any], root: Path
) -> None:
    properties = resources[RECURRING]["Properties"]
    sample = json.loads((root / "events" / "enqueue_recurring.json").read_text())
    filled_in = {
        "<aws.scheduler.schedule-arn>": sample["occurrence"]["schedule"],
        "<aws.scheduler.scheduled-time>": sample["occurrence"]["at"],
    }

    sent = properties["Target"]["Input"]
    with pytest.raises(InvalidRequestError):
        read_direct(json.loads(sent))  # as a rule of EventBridge would send it
    for placeholder, value in filled_in.items():
        sent = sent.replace(placeholder, value)

    assert json.loads(sent) == sample
    assert read_direct(json.loads(sent)).occurrence is not None
    assert properties["Target"]["Arn"] == {"Fn::GetAtt": ["EnqueueFunction", "Arn"]}
    assert re.fullmatch(parameters["ExecuteSchedule"]["AllowedPattern"], properties["ScheduleExpression"])


def test_a_recurring_task_is_delivered_again_for_a_day(resources: dict[str, Any]) -> None:
    retried = resources[RECURRING]["Properties"]["Target"]["RetryPolicy"]

    assert retried == {"MaximumRetryAttempts": 185, "MaximumEventAgeInSeconds": 86400}
    assert timedelta(seconds=retried["MaximumEventAgeInSeconds"]) < OCCURRENCE_RETENTION


def test_a_time_that_could_not_be_delivered_in_a_day_goes_on_in_the_queue_of_retries(resources: dict[str, Any]) -> None:
    aside = resources[RECURRING]["Properties"]["Target"]["DeadLetterConfig"]

    assert aside == {"Arn": {"Fn::GetAtt": ["EnqueueRetries", "Arn"]}}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_sends_its_sample_event_to_its_function(resources: dict[str, Any], root: Path, name: str) -> None:
    expression, event = SCHEDULES[name]
    properties = resources[name]["Properties"]

    assert properties["ScheduleExpression"] == expression
    assert properties["Target"]["Arn"] == {"Fn::GetAtt": [name.removesuffix("Tick"), "Arn"]}
    assert json.loads(properties["Target"]["Input"]) == json.loads((root / "events" / event).read_text())


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_tick_that_failed_is_left_to_the_next_one(resources: dict[str, Any], name: str) -> None:
    assert resources[name]["Properties"]["Target"]["RetryPolicy"] == {
        "MaximumRetryAttempts": 0,
        "MaximumEventAgeInSeconds": 60,
    }


@pytest.mark.parametrize("expression", ACCEPTED)
def test_an_expression_that_eventbridge_takes_is_accepted(parameters: dict[str, Any], expression: str) -> None:
    assert re.fullmatch(parameters["ExecuteSchedule"]["AllowedPattern"], expression)


@pytest.mark.parametrize("expression", REFUSED)
def test_an_expression_that_eventbridge_refuses_is_refused_before_the_deployment(
    parameters: dict[str, Any], expression: str
) -> None:
    assert not re.fullmatch(parameters["ExecuteSchedule"]["AllowedPattern"], expression)


def test_the_fixed_expressions_are_accepted_too(parameters: dict[str, Any]) -> None:
    fixed = [expression for expression, _ in SCHEDULES.values() if isinstance(expression, str)]

    assert all(re.fullmatch(parameters["ExecuteSchedule"]["AllowedPattern"], expression) for expression in fixed)
