"""What is counted for CloudWatch, and the lines that tell it."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import pytest

from tests.emf import metrics_in
from tests.fixtures import T0
from tests.handlers.calls import ROOT, strict
from tests.unit.make import Moved, a_claimed_task
from tidemill.aws import metrics
from tidemill.aws.metrics import (
    COUNTERS,
    EMIT_INTERVAL_SEC,
    GAUGES,
    MAX_VALUES,
    NAMES,
    SAMPLES,
    Counts,
    find_counters,
    measure_attempt,
)
from tidemill.model import (
    Attempt,
    Cancelled,
    Failed,
    Failure,
    Malformed,
    Outcome,
    Reason,
    Retried,
    Run,
    Snoozed,
    Succeeded,
)
from tidemill.runner import output
from tidemill.store.settle import Settlement

BEGAN = 1_700_000_000.25
BROKE = Failure(message="S3cr3t", code="ValueError")
RUN = Run(started_at=T0, duration=timedelta(milliseconds=1500), status="failed")


class Told:
    """Counts of one invocation, and the lines they have become."""

    def __init__(self) -> None:
        self.time = Moved()
        self.text: list[str] = []
        self.counts = Counts(self.text.append, monotonic=self.time, wall=lambda: BEGAN)

    def lines(self) -> list[dict[str, Any]]:
        self.counts.emit()
        told, self.text[:] = "".join(self.text), []
        assert told == "" or told.endswith("\n")
        return [strict(line) for line in told.splitlines()]

    def values(self) -> dict[str, list[float]]:
        return {name: line[name] for line in self.lines() for name in metrics_in(line)}


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("POWERTOOLS_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def told() -> Told:
    return Told()


def settled(outcome: Outcome, *, run: Run | None = RUN, **how: Any) -> Settlement:
    return Settlement(task=a_claimed_task(), outcome=outcome, run=run, **how)


def test_there_are_eighteen_metrics_at_most_with_names_for_cloudwatch() -> None:
    assert len(NAMES) == len(set(NAMES)) <= 18
    assert set(NAMES) == {*COUNTERS, *SAMPLES, *GAUGES}
    assert all(re.fullmatch("[a-z_]+", name) for name in NAMES)


def test_nothing_counted_is_nothing_told(told: Told, recwarn: pytest.WarningsRecorder) -> None:  # F84
    told.counts.count("done", 0)
    told.counts.count_report({"claimed": 0, "quarantined": 0})

    assert told.lines() == []
    assert not recwarn.list


def test_a_line_is_of_the_stack_in_its_namespace(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POWERTOOLS_SERVICE_NAME", "my-stack")
    monkeypatch.setenv("POWERTOOLS_METRICS_NAMESPACE", "Other/Name")
    told.counts.count("done")

    [line] = told.lines()

    assert (line["service"], line["_aws"]["CloudWatchMetrics"][0]["Namespace"]) == ("my-stack", "Other/Name")
    assert line["_aws"]["CloudWatchMetrics"][0]["Metrics"] == [{"Name": "done", "Unit": "Count"}]
    assert line["_aws"]["Timestamp"] > 1.7e12


@pytest.mark.parametrize(
    ("given", "service"),
    [
        (None, "tidemill"),
        ("", "tidemill"),
        ("  ", "tidemill"),
        (":", "tidemill"),
        ("a-stack", "a-stack"),
        (":a b", "a b"),
        (" : a", "a"),
        ("envoi-é😀", "envoi-__"),
        ("a\nb\x7f", "a_b_"),
        ("x" * 2000, "x" * 1024),
    ],
)
def test_a_stack_of_any_name_is_one_that_cloudwatch_takes(  # F83
    told: Told, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder, given: str | None, service: str
) -> None:
    if given is not None:
        monkeypatch.setenv("POWERTOOLS_SERVICE_NAME", given)
    told.counts.count("done")

    [line] = told.lines()

    assert line["service"] == service
    assert not recwarn.list


@pytest.mark.parametrize("given", ["", " ", "é", "x" * 256, ":a", "AWS\n"])
def test_a_namespace_that_cloudwatch_refuses_is_not_taken(
    told: Told, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setenv("POWERTOOLS_METRICS_NAMESPACE", given)
    told.counts.count("done")

    [line] = told.lines()

    assert line["_aws"]["CloudWatchMetrics"][0]["Namespace"] == metrics.NAMESPACE == "Tidemill"


def test_metrics_can_be_switched_off(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POWERTOOLS_METRICS_DISABLED", "true")
    told.counts.count("done")

    assert told.lines() == []


def test_the_sums_of_250_attempts_are_right_and_no_line_holds_too_many(told: Told) -> None:  # F84
    durations = [number / 8 for number in range(250)]
    for duration in durations:
        told.counts.attempt(settled(Succeeded(result=None), run=Run(
            started_at=T0, duration=timedelta(seconds=duration), status="succeeded"
        )))  # fmt: skip

    lines = told.lines()

    names = [metrics_in(line) for line in lines]
    assert names == [["done", "run_time_seconds"], ["run_time_seconds"], ["run_time_seconds"]]
    assert lines[0]["done"] == [250]
    assert [value for line in lines for value in line["run_time_seconds"]] == durations
    assert told.lines() == []


@pytest.mark.parametrize("count", [1, MAX_VALUES - 1, MAX_VALUES, MAX_VALUES + 1])
def test_lines_are_as_many_as_it_takes(told: Told, count: int) -> None:
    for _ in range(count):
        told.counts.sample("run_time_seconds", 1.0)

    lines = told.lines()

    assert len(lines) == math.ceil(count / MAX_VALUES)
    assert sum(sum(line["run_time_seconds"]) for line in lines) == count


def test_what_lambda_counts_by_the_start_of_an_invocation_is_dated_by_it(told: Told) -> None:
    """``recycled`` is taken off Lambda's errors, period by period: both must fall into the same one."""
    told.counts.count("done")
    told.counts.count("recycled")

    done, recycled = told.lines()

    assert (metrics_in(done), metrics_in(recycled)) == (["done"], ["recycled"])
    assert recycled["_aws"]["Timestamp"] == BEGAN * 1000
    assert done["_aws"]["Timestamp"] > BEGAN * 1000 + 60_000


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None, "1", [], 10**400])
def test_what_is_no_number_is_not_told(told: Told, value: Any) -> None:  # F84
    told.counts.sample("run_time_seconds", value)
    told.counts.gauge("due_fresh", value)
    told.counts.count("done", value)

    assert told.lines() == []


