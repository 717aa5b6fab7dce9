"""The lines of attempts on the terminal of `tidemill dev`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from bson import ObjectId

from tests.fixtures import T0
from tests.unit.make import a_task
from tidemill.dev.attempts import MAX_SUCCESSES, Attempts
from tidemill.model import Cancelled, Failed, Failure, Malformed, Outcome, Retried, Run, Snoozed, Succeeded
from tidemill.store.settle import Settlement

ID = ObjectId("6b0a4ab69d94e15482413fa6")
RUN = Run(started_at=T0, duration=timedelta(milliseconds=40), status="failed", note="")
FAILURE = Failure(message="ConnectionError: refused", code="ConnectionError", traceback="Trace\n  \x1b[2Jback\n")
LATER = datetime(2031, 7, 1, 9, 0, 4, tzinfo=UTC).astimezone()
ATTEMPT = f"send {ID}  attempt 2"


class Printed:
    """What is printed, on a clock that the test moves."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.lines: list[tuple[str, ...]] = []
        self.attempts = Attempts(lambda *lines: self.lines.append(lines), monotonic=lambda: self.seconds)

    def report(self, outcome: Outcome) -> None:
        task = a_task(_id=ID, name="send", attempts=2, payload={"secret": 1})
        self.attempts.report(Settlement(task=task, outcome=outcome, run=RUN))


@pytest.mark.parametrize(
    ("outcome", "lines"),
    [
        (Succeeded(result="secret"), (f"{ATTEMPT} done in 40ms",)),
        (
            Retried(failure=FAILURE, next_retry_at=LATER),
            (
                f"{ATTEMPT} failed in 40ms: ConnectionError: refused; the next attempt is at {LATER:%Y-%m-%d %H:%M:%S}",
                "Trace",
                "  \\x1b[2Jback",
            ),
        ),
        (
            Failed(failure=FAILURE, reason="exhausted"),
            (f"{ATTEMPT} failed for good (exhausted) in 40ms: ConnectionError: refused", "Trace", "  \\x1b[2Jback"),
        ),
        (Snoozed(until=LATER), (f"{ATTEMPT} snoozed until {LATER:%Y-%m-%d %H:%M:%S}",)),
        (Cancelled(), (f"{ATTEMPT} cancelled",)),
    ],
)
def test_each_attempt_has_a_line_and_a_failure_its_traceback(outcome: Outcome, lines: tuple[str, ...]) -> None:
    printed = Printed()

    printed.report(outcome)

    assert printed.lines == [lines]


def test_of_many_successes_in_a_second_only_the_number_is_printed() -> None:
    printed = Printed()
    for _ in range(MAX_SUCCESSES + 15):
        printed.report(Succeeded(result=None))
    printed.report(Failed(failure=FAILURE, reason="exhausted"))
    before = len(printed.lines)

    printed.seconds = 1.0
    printed.attempts.flush()
    printed.attempts.flush()

    assert before == MAX_SUCCESSES + 1
    assert printed.lines[before:] == [("15 more done",)]


def test_a_malformed_task_has_a_line_too() -> None:
    printed = Printed()
    task = Malformed(id=ID, lease=None, problem="payload is missing")

    printed.attempts.report(Settlement(task=task, outcome=Failed(failure=FAILURE, reason="malformed")))

    assert printed.lines == [(f"task {ID} is malformed and fails",)]
