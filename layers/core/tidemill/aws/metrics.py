"""Metrics for CloudWatch: their names, and the counts of an invocation as lines of the embedded metric format."""

from __future__ import annotations

import json
import math
import re
import time
from collections import Counter as Numbers
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Final, Literal, TypeAlias, get_args

from aws_lambda_powertools.metrics.functions import is_metrics_disabled
from aws_lambda_powertools.metrics.provider.cloudwatch_emf.cloudwatch import AmazonCloudWatchEMFProvider

from tidemill.model import Failed, Retried, Snoozed, Succeeded, Task
from tidemill.runner.output import stdout
from tidemill.store.settle import Settlement

NAMESPACE: Final = "Tidemill"
DIMENSION: Final = "service"
"""The only dimension, the name of the stack: values that callers choose would make metrics without end."""

Counter: TypeAlias = Literal[
    "claimed",  # taken under a lease
    "done",
    "failed",  # for good, for any reason
    "retries_total",  # failed attempts before another attempt
    "retry_exhausted_total",  # failed for good with no retry left, by the last attempt or with its worker
    "recycled",  # executors that ended their process on purpose, without a failure; an error to Lambda
    "failed_exports",  # puts that failed, and dead letters that the bucket refused
    "missing_indexes",  # indexes that reclaim could not make, by each of its runs
    "registration_faults",  # of task modules and registrations, by each invocation of execute
]
"""A number that is added up over a period; written only above zero."""

Sample: TypeAlias = Literal[
    "run_time_seconds",  # of each attempt that ended
    "retry_latency_seconds",  # of each retry: time spent in back-off, from the failed attempt to its due time
    "lateness_seconds",  # of each attempt of a retry: from its due time to its start
]
"""A value of each attempt, so that CloudWatch can compute percentiles."""

Gauge: TypeAlias = Literal[
    "due_fresh",
    "due_retry",
    "oldest_due_age_seconds",
    "dead_letters",
    "clock_skew_seconds",  # the clock of the database minus the clock of this machine
]
"""A current level, written by each reclaim run, also at zero."""

Name: TypeAlias = Counter | Sample | Gauge

COUNTERS: Final[tuple[Counter, ...]] = get_args(Counter)
SAMPLES: Final[tuple[Sample, ...]] = get_args(Sample)
GAUGES: Final[tuple[Gauge, ...]] = get_args(Gauge)
NAMES: Final[tuple[Name, ...]] = (*COUNTERS, *SAMPLES, *GAUGES)

EMIT_INTERVAL_SEC: Final = 60.0
"""Limit of the time that counts wait in memory: a killed process loses them."""

MAX_VALUES: Final = 100
"""Limit of CloudWatch for the values of a metric in one line."""

MAX_SERVICE: Final = 1024

_SIGNED: Final = "clock_skew_seconds"
_DATED_BY_START: Final[frozenset[Name]] = frozenset({"recycled"})
"""Dated by the start of the invocation, as Lambda dates the error; that may lie in an earlier period."""

_DIGITS: Final = 3  # of seconds: the clock of the database has milliseconds
_REPORT_COUNTERS: Final[Mapping[str, Counter]] = {
    "claimed": "claimed",
    "quarantined": "failed",
    "expired": "failed",
    "export_failed": "failed_exports",
    "export_refused": "failed_exports",
}
"""Counts in reports that are not in any settlement, and their metrics."""


class Counts:
    """Counts of one invocation that are not written yet. No method raises: a metric must not fail a task.

    Args:
        write: Writes a line.
        monotonic: The clock for the next line.
        wall: The clock for the start of the invocation, which is now: seconds since 1970.
        emit_interval_sec: Limit of the time that counts wait in memory.
    """

    def __init__(
        self,
        write: Callable[[str], object],
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        emit_interval_sec: float = EMIT_INTERVAL_SEC,
    ) -> None:
        self._write = write
        self._emit_interval_sec = emit_interval_sec
        self._monotonic = monotonic
        self._started_at = wall()
        self._values: defaultdict[Name, list[float]] = defaultdict(list)
        self._counted: Numbers[str] = Numbers()
        self._report: Mapping[str, Any] | None = None
        self._next_emit_at = monotonic() + emit_interval_sec

    def count(self, name: Counter, number: int = 1) -> None:
        """Add *number* to a counter."""
        with suppress(Exception):
            if math.isfinite(number) and number > 0:
                self._values[name] = [sum(self._values[name]) + number]

    def sample(self, name: Sample, value: float) -> None:
        """Add a value; a negative value counts as zero, and a value that is not finite is left out."""
        with suppress(Exception):
            self._values[name] += _round_value(name, value)

    def gauge(self, name: Gauge, value: float) -> None:
        """Set a level; drop the earlier value."""
        with suppress(Exception):
            self._values[name] = _round_value(name, value)

    def attempt(self, settlement: Settlement) -> None:
        """Count an attempt after the write of its outcome."""
        with suppress(Exception):
            for counter in find_counters(settlement):
                self.count(counter)
            for name, value in measure_attempt(settlement).items():
                self.sample(name, value)

    def count_report(self, report: Mapping[str, Any]) -> None:
        """Count the growth of *report* since the last call; write the counts if their time has come."""
        with suppress(Exception):
            if report is not self._report:
                self._report = report
                self._counted.clear()
            for field, name in _REPORT_COUNTERS.items():
                if field in report:
                    self.count(name, report[field] - self._counted[field])
                    self._counted[field] = report[field]
            if self._monotonic() >= self._next_emit_at:
                self.emit()

    def emit(self) -> None:
        """Write the counts since the last time, if any."""
        with suppress(Exception):
            self._next_emit_at = self._monotonic() + self._emit_interval_sec
            lines = list(self._make_lines())
            self._values.clear()
            for line in lines:
                self._write(line)

    def _make_lines(self) -> Iterator[str]:
        dated_by_start = {name: values for name, values in self._values.items() if name in _DATED_BY_START}
        yield from _make_lines({name: values for name, values in self._values.items() if name not in dated_by_start})
        yield from _make_lines(dated_by_start, at=self._started_at)


