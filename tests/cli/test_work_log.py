"""The lines of failed attempts: of every kind, bounded, and never waited for."""

from __future__ import annotations

import io
import os
import sys
import threading
from datetime import timedelta
from typing import Any

import pytest
from bson import ObjectId

from tests.fixtures import T0
from tests.unit.make import a_task
from tidemill.cli.work_log import MAX_WAITING_LINES, OwnStreams, WorkerLog, format_attempt
from tidemill.model import Failed, Failure, Malformed, Retried, Run, Snoozed, Succeeded, Task
from tidemill.store.settle import Settlement

ID = ObjectId("6b0a4ab69d94e15482413fa6")
RUN = Run(started_at=T0, duration=timedelta(seconds=1), status="failed", note="")
REFUSED = Failure(message="ConnectionError: refused", code="ConnectionError")
SEND = f"task {ID}, send, queue eu:"
FAILED = f"attempt 2 of 5 failed: {SEND}"
TASK = a_task(_id=ID, name="send", queue="eu", attempts=2)


def one_of_five(task: Task) -> int:
    del task
    return 5


def line_of(settlement: Settlement) -> str:
    return format_attempt(settlement, now=T0, count_tries=one_of_five)


@pytest.mark.parametrize(
    ("settlement", "line"),
    [
        (
            Settlement(task=TASK, outcome=Retried(failure=REFUSED, next_retry_at=T0 + timedelta(seconds=4)), run=RUN),
            f"{FAILED} ConnectionError: refused; next attempt at 2031-07-01 09:00:04 UTC, in 4s",
        ),
        (
            Settlement(task=TASK, outcome=Failed(failure=REFUSED, reason="exhausted"), run=RUN),
            f"{FAILED} ConnectionError: refused; no further attempt (exhausted)",
        ),
        (
            Settlement(task=TASK, outcome=Snoozed(until=T0 + timedelta(seconds=1)), run=RUN, lost=True),
            f"attempt 2 of 5 lost: {SEND} its worker vanished; next attempt at 2031-07-01 09:00:01 UTC, in 1s",
        ),
        (
            Settlement(
                task=Malformed(id=ID, lease=None, problem="payload is missing"),
                outcome=Failed(failure=Failure(message="payload is missing", code="malformed"), reason="malformed"),
            ),
            f"a document failed: task {ID}: malformed: payload is missing; no further attempt (malformed)",
        ),
    ],
    ids=["retried", "failed", "lost", "malformed"],
)
def test_a_line_says_what_failed_why_and_what_follows(settlement: Settlement, line: str) -> None:
    assert line_of(settlement) == f"2031-07-01 09:00:00 UTC {line}"


def test_nothing_that_others_wrote_makes_it_long_or_steers_a_terminal() -> None:
    wild = "\x1b[2J\n" + "w" * 5000
    task = a_task(_id=wild, name=wild, queue=wild)

    line = line_of(Settlement(task=task, outcome=Failed(failure=Failure(message=wild, code=wild), reason="exhausted")))

    assert line.isprintable()
    assert len(line) < 1000


def test_a_reader_that_stops_keeps_no_worker_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())  # without a descriptor that would be copied
    read, write = os.pipe()
    failed = Settlement(task=TASK, outcome=Failed(failure=REFUSED, reason="exhausted"), run=RUN)
    told: list[str] = []
    with os.fdopen(read) as reader:
        later = threading.Thread(target=lambda: told.extend(reader))
        with os.fdopen(write, "w") as stderr:
            monkeypatch.setattr(sys, "stderr", stderr)
            with OwnStreams() as streams, WorkerLog(streams) as lines:
                for _ in range(3 * MAX_WAITING_LINES):
                    lines.report_attempt(failed, now=T0, count_tries=one_of_five)
                later.start()
            sys.stderr.close()  # the copy
        later.join(20)

    warnings = [line for line in told if line.startswith("tidemill: ")]
    ending = " lines of failed attempts were dropped, because this output was not read\n"
    assert all(warning.endswith(ending) for warning in warnings)
    dropped = sum(int(warning.split()[1]) for warning in warnings)
    assert dropped > 0
    assert len(told) - len(warnings) + dropped == 3 * MAX_WAITING_LINES


def test_a_success_is_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    done: Any = Succeeded(result=None)
    with OwnStreams() as streams, WorkerLog(streams) as lines:
        lines.report_attempt(Settlement(task=TASK, outcome=done, run=RUN), now=T0, count_tries=one_of_five)

    assert capsys.readouterr() == ("", "")