def test_nothing_is_below_zero_but_a_clock(told: Told) -> None:
    told.counts.sample("lateness_seconds", -0.25)
    told.counts.gauge("due_retry", -1)
    told.counts.gauge("clock_skew_seconds", -0.25)
    told.counts.count("done", -3)

    assert told.values() == {"lateness_seconds": [0], "due_retry": [0], "clock_skew_seconds": [-0.25]}


def test_a_gauge_is_told_once_as_it_is_last_and_zero_too(told: Told) -> None:
    told.counts.gauge("due_fresh", 5)
    told.counts.gauge("due_fresh", 0)

    assert told.values() == {"due_fresh": [0]}


@pytest.mark.parametrize(
    ("outcome", "counters"),
    [
        (Succeeded(result=None), ("done",)),
        (Retried(failure=BROKE, next_retry_at=T0), ("retries_total",)),
        (Snoozed(until=T0), ()),
        (Cancelled(), ()),
        *(
            (Failed(failure=BROKE, reason=reason), ("failed", "retry_exhausted_total"))
            for reason in ("exhausted", "worker_lost")
        ),
        *(
            (Failed(failure=BROKE, reason=reason), ("failed",))
            for reason in sorted({*get_args(Reason)} - {"exhausted", "worker_lost"})
        ),
    ],
)
def test_each_outcome_has_its_counters(told: Told, outcome: Outcome, counters: Any) -> None:
    settlement = settled(outcome, run=None)

    told.counts.attempt(settlement)

    assert find_counters(settlement) == counters
    assert told.values() == {name: [1] for name in counters}


