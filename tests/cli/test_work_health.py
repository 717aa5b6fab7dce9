"""The state of a worker that ``/healthz`` answers with."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from pymongo.database import Database

from tidemill.cli.work_health import STALL_SEC, Health
from tidemill.errors import MissingIndexError
from tidemill.executor.lifetime import Worker


class Stopwatch:
    """A monotonic clock of the test."""

    def __init__(self) -> None:
        self.at = 100.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def stopwatch() -> Stopwatch:
    return Stopwatch()


def test_a_worker_that_makes_no_step_is_stalled(db: Database[Any], stopwatch: Stopwatch) -> None:
    worker = Worker(threading.Event(), monotonic=stopwatch)
    health = Health(worker, db, is_stopping=lambda: False, monotonic=stopwatch)

    stopwatch.at += STALL_SEC
    assert health.find_problem() is None
    stopwatch.at += 1
    assert health.find_problem() == "the worker has made no step for 31 s: restart it"

    worker.record_status(running=3, error=None, answered=False)
    assert health.find_problem() is None


def test_the_error_of_the_worker_is_the_problem(db: Database[Any]) -> None:
    worker = Worker(threading.Event())
    health = Health(worker, db, is_stopping=lambda: False)

    worker.record_status(running=0, error=MissingIndexError("tasks"), answered=True)

    assert health.find_problem() == "an index of tasks is missing: run `tidemill indexes` once, then try again"