@contextmanager
def counting(*, apart: bool = False, emit_interval_sec: float = EMIT_INTERVAL_SEC) -> Iterator[Counts]:
    """Yield the counts of one invocation; write the rest at its end, also after an error.

    Counts wait in memory for at most *emit_interval_sec*, while the invocation reports them.

    *apart* is for invocations that run task functions. A function may have printed half a line, and CloudWatch finds
    no metric behind it, so lines begin with a newline. After a whole line the newline makes an empty log event of 27
    bytes, which has a price: little beside a lost metric, too much in functions that run no foreign code.
    """
    write = stdout()
    counts = Counts((lambda line: write("\n" + line)) if apart else write, emit_interval_sec=emit_interval_sec)
    try:
        yield counts
    finally:
        counts.emit()


def find_counters(settlement: Settlement) -> tuple[Counter, ...]:
    """Return the counters that an attempt raises by 1."""
    match settlement.outcome:
        case Succeeded():
            return ("done",)
        case Retried():
            return ("retries_total",)
        case Failed(reason="exhausted" | "worker_lost"):
            return ("failed", "retry_exhausted_total")
        case Failed():
            return ("failed",)
        case _:
            return ()


def measure_attempt(settlement: Settlement) -> dict[Sample, float]:
    """Return the times of an attempt in seconds; none if it never started, or was lost with its worker."""
    run, task = settlement.run, settlement.task
    if run is None or settlement.lost:
        return {}
    times: dict[Sample, timedelta] = {"run_time_seconds": run.duration}
    if isinstance(task, Task) and task.lane == "retry":
        times["lateness_seconds"] = run.started_at - task.due_at
        if task.attempt_log and not isinstance(settlement.outcome, Snoozed):  # a snoozed attempt does not count
            failed = task.attempt_log[-1]
            times["retry_latency_seconds"] = (
                task.due_at - failed.started_at - timedelta(milliseconds=failed.duration_ms)
            )
    return {name: time.total_seconds() for name, time in times.items()}


def _round_value(name: Name, value: float) -> list[float]:
    if not math.isfinite(value):
        return []
    return [round(float(value) if name == _SIGNED else max(float(value), 0.0), _DIGITS)]


def _make_lines(values: Mapping[Name, list[float]], *, at: float | None = None) -> Iterator[str]:
    """Yield lines of at most `MAX_VALUES` values of each metric, dated now or *at* (seconds since 1970)."""
    if is_metrics_disabled():
        return
    for start in range(0, max(map(len, values.values()), default=0), MAX_VALUES):
        parts = {name: numbers[start : start + MAX_VALUES] for name, numbers in values.items()}
        yield _make_line({name: part for name, part in parts.items() if part}, at=at)


def _make_line(values: Mapping[Name, list[float]], *, at: float | None) -> str:
    provider = AmazonCloudWatchEMFProvider()  # reads the environment
    provider.namespace, provider.service = _clean_namespace(provider.namespace), _clean_service(provider.service)
    metrics = {name: {"Unit": _find_unit(name), "Value": numbers} for name, numbers in values.items()}
    content = provider.serialize_metric_set(metrics=metrics, dimensions={DIMENSION: provider.service})
    if at is not None:
        content["_aws"]["Timestamp"] = int(at * 1000)
    return json.dumps(content, allow_nan=False, separators=(",", ":")) + "\n"


def _find_unit(name: Name) -> str:
    return "Seconds" if name.endswith("_seconds") else "Count"


def _clean_namespace(given: str | None) -> str:
    return given if given is not None and re.fullmatch(r"[\w.\-/#]{1,255}", given, re.ASCII) else NAMESPACE


def _clean_service(given: str | None) -> str:
    """Return a value that CloudWatch accepts: printable ASCII, not empty, no leading colon or space."""
    plain = re.sub(r"[^ -~]", "_", given or "").lstrip(" :").rstrip()[:MAX_SERVICE]
    return plain or "tidemill"