def test_an_attempt_has_its_time_and_one_of_a_retry_its_delay() -> None:
    late = RUN.started_at + timedelta(seconds=2)
    runs = [RUN, Run(started_at=late, duration=timedelta(0), status="succeeded")]
    fresh, retry = (a_claimed_task(lane=lane, due_at=T0) for lane in ("fresh", "retry"))

    found = [
        measure_attempt(Settlement(task=task, outcome=Cancelled(), run=run)) for task in (fresh, retry) for run in runs
    ]

    assert found == [
        {"run_time_seconds": 1.5},
        {"run_time_seconds": 0.0},
        {"run_time_seconds": 1.5, "lateness_seconds": 0.0},
        {"run_time_seconds": 0.0, "lateness_seconds": 2.0},
    ]


def test_the_time_in_back_off_is_from_the_end_of_the_failed_attempt_to_the_due_time() -> None:
    # S01
    failed = Attempt(attempt=1, status="failed", started_at=T0, duration_ms=1500, note="")
    lost = Attempt(attempt=2, status="lost", started_at=T0 + timedelta(minutes=1), duration_ms=30_000, note="")
    due_at = T0 + timedelta(minutes=3)
    run = replace(RUN, started_at=due_at + timedelta(seconds=2))

    found = [
        measure_attempt(
            Settlement(
                task=replace(a_claimed_task(lane="retry", due_at=due_at), attempt_log=log), outcome=outcome, run=run
            )
        )
        for log, outcome in (
            ((failed,), Cancelled()),
            ((failed, lost), Cancelled()),
            ((failed,), Snoozed(until=T0)),  # the attempt does not count
            ((), Cancelled()),  # adopted from another writer
        )
    ]

    assert [times.get("retry_latency_seconds") for times in found] == [178.5, 90.0, None, None]
    assert {times["lateness_seconds"] for times in found} == {2.0}


def test_an_attempt_that_never_started_or_never_ended_took_no_time() -> None:
    broken = Malformed(id=1, problem="x", lease=None)
    failed = Failed(failure=BROKE, reason="malformed")

    assert measure_attempt(settled(failed, run=None)) == {}
    assert measure_attempt(settled(failed, lost=True)) == {}
    assert measure_attempt(Settlement(task=broken, outcome=failed)) == {}
    assert measure_attempt(settled(failed, crashed=True)) == {"run_time_seconds": 1.5}


def test_a_report_that_grows_is_counted_once(told: Told) -> None:
    report = {"claimed": 2, "quarantined": 1, "done": 9}
    for claimed in (2, 2, 7):
        report["claimed"] = claimed
        told.counts.count_report(report)

    assert told.values() == {"claimed": [7], "failed": [1]}
    told.counts.count_report(report | {"claimed": 7})
    assert told.values() == {"claimed": [7], "failed": [1]}, "the report of another try begins at zero"


def test_what_was_counted_waits_for_a_minute_and_no_longer(told: Told) -> None:
    report = {"claimed": 1}
    told.counts.count_report(report)
    told.time.now += EMIT_INTERVAL_SEC - 1
    told.counts.count_report(report)
    assert told.text == []

    told.time.now += 1
    told.counts.count_report(report)
    told.counts.count_report(report)

    assert len(told.text) == 1
    report["claimed"] = 2
    told.time.now += EMIT_INTERVAL_SEC - 1
    told.counts.count_report(report)
    assert len(told.text) == 1
    told.counts.emit()
    told.text.pop()
    told.time.now += EMIT_INTERVAL_SEC
    told.counts.count_report(report)
    assert len(told.text) == 1, "there is nothing new"


