"""Values as unit tests want them, made the way the code makes them: read from a document."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from typing import Any

import bson
from bson.raw_bson import RawBSONDocument
from hypothesis import strategies as st

from tests import waiting
from tests.builders import document
from tests.fixtures import T0
from tidemill import TaskContext
from tidemill.documents import read_task
from tidemill.model import JITTERS, MAX_BACKOFF_SEC, MAX_FACTOR, STRATEGIES, Backoff, Task
from tidemill.runner.thread_pool import ThreadPool

eventually = waiting.eventually

NEVER = 1e9
"""A deadline no test lives to see, on the monotonic clock."""

LAST_DRAW = math.nextafter(1.0, 0.0)
"""The largest number that a draw can be."""


def raw(fields: dict[str, Any]) -> RawBSONDocument:
    """What the server would return of a document with these fields."""
    return RawBSONDocument(bson.encode(fields))


def a_task(now: datetime = T0, **fields: Any) -> Task:
    """The task of a document that was due at *now*, but for *fields*."""
    task = read_task(raw(document(now, **fields)))
    assert isinstance(task, Task), task
    return task


def let_threads_exit(pool: ThreadPool) -> None:
    """Close *pool* and wait until the functions it runs have ended; `collect` has still to return them."""
    ids = [run.task.id for run in pool.running]
    pool.close()
    assert eventually(lambda: not set(ids) & set(pool.abandoned_task_ids()))


def a_claimed_task(now: datetime = T0, **fields: Any) -> Task:
    """A task in its first attempt, under the lease ``token`` of ``A``."""
    lease = {"token": "token", "owner": "A", "expires_at": now + timedelta(minutes=1)}
    return a_task(now, **({"status": "processing", "attempts": 1, "lease": lease} | fields))


def a_context(*, deadline: float = NEVER) -> TaskContext:
    """What a function is given of its task."""
    return TaskContext(task_id=1, attempt=1, is_last_attempt=False, deadline=deadline)


class Moved:
    """A monotonic clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@st.composite
def backoffs(draw: st.DrawFn) -> Backoff:
    """Any legal back-off."""
    base = draw(st.floats(min_value=5e-324, max_value=MAX_BACKOFF_SEC))
    return Backoff(
        strategy=draw(st.sampled_from(STRATEGIES)),
        base_sec=base,
        factor=draw(st.floats(min_value=1, max_value=MAX_FACTOR)),
        max_sec=draw(st.floats(min_value=base, max_value=MAX_BACKOFF_SEC)),
        jitter=draw(st.sampled_from(JITTERS)),
        jitter_factor=draw(st.floats(min_value=0, max_value=1, exclude_min=True)),
    )
