"""The pages about a deployment say what the template makes."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.template.deployment import Deploy
from tidemill.aws import metrics
from tools import cost
from tools.pages import CAPACITY, read_page, read_section

CALLS = {
    "EnqueueFunction": cost.MEASURED.enqueue,
    "ExecuteFunction": cost.MEASURED.execute,
    "ReclaimFunction": cost.MEASURED.reclaim,
    "ArchiveFunction": cost.MEASURED.archive,
}


SETTINGS = "docs/reference/settings.md"
ALARMS = "docs/operate/alarms.md"
OF_POWERTOOLS = {"POWERTOOLS_SERVICE_NAME", "POWERTOOLS_METRICS_NAMESPACE"}


def read_rows(page: str, head: str) -> list[tuple[list[str], str]]:
    """Return the rows of the table whose first column is called *head*: its names, and the cell after them."""
    _, _, table = read_page(page).partition(f"\n| {head} | ")
    lines = table.partition("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    return [(re.findall(r"`(.+?)`", row[0]), row[1].strip("`")) for row in cells]


def read_names(page: str, head: str) -> set[str]:
    return {name for names, _ in read_rows(page, head) for name in names}


def test_the_page_has_every_parameter_and_its_default(parameters: dict[str, Any]) -> None:
    shown = {name: default for names, default in read_rows(SETTINGS, "parameter") for name in names}

    assert shown == {name: str(parameter.get("Default", "")) for name, parameter in parameters.items()}


def test_the_page_has_every_variable_of_the_template(deploy: Deploy) -> None:
    functions = deploy().of_type("AWS::Lambda::Function").values()
    variables = {name for function in functions for name in function["Environment"]["Variables"]}

    assert variables - read_names(SETTINGS, "variable") == OF_POWERTOOLS


def test_the_page_has_every_alarm(deploy: Deploy) -> None:
    assert read_names(ALARMS, "alarm") == deploy().of_type("AWS::CloudWatch::Alarm").keys()


def test_the_page_has_every_metric() -> None:
    assert read_names(ALARMS, "metric") == set(metrics.NAMES)


def test_the_cost_is_what_the_formula_says() -> None:
    section = read_section(CAPACITY.read_text(encoding="utf-8"), command=cost.COMMAND)

    assert section == cost.render(cost.MEASURED), "run: make cost"


def test_the_formula_counts_what_is_deployed(deploy: Deploy) -> None:
    stack = deploy()
    alarms = stack.of_type("AWS::CloudWatch::Alarm").values()
    watched = [sum("MetricStat" in query for query in alarm.get("Metrics", ())) or 1 for alarm in alarms]
    functions = stack.of_type("AWS::Lambda::Function")

    assert sum(watched) == cost.ALARM_METRICS
    assert (len(metrics.NAMES), len(metrics.GAUGES)) == (cost.METRICS, cost.GAUGES)
    assert {name: call.memory_mb for name, call in CALLS.items()} == {
        name: functions[name]["MemorySize"] for name in CALLS
    }


def test_a_share_of_a_processor_makes_an_invocation_longer() -> None:
    call = cost.Call(memory_mb=512, cpu_ms=10, wait_ms=5, log_bytes=0)

    assert call.billed_ms == pytest.approx(5 + 10 * 1769 / 512)
    assert cost.Call(memory_mb=3008, cpu_ms=10, wait_ms=5, log_bytes=0).billed_ms == 15


def test_tasks_that_wait_share_an_executor_and_those_that_compute_do_not() -> None:
    own_sec = cost.MEASURED.task_cpu_ms / 1000 * 1769 / 1024

    assert cost.busy_sec(cost.MEASURED, task_sec=16, concurrency=16) == 1
    assert cost.busy_sec(cost.MEASURED, task_sec=0, concurrency=16) == pytest.approx(own_sec)
