"""What CloudWatch is told: the metrics by name, and lines of its embedded format for what an invocation counted."""

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

from tidemill.model import Failed, Retried, Succeeded, Task
from tidemill.output import stdout
from tidemill.settlement import Settlement

NAMESPACE: Final = "Tidemill"
DIMENSION: Final = "service"
"""The only one, the name of the stack: by anything that callers choose there would be metrics without end."""

Counter: TypeAlias = Literal[
    "claimed",  # taken under a lease
    "done",
    "failed",  # for good, for whatever reason
    "retries_total",  # failed attempts that another follows
    "retry_exhausted_total",  # failed for good with no retry left, by the last attempt or with its worker
    "recycled",  # executors that ended their process on purpose, and nothing had failed; an error to Lambda
    "failed_exports",  # puts that failed, and dead letters that the bucket refused
]
"""A number that is added up over a period; told only where it is not zero."""

Sample: TypeAlias = Literal[
    "run_time_seconds",  # of each attempt that came to an end
    "retry_latency_seconds",  # of each attempt of a retry: from when it was due to its start
]
"""A value of each attempt, so that CloudWatch makes percentiles of them."""

Gauge: TypeAlias = Literal[
    "due_fresh",
    "due_retry",
    "oldest_due_age_seconds",
    "dead_letters",
    "clock_skew_seconds",  # the database's clock less this machine's
]
"""How things stand, told by each run of reclaim, zero too."""

Name: TypeAlias = Counter | Sample | Gauge

COUNTERS: Final[tuple[Counter, ...]] = get_args(Counter)
SAMPLES: Final[tuple[Sample, ...]] = get_args(Sample)
GAUGES: Final[tuple[Gauge, ...]] = get_args(Gauge)
NAMES: Final[tuple[Name, ...]] = (*COUNTERS, *SAMPLES, *GAUGES)

EVERY_SEC: Final = 60.0
"""So long what was counted waits at most: it is lost with a process that is killed."""

MAX_VALUES: Final = 100
"""So many values of a metric CloudWatch takes in one line."""

MAX_SERVICE: Final = 1024

_SIGNED: Final = "clock_skew_seconds"
_OF_THE_START: Final[frozenset[Name]] = frozenset({"recycled"})
"""Dated as Lambda dates the error that it is: by when the invocation began, which may have been in another period."""

_DIGITS: Final = 3  # of seconds: milliseconds, which is what the database's clock shows
_COUNTED: Final[Mapping[str, Counter]] = {
    "claimed": "claimed",
    "quarantined": "failed",
    "expired": "failed",
    "export_failed": "failed_exports",
    "export_refused": "failed_exports",
}
"""What the reports count that no settlement tells of, and the metric it belongs to."""


