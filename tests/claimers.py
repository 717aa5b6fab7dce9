"""Claimers as executions make them, without an execution around them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from pymongo.database import Database

from tests.conftest import T0
from tidemill.executor.claimer import Claimer
from tidemill.executor.report import Report
from tidemill.executor.retry_caps import RetryCaps
from tidemill.executor.serving import Serving
from tidemill.model import Malformed, Task, TaskId
from tidemill.store import Tasks

LEASE = timedelta(minutes=2)


def a_claimer(
    tasks: Tasks,
    *,
    owner: str = "A",
    queues: Sequence[str] = (),
    avoided: Sequence[TaskId] = (),
    caps: RetryCaps | None = None,
    monotonic: Callable[[], float] = time.monotonic,
    **choices: Any,
) -> Claimer:
    """A claimer that serves every queue by the same *choices*."""
    serving = Serving(**choices)
    return Claimer(
        tasks,
        owner=owner,
        lease_until=lambda: T0 + LEASE,
        queues=queues,
        lanes=serving.lanes,
        serving=lambda _: serving,
        avoided=lambda: avoided,
        caps=caps or the_caps(tasks, owner=owner),
        report=Report(),
        rng=random.Random(1),
        monotonic=monotonic,
    )


def the_caps(tasks: Tasks, *, owner: str = "A") -> RetryCaps:
    """The permits of one execution."""
    return RetryCaps(
        tasks.database, owner=owner, lease_until=lambda: T0 + LEASE, report=Report(), monotonic=time.monotonic
    )


def numbers(held: Sequence[Task | Malformed]) -> list[Any]:
    """The ``n`` of the payloads, in the order of the claim."""
    return [one.payload.get("n") for one in held if isinstance(one, Task)]


def holds(db: Database[Any]) -> int:
    """How many permits for retries of the default queue are out."""
    document = db["control"].find_one({"_id": "retries:default"})
    return sum(one["n"] for one in document["holds"]) if document else 0


def leased_retries(tasks: Tasks) -> int:
    """How many retries are under a lease."""
    return tasks.count_documents({"status": "processing", "lane": "retry"})