def test_trouble_with_metrics_is_nobodys_trouble(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:  # F83
    def fails(*_: Any, **__: Any) -> Any:
        raise RecursionError

    told.counts.count("done")
    monkeypatch.setenv("POWERTOOLS_METRICS_DISABLED", "neither yes nor no")
    assert told.lines() == []
    monkeypatch.delenv("POWERTOOLS_METRICS_DISABLED")
    assert told.values() == {"done": [1]}, "it is told as soon as that goes"

    silent = Counts(fails)
    silent.count("done")
    silent.emit()
    silent.attempt(None)  # type: ignore[arg-type]
    silent.count_report(None)  # type: ignore[arg-type]


@pytest.fixture
def printed(capfd: pytest.CaptureFixture[str]) -> Iterator[Callable[[], str]]:
    """What has come to standard output since the last call."""
    output.stdout.cache_clear()  # it writes to what was standard output at its first call
    yield lambda: capfd.readouterr().out
    output.stdout.cache_clear()


def test_the_rest_is_told_at_the_end_however_that_comes(printed: Callable[[], str]) -> None:  # F84
    for error in (ValueError, SystemExit, KeyboardInterrupt):
        with pytest.raises(error), metrics.counting() as counts:  # noqa: PT012 - it is what is tested
            for _ in range(10):
                counts.count("done")
            raise error
    with metrics.counting() as counts:
        counts.count("failed")

    lines = [strict(line) for line in printed().splitlines()]
    assert [{name: line[name] for name in metrics_in(line)} for line in lines] == [
        *({"done": [10]} for _ in range(3)),
        {"failed": [1]},
    ]


SPOIL = """
import io, os, sys
from tidemill.runner import output
write = output.stdout()
write("é" * 70_000 + chr(10))
sys.stdout = io.StringIO()
write("replaced" + chr(10))
sys.stdout = None
write("removed" + chr(10))
sys.__stdout__.close()
write("closed" + chr(10))
os.close(1)
assert os.open("/dev/null", os.O_WRONLY) == 1
write("taken" + chr(10))
"""


def test_standard_output_is_reached_whatever_a_function_did_to_it() -> None:
    ended = ran(SPOIL)

    assert ended.stdout.splitlines() == ["é" * 70_000, "replaced", "removed", "closed", "taken"]


@pytest.mark.parametrize(("apart", "start"), [(True, "\n"), (False, "{")])
def test_lines_stand_apart_from_what_others_have_printed_where_that_is_asked_for(
    printed: Callable[[], str], *, apart: bool, start: str
) -> None:
    with metrics.counting(apart=apart) as counts:
        counts.count("done")

    text = printed()
    assert (text[0], text[-1]) == (start, "\n")


REUSE = """
import os, sys
from tidemill.runner import output
write = output.stdout()
first, last = sys.argv[2:]
os.closerange(int(first), int(last))  # as a function does that makes a daemon
theirs = [os.open(sys.argv[1], os.O_CREAT | os.O_RDWR | os.O_APPEND) for _ in range(8)]
write("told" + chr(10))
"""


@pytest.mark.parametrize(
    ("closed", "told"),
    [
        (("64", "65"), "told\n"),
        (("3", "64"), "told\n"),  # standard output itself is left
        (("0", "3"), "told\n"),  # its copy is
        (("0", "64"), ""),
    ],
)
def test_a_file_that_has_got_the_number_of_standard_output_is_not_written_to(
    tmp_path: Path, closed: tuple[str, str], told: str
) -> None:
    ended = ran(REUSE, str(tmp_path / "theirs"), *closed)

    assert (tmp_path / "theirs").read_text() == ""
    assert ended.stdout == told


def test_a_process_without_standard_output_does_without() -> None:
    ended = ran(
        "import os; os.close(1)\nfrom tidemill.runner import output\noutput.stdout()('x'); os.write(2, b'fine')"
    )

    assert ended.stderr == "fine"


def ran(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"PYTHONPATH": str(ROOT / "layers/core")}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_line_shows_nothing_of_what_was_worked_on(told: Told) -> None:  # F81
    told.counts.attempt(
        Settlement(task=a_claimed_task(payload={"card": "4111"}), outcome=Failed(failure=BROKE, reason="exhausted"))
    )

    assert not {"4111", "S3cr3t"} & {word for line in told.lines() for word in re.findall(r"\w+", json.dumps(line))}
