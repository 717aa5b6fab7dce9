"""Cost of a deployment in AWS: list prices, measured times, and the formula; `make cost` writes the tables.

MongoDB is not included, nor are free tiers and discounts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tools.pages import CAPACITY, replace_section

COMMAND: Final = "make cost"

MILLION: Final = 1_000_000
MINUTES: Final = 30 * 24 * 60
"""Of a month."""

GB_SECOND: Final = 0.0000133334
INVOCATION: Final = 0.20 / MILLION
SCHEDULED: Final = 1.00 / MILLION
REQUEST: Final = 3.50 / MILLION
LOG_BYTE: Final = 0.50 / 1e9
METRIC: Final = 0.30
ALARM_METRIC: Final = 0.10
DASHBOARD: Final = 3.00
SECRET: Final = 0.40
QUEUE_REQUEST: Final = 0.40 / MILLION
PRICES: Final = (
    ("Lambda, arm64, a GB-second", f"${GB_SECOND:.10f}"),
    ("Lambda, a million invocations", f"${INVOCATION * MILLION:.2f}"),
    ("EventBridge Scheduler, a million invocations", f"${SCHEDULED * MILLION:.2f}"),
    ("API Gateway REST, a million requests", f"${REQUEST * MILLION:.2f}"),
    ("CloudWatch Logs, a GB taken in", f"${LOG_BYTE * 1e9:.2f}"),
    (
        "CloudWatch, a metric / a metric of an alarm / a dashboard, a month",
        f"${METRIC:.2f} / ${ALARM_METRIC:.2f} / ${DASHBOARD:.2f}",
    ),
    ("Secrets Manager, a secret, a month", f"${SECRET:.2f}"),
    ("SQS, a million requests (the first of a month are free)", f"${QUEUE_REQUEST * MILLION:.2f}"),
)
"""On-demand list prices of us-east-1, as of 2026; a few cents of S3 are left out."""

POLLERS: Final = 5
POLL_SEC: Final = 20
"""Lambda reads a queue with so many requests at a time at the least, each of which waits so long:
docs.aws.amazon.com/lambda, "Configuring scaling behavior for SQS event source mappings"."""

GAUGES: Final = 5
METRICS: Final = 17
ALARM_METRICS: Final = 30
"""Metrics of the eight alarms together: CloudWatch bills an alarm for each of its metrics."""

VCPU_MB: Final = 1769
"""So much memory comes with a whole processor, less with its share of one: docs.aws.amazon.com/lambda,
"Configure Lambda function memory"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One kind of invocation, warm, as it was measured: milliseconds of processor, and of waiting."""

    memory_mb: int
    cpu_ms: float
    wait_ms: float
    log_bytes: int

    @property
    def billed_ms(self) -> float:
        """Time that Lambda bills: the work of the processor takes longer on a share of a processor."""
        return self.wait_ms + self.cpu_ms / min(self.memory_mb / VCPU_MB, 1.0)

    @property
    def price(self) -> float:
        """Price of an invocation and its log lines, in dollars."""
        gb_seconds = self.memory_mb / 1024 * self.billed_ms / 1000
        return gb_seconds * GB_SECOND + INVOCATION + self.log_bytes * LOG_BYTE


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Input of the formula; ``task`` is the executor's own part of a task, without the function's."""

    execute: Call
    reclaim: Call
    archive: Call
    enqueue: Call
    task_cpu_ms: float
    task_log_bytes: int


LINES: Final = 400
"""Bytes of the lines that Lambda itself writes of each invocation."""

MEASURED: Final = Measured(
    execute=Call(memory_mb=1024, cpu_ms=4.2, wait_ms=4.0 + 4, log_bytes=434 + LINES),
    reclaim=Call(memory_mb=512, cpu_ms=3.9, wait_ms=4.4 + 11, log_bytes=913 + LINES),
    archive=Call(memory_mb=512, cpu_ms=2.9, wait_ms=2.2 + 5, log_bytes=348 + LINES),
    enqueue=Call(memory_mb=512, cpu_ms=2.6, wait_ms=1.8 + 2, log_bytes=399 + LINES),
    task_cpu_ms=0.34,
    task_log_bytes=421,
)
"""On 2026-11-28, by `make e2e`: two cores, Python 3.11, MongoDB on the same machine; and a millisecond more for each
command to a MongoDB that is not."""


