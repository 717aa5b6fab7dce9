"""What the README says of a deployment is what the template makes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.template.deployment import Deploy
from tidemill.aws import metrics
from tools import cost

CALLS = {
    "EnqueueFunction": cost.MEASURED.enqueue,
    "ExecuteFunction": cost.MEASURED.execute,
    "ReclaimFunction": cost.MEASURED.reclaim,
    "ArchiveFunction": cost.MEASURED.archive,
}


@pytest.fixture(scope="module")
def readme(root: Path) -> str:
    return (root / "README.md").read_text(encoding="utf-8")


def rows(readme: str, head: str) -> list[tuple[list[str], str]]:
    """The rows of the table whose first column is called *head*: its names, and what the next column says."""
    _, _, table = readme.partition(f"\n| {head} | ")
    lines = table.partition("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    return [(re.findall(r"`(.+?)`", one[0]), one[1].strip("`")) for one in cells]


def test_every_parameter_is_told_with_its_default(readme: str, parameters: dict[str, Any]) -> None:
    told = {name: default for names, default in rows(readme, "parameter") for name in names}

    assert told == {name: str(parameter.get("Default", "")) for name, parameter in parameters.items()}


def test_every_alarm_is_told(readme: str, deploy: Deploy) -> None:
    told = {name for names, _ in rows(readme, "alarm") for name in names}

    assert told == deploy().of_type("AWS::CloudWatch::Alarm").keys()


def test_every_metric_is_told(readme: str) -> None:
    assert {name for names, _ in rows(readme, "metric") for name in names} == set(metrics.NAMES)


def test_the_cost_is_what_the_formula_says(readme: str) -> None:
    section = readme.partition(cost.BEGIN)[2].partition(cost.END)[0]

    assert section == f"\n{cost.render(cost.MEASURED)}\n", "run: make cost"


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