class Counts:
    """What one invocation has counted and not told yet. Nothing here raises: no task fails for a number.

    Args:
        write: Takes a line.
        monotonic: Tells when a line is due.
        wall: Tells when the invocation began, which is now: seconds since 1970.
    """

    def __init__(
        self,
        write: Callable[[str], object],
        *,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._write = write
        self._monotonic = monotonic
        self._began = wall()
        self._values: defaultdict[Name, list[float]] = defaultdict(list)
        self._reported: Numbers[str] = Numbers()
        self._report: Mapping[str, Any] | None = None
        self._next = monotonic() + EVERY_SEC

    def count(self, name: Counter, number: int = 1) -> None:
        """Add *number* to a counter."""
        with suppress(Exception):
            if math.isfinite(number) and number > 0:
                self._values[name] = [sum(self._values[name]) + number]

    def sample(self, name: Sample, value: float) -> None:
        """Add one value; below zero it is zero, and what is no number is nothing."""
        with suppress(Exception):
            self._values[name] += _told(name, value)

    def gauge(self, name: Gauge, value: float) -> None:
        """Tell how things stand; what was told before is out of date."""
        with suppress(Exception):
            self._values[name] = _told(name, value)

    def attempt(self, settlement: Settlement) -> None:
        """Count an attempt whose outcome is written."""
        with suppress(Exception):
            for counter in counted(settlement):
                self.count(counter)
            for name, value in sampled(settlement).items():
                self.sample(name, value)

    def reported(self, report: Mapping[str, Any]) -> None:
        """Count what *report*, which may still grow, has got since the last time; tell what is due."""
        with suppress(Exception):
            if report is not self._report:
                self._report = report
                self._reported.clear()
            for field, name in _COUNTED.items():
                if field in report:
                    self.count(name, report[field] - self._reported[field])
                    self._reported[field] = report[field]
            if self._monotonic() >= self._next:
                self.emit()

    def emit(self) -> None:
        """Tell what was counted since the last time, if anything."""
        with suppress(Exception):
            self._next = self._monotonic() + EVERY_SEC
            lines = list(self._lines())
            self._values.clear()
            for line in lines:
                self._write(line)

    def _lines(self) -> Iterator[str]:
        of_the_start = {name: told for name, told in self._values.items() if name in _OF_THE_START}
        yield from _lines({name: told for name, told in self._values.items() if name not in of_the_start})
        yield from _lines(of_the_start, at=self._began)


@contextmanager
def counting(*, apart: bool = False) -> Iterator[Counts]:
    """Lend what counts for one invocation, and tell the rest of it at the end, however that comes.

    *apart* is for where foreign code runs: it may have printed half a line, and what is glued to that is no metric to
    CloudWatch. So lines begin with a newline. Where nothing was cut off, that leaves an empty line, which is an event
    of its own and 27 bytes to pay for: too much where nobody else prints, and little beside a metric that is lost.
    """
    write = stdout()
    counts = Counts((lambda line: write("\n" + line)) if apart else write)
    try:
        yield counts
    finally:
        counts.emit()


def counted(settlement: Settlement) -> tuple[Counter, ...]:
    """Return the counters that an attempt adds one to."""
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


def sampled(settlement: Settlement) -> dict[Sample, float]:
    """Return what an attempt took, in seconds: nothing where it never started, or vanished with its worker."""
    run, task = settlement.run, settlement.task
    if run is None or settlement.lost:
        return {}
    times: dict[Sample, timedelta] = {"run_time_seconds": run.duration}
    if isinstance(task, Task) and task.lane == "retry":
        times["retry_latency_seconds"] = run.started_at - task.due_at
    return {name: time.total_seconds() for name, time in times.items()}


def _told(name: Name, value: float) -> list[float]:
    if not math.isfinite(value):
        return []
    return [round(float(value) if name == _SIGNED else max(float(value), 0.0), _DIGITS)]


def _lines(values: Mapping[Name, list[float]], *, at: float | None = None) -> Iterator[str]:
    """Yield lines of at most `MAX_VALUES` values of each metric, dated now or *at* (seconds since 1970)."""
    if is_metrics_disabled():
        return
    for start in range(0, max(map(len, values.values()), default=0), MAX_VALUES):
        parts = {name: told[start : start + MAX_VALUES] for name, told in values.items()}
        yield _line({name: part for name, part in parts.items() if part}, at=at)


def _line(values: Mapping[Name, list[float]], *, at: float | None) -> str:
    provider = AmazonCloudWatchEMFProvider()  # which looks into the environment
    provider.namespace, provider.service = _namespace(provider.namespace), _service(provider.service)
    told = {name: {"Unit": _unit(name), "Value": part} for name, part in values.items()}
    content = provider.serialize_metric_set(metrics=told, dimensions={DIMENSION: provider.service})
    if at is not None:
        content["_aws"]["Timestamp"] = int(at * 1000)
    return json.dumps(content, allow_nan=False, separators=(",", ":")) + "\n"


def _unit(name: Name) -> str:
    return "Seconds" if name.endswith("_seconds") else "Count"


def _namespace(given: str | None) -> str:
    return given if given is not None and re.fullmatch(r"[\w.\-/#]{1,255}", given, re.ASCII) else NAMESPACE


def _service(given: str | None) -> str:
    """Return a value that CloudWatch takes: printable ASCII, no blank, no colon first."""
    plain = re.sub(r"[^ -~]", "_", given or "").lstrip(" :").rstrip()[:MAX_SERVICE]
    return plain or "tidemill"
