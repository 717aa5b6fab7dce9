"""The wait of an idle worker, which a new task ends early.

A change stream tells an idle worker of inserted tasks. A worker that has tasks in hand does not read it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final, cast

import bson
from bson import ObjectId
from pymongo.command_cursor import RawBatchCommandCursor
from pymongo.errors import OperationFailure, PyMongoError
from pymongo.read_concern import ReadConcern

from tidemill.documents import LENIENT_OPTIONS
from tidemill.executor.context import ExecutionContext
from tidemill.model import Malformed, Task, TaskId

_KEEP_OPEN_SEC: Final = 5.0
"""Time for which a stream stays open unread: between the tasks of a slow trickle it is not opened again and again."""

_REOPEN_SEC: Final = 10.0
"""Time between two attempts to open the stream after an error."""

_MAX_CLAIMED_IDS: Final = 1000
"""Claimed tasks that are remembered: the stream tells of them, too, and often after their claim."""

_ONLY_ON_REPLICA_SETS: Final = 40573
"""Code of the refusal of a standalone server."""


class Arrivals:
    """Tells one idle worker when to claim again: at the end of its wait, or as soon as a task arrives.

    Inserted tasks that are due at once arrive; retries, released and delayed tasks are found by the claim after the
    wait. If the server or its rights allow no change streams, all tasks are.
    """

    def __init__(self, context: ExecutionContext) -> None:
        self._context = context
        self._stream: RawBatchCommandCursor[Any] | None = None
        self._open_from = -math.inf
        self._read_until = math.inf
        self._read_from = -math.inf
        self._has_arrivals = False
        self._claimed_ids: deque[TaskId] = deque(maxlen=_MAX_CLAIMED_IDS)

    def wait(self) -> bool:
        """Wait for ``linger_poll_sec``, or until a stop is requested or a task arrives.

        Return True if tasks may have arrived. The wait in which the stream is opened ends at once: a task may have
        arrived shortly before.
        """
        now = self._context.monotonic()
        if now < (self._open_from if self._stream is None else self._read_from):
            self._context.lifetime.pause(self._context.timing.linger_poll_sec)
            return False
        try:
            if self._stream is None:
                self._stream = self._open()
                return True
            while self._context.monotonic() < now + self._context.timing.linger_poll_sec and self._context.may_claim():
                due_at = self._find_arrival(self._stream.try_next())
                if due_at is not None:
                    self._has_arrivals = True
                    self._wait_until_due(due_at)
                    break
        except PyMongoError as error:
            self._close_after(error)
        finally:
            self._read_until = self._context.monotonic() + _KEEP_OPEN_SEC
        return self._has_arrivals

    def record_claim(self, tasks: Sequence[Task | Malformed]) -> None:
        """Record a claim of *tasks*. If others claimed what arrived, do not read the stream for a moment.

        Otherwise each of many idle workers would look for each new task.
        """
        if self._stream is None:
            return
        self._claimed_ids.extend(task.id for task in tasks)
        if self._has_arrivals and not tasks:
            pause = self._context.timing.linger_poll_sec * (1 + self._context.draw()) / 2
            self._read_from = self._context.monotonic() + pause
        self._has_arrivals = False

    def close_unused(self) -> None:
        """Close the stream if the worker has had tasks in hand for some seconds."""
        if self._stream is not None and self._context.monotonic() > self._read_until:
            self.close()

    def close(self) -> None:
        """Close the stream."""
        stream, self._stream = self._stream, None
        if stream is not None:
            with suppress(PyMongoError):
                stream.close()

    def _find_arrival(self, batch: bytes | None) -> datetime | None:
        """Return when the first task of *batch*, of the stream, is due that this worker has not claimed yet."""
        if not batch:
            return None
        claimed = {task_id for task_id in self._claimed_ids if isinstance(task_id, ObjectId)}
        tasks = [event["fullDocument"] for event in bson.decode_all(batch, LENIENT_OPTIONS)]
        arrived = [task for task in tasks if not isinstance(task["_id"], ObjectId) or task["_id"] not in claimed]
        due = (task["due_at"] for task in arrived if isinstance(task.get("due_at"), datetime))
        return min(due, default=self._context.now() if arrived else None)

    def _wait_until_due(self, due_at: datetime) -> None:
        """Wait for a moment if *due_at* is to come: the clocks of two processes differ by milliseconds."""
        seconds = (due_at - self._context.now()).total_seconds()
        if seconds > 0:
            self._context.lifetime.pause(min(seconds, self._context.timing.linger_poll_sec))

    def _open(self) -> RawBatchCommandCursor[Any]:
        tasks = self._context.tasks.with_options(read_concern=ReadConcern("majority"))
        pipeline: list[Mapping[str, Any]] = [
            {"$changeStream": {}},
            {"$match": self._build_filter()},
            {"$project": {"fullDocument._id": 1, "fullDocument.due_at": 1}},
        ]
        wait_ms = self._context.timing.stream_wait_ms
        stream: Any = tasks.aggregate_raw_batches(pipeline, maxAwaitTimeMS=wait_ms)  # the driver's annotation is wrong
        return cast("RawBatchCommandCursor[Any]", stream)

    def _build_filter(self) -> Mapping[str, Any]:
        options = self._context.options
        arrived = {
            "operationType": "insert",
            "fullDocument.status": "pending",
            "fullDocument.lane": {"$in": [*options.lanes]},
            "fullDocument.next_retry_at": None,
        }
        return arrived | ({"fullDocument.queue": {"$in": [*options.queues]}} if options.queues else {})

    def _close_after(self, error: PyMongoError) -> None:
        self.close()
        is_standalone = isinstance(error, OperationFailure) and error.code == _ONLY_ON_REPLICA_SETS
        self._open_from = math.inf if is_standalone else self._context.monotonic() + _REOPEN_SEC