def idle(measured: Measured) -> list[tuple[str, float]]:
    """Return what a month without a single task costs, item by item, in dollars."""
    ticks = MINUTES * (measured.execute.price + measured.reclaim.price) + MINUTES / 5 * measured.archive.price
    return [
        ("ticks: Lambda and its logs", ticks),
        ("ticks: schedules", MINUTES * (2 + 1 / 5) * SCHEDULED),
        (
            f"{GAUGES} gauges (the other {METRICS - GAUGES} metrics, at most, cost only while they are sent)",
            GAUGES * METRIC,
        ),
        (f"8 alarms on {ALARM_METRICS} metrics", ALARM_METRICS * ALARM_METRIC),
        ("dashboard (`Dashboard=false` leaves it out; the first three of an account are free)", DASHBOARD),
        ("secret", SECRET),
        ("looks into the queue of retries", MINUTES * 60 / POLL_SEC * POLLERS * QUEUE_REQUEST),
    ]


def million(measured: Measured, *, executor_sec: float, starts: float) -> list[tuple[str, float]]:
    """Return what a million tasks cost that come in by HTTP one by one, item by item, in dollars.

    *executor_sec* is for how long executors are up for each, *starts* how many executors are started for each.
    """
    return [
        ("API Gateway", MILLION * REQUEST),
        ("`enqueue`: Lambda and its logs", MILLION * measured.enqueue.price),
        ("`execute`: Lambda", MILLION * executor_sec * measured.execute.memory_mb / 1024 * GB_SECOND),
        (
            "`execute`: its invocations, and their lines",
            MILLION * starts * (INVOCATION + measured.execute.log_bytes * LOG_BYTE),
        ),
        ("`execute`: a line of the log each", MILLION * measured.task_log_bytes * LOG_BYTE),
    ]


def busy_sec(measured: Measured, *, task_sec: float, concurrency: int) -> float:
    """Return how long a busy executor is up for a task that waits *task_sec*, among *concurrency* of them."""
    own_ms = measured.task_cpu_ms / min(measured.execute.memory_mb / VCPU_MB, 1.0)
    return max(task_sec / concurrency, own_ms / 1000)


def render(measured: Measured) -> str:
    """Return the section of the page."""
    lines = ["| price | us-east-1 |", "| --- | --- |", *(f"| {what} | {price} |" for what, price in PRICES), ""]
    month = idle(measured)
    lines += ["| a month of nothing to do | $ |", "| --- | ---: |"]
    lines += [*(f"| {what} | {price:.2f} |" for what, price in month), f"| together | {_total(month):.2f} |", ""]
    columns = [
        million(measured, executor_sec=busy_sec(measured, task_sec=0.01, concurrency=16), starts=0.01),
        million(measured, executor_sec=busy_sec(measured, task_sec=1.0, concurrency=16), starts=0.01),
        million(measured, executor_sec=MINUTES * 60 / MILLION, starts=1),
    ]
    lines.append("| a million tasks by HTTP | in bursts, 10 ms each | in bursts, 1 s each | evenly over a month |")
    lines.append("| --- | ---: | ---: | ---: |")
    rows = zip(*columns, strict=True)
    lines += [f"| {row[0][0]} | {' | '.join(f'{price:.2f}' for _, price in row)} |" for row in rows]
    lines.append(f"| together | {' | '.join(f'{_total(column):.2f}' for column in columns)} |")
    return "\n".join(lines)


def _total(items: list[tuple[str, float]]) -> float:
    return sum(price for _, price in items)


def main() -> None:
    """Write the section into its page."""
    page = replace_section(CAPACITY.read_text(encoding="utf-8"), render(MEASURED), command=COMMAND)
    CAPACITY.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
