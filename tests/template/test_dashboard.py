"""The dashboard: is it keeping up, is it failing, why; drawn from what is there."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from itertools import combinations
from typing import Any

import pytest
from bson import encode
from bson.raw_bson import RawBSONDocument

from tests.builders import document
from tests.cloudformation.intrinsics import Stack
from tests.template.deployment import Deploy
from tidemill.aws import metrics
from tidemill.documents import read_task
from tidemill.executor import outcomes
from tidemill.model import Failed, Failure, Run
from tidemill.store.settle import Settlement

COLUMNS = 24
QUESTIONS = ["## Is it keeping up?", "## Is it failing?", "## Why?"]


def body(stack: Stack) -> dict[str, Any]:
    [dashboard] = stack.of_type("AWS::CloudWatch::Dashboard").values()
    found: dict[str, Any] = json.loads(dashboard["DashboardBody"])
    return found


@pytest.fixture(scope="module")
def stack(deploy: Deploy) -> Stack:
    return deploy(name="orders", MaxExecutors=7)


@pytest.fixture(scope="module")
def widgets(stack: Stack) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = body(stack)["widgets"]
    return found


def of_kind(widgets: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [widget["properties"] for widget in widgets if widget["type"] == kind]


def drawn(widgets: list[dict[str, Any]]) -> list[list[str]]:
    """Return every metric drawn, without what says how."""
    lines = [line for graph in of_kind(widgets, "metric") for line in graph["metrics"]]
    return [[part for part in line if isinstance(part, str)] for line in lines]


def test_a_dashboard_can_be_left_out(deploy: Deploy) -> None:
    assert deploy(Dashboard="false").of_type("AWS::CloudWatch::Dashboard") == {}


def test_two_stacks_of_an_account_have_two_dashboards_and_so_have_two_regions(
    deploy: Deploy, resources: dict[str, Any]
) -> None:
    names = [
        dashboard["DashboardName"]
        for name in ("orders", "mails")
        for dashboard in deploy(name=name).of_type("AWS::CloudWatch::Dashboard").values()
    ]

    assert names == ["orders-eu-central-1", "mails-eu-central-1"]
    assert resources["Overview"]["Properties"]["DashboardName"] == {"Fn::Sub": "${AWS::StackName}-${AWS::Region}"}


def test_it_answers_three_questions_in_turn(widgets: list[dict[str, Any]]) -> None:
    headings = [widget for widget in widgets if widget["type"] == "text"]

    assert [heading["properties"]["markdown"] for heading in sorted(headings, key=lambda one: one["y"])] == QUESTIONS


def test_no_two_widgets_lie_upon_each_other(widgets: list[dict[str, Any]]) -> None:
    def cells(widget: dict[str, Any]) -> set[tuple[int, int]]:
        rows = range(widget["y"], widget["y"] + widget["height"])
        return {(x, y) for y in rows for x in range(widget["x"], widget["x"] + widget["width"])}

    assert [(a, b) for a, b in combinations(widgets, 2) if cells(a) & cells(b)] == []
    assert all(widget["x"] + widget["width"] <= COLUMNS for widget in widgets)


def test_each_widget_says_what_it_shows_and_is_of_this_region(widgets: list[dict[str, Any]]) -> None:
    shown = [*of_kind(widgets, "metric"), *of_kind(widgets, "log")]

    assert all(one["title"] for one in shown)
    assert {one["region"] for one in shown} == {"eu-central-1"}
    assert {one["type"] for one in widgets} == {"alarm", "text", "metric", "log"}


def test_every_metric_there_is_is_drawn_and_no_other(widgets: list[dict[str, Any]]) -> None:
    ours = [line for line in drawn(widgets) if line[0] == metrics.NAMESPACE]

    assert {name for _, name, *_ in ours} == set(metrics.NAMES)
    assert {tuple(dimension) for _, _, *dimension in ours} == {(metrics.DIMENSION, "orders")}


def test_what_is_drawn_of_aws_is_of_functions_and_queues_of_the_stack(
    stack: Stack, widgets: list[dict[str, Any]]
) -> None:
    functions = {stack.name_of(name) for name in stack.of_type("AWS::Lambda::Function")}
    others = [line for line in drawn(widgets) if line[0] != metrics.NAMESPACE]
    queue = stack.resolved({"Fn::GetAtt": ["EnqueueFailures", "QueueName"]})

    for namespace, name, *dimension in others:
        assert (namespace, name) in {
            ("AWS/Lambda", "Errors"),
            ("AWS/Lambda", "Invocations"),
            ("AWS/Lambda", "Duration"),
            ("AWS/Lambda", "ConcurrentExecutions"),
            ("AWS/Lambda", "Throttles"),
            ("AWS/Lambda", "AsyncEventsDropped"),
            ("AWS/Lambda", "DestinationDeliveryFailures"),
            ("AWS/Lambda", "RecursiveInvocationsDropped"),
            ("AWS/ApiGateway", "5XXError"),
            ("AWS/SQS", "ApproximateNumberOfMessagesVisible"),
        }
        if dimension[0] == "FunctionName":
            assert dimension[1] in functions
        else:
            assert dimension in (["QueueName", queue], ["ApiName", "orders"])
    assert {line[3] for line in others if line[1] == "Throttles"} == functions
    assert {line[3] for line in others if line[1] == "Errors"} == functions


def test_what_alarms_see_of_aws_is_drawn(stack: Stack, widgets: list[dict[str, Any]]) -> None:
    queries = [query for one in stack.of_type("AWS::CloudWatch::Alarm").values() for query in one.get("Metrics", ())]
    seen = [query["MetricStat"]["Metric"] for query in queries if "MetricStat" in query]

    assert {(one["Namespace"], one["MetricName"], one["Dimensions"][0]["Value"]) for one in seen} <= {
        (line[0], line[1], line[3]) for line in drawn(widgets)
    }


def test_times_are_shown_as_percentiles(widgets: list[dict[str, Any]]) -> None:
    lines = [line for graph in of_kind(widgets, "metric") for line in graph["metrics"] if line[1] in metrics.SAMPLES]

    assert {(line[1], line[-1]["stat"]) for line in lines} == {
        ("run_time_seconds", "p50"),
        ("run_time_seconds", "p99"),
        ("lateness_seconds", "p50"),
        ("lateness_seconds", "p90"),
        ("retry_latency_seconds", "p50"),
        ("retry_latency_seconds", "p90"),
    }


def test_counters_are_summed_and_gauges_are_not(widgets: list[dict[str, Any]]) -> None:
    for graph in of_kind(widgets, "metric"):
        for line in graph["metrics"]:
            how = line[-1] if isinstance(line[-1], dict) else {}
            if line[1] in metrics.COUNTERS:
                assert how.get("stat", graph["stat"]) == "Sum"
            if line[1] in metrics.GAUGES:
                assert how.get("stat", graph["stat"]) in {"Maximum", "Average"}


def test_the_executors_are_shown_against_how_many_there_may_be(widgets: list[dict[str, Any]]) -> None:
    [graph] = [one for one in of_kind(widgets, "metric") if "annotations" in one]

    assert graph["metrics"][0][1] == "ConcurrentExecutions"
    assert graph["annotations"]["horizontal"] == [{"label": "MaxExecutors", "value": 7}]


def test_all_alarms_are_shown(stack: Stack, widgets: list[dict[str, Any]]) -> None:
    [shown] = of_kind(widgets, "alarm")

    assert sorted(shown["alarms"]) == sorted(map(stack.arn, stack.of_type("AWS::CloudWatch::Alarm")))


def test_the_reasons_are_looked_for_where_functions_log(stack: Stack, widgets: list[dict[str, Any]]) -> None:
    groups = {name: stack.name_of(name) for name in stack.of_type("AWS::Logs::LogGroup")}
    looked = [set(re.findall(r"SOURCE '([^']+)'", one["query"])) for one in of_kind(widgets, "log")]

    assert looked[:2] == [{groups["ExecuteLogs"], groups["ReclaimLogs"]}] * 2
    assert looked[2:] == [set(groups.values())]


def test_the_reasons_are_made_of_what_is_logged_of_an_attempt(widgets: list[dict[str, Any]]) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    task = read_task(RawBSONDocument(encode(document(now, status="processing", attempts=1))))
    outcome = Failed(failure=Failure(message="m", code="c"), reason="exhausted")
    run = Run(started_at=now, duration=timedelta(0), status="failed")
    told = outcomes.log_fields(Settlement(task=task, outcome=outcome, run=run))
    by_task, latest, _ = of_kind(widgets, "log")

    assert {"task_name", "code", "task_id"} <= told.keys()
    assert "count_distinct(task_id) as tasks by task_name, code" in by_task["query"]
    [fields] = re.findall(r"fields @timestamp, ([^|]+) \|", latest["query"])
    assert set(fields.split(", ")) <= told.keys()


def test_what_the_runtime_and_lambda_say_is_shown_beside_what_functions_say(widgets: list[dict[str, Any]]) -> None:
    """Of an error the runtime has a line without ``message``, of a process killed Lambda one with ``record.status``."""
    query = of_kind(widgets, "log")[-1]["query"]

    assert "not (ispresent(message) and message = 'attempt')" in query
    assert "or record.status in ['error', 'failure', 'timeout']" in query
    assert "coalesce(message, errorType, record.status) as what, coalesce(reason, errorMessage) as why" in query
