"""Enqueued tasks as their callers see them: a handle with the type of the result, and the reading of an ended task."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from tidemill.errors import TaskCancelledError, TaskFailedError
from tidemill.model import Malformed, Task, TaskId
from tidemill.policy.failures import truncate_text
from tidemill.references import Reference

if TYPE_CHECKING:
    from tidemill.client import Queue

R_co = TypeVar("R_co", covariant=True)

FIRST_PAUSE_SEC: Final = 0.05
PAUSE_FACTOR: Final = 1.5
LAST_PAUSE_SEC: Final = 1.0
"""Pauses between two looks at a task that is waited for: from the first to the last one, by the factor."""

_MAX_MESSAGE_CHARS: Final = 500


@dataclass(frozen=True, slots=True)
class Handle(Generic[R_co]):
    """An enqueued task, whose result has the type of its function.

    Attributes:
        id: The id of the task; keep it to find the task later.
    """

    id: TaskId
    _queue: Queue = field(repr=False, compare=False)
    _reference: Reference = field(repr=False, compare=False)

    def wait(self, timeout: timedelta) -> R_co:
        """Wait for the end of the task and return its result.

        Raises:
            TaskFailedError: The task failed for good.
            TaskCancelledError: The task was cancelled.
            WaitTimeoutError: The task did not end in time. It is a ``TimeoutError``.
            ResultError: The result does not fit the type of the function.
            TaskNotFoundError: The task does not exist, or its retention is over.
            UnavailableError: MongoDB did not answer.
        """
        stored = self._queue.wait(self.id, timeout)
        result: R_co = self._reference.read_result(stored, self.id)
        return result

    def status(self) -> str:
        """Return the status of the task: ``pending``, ``processing``, ``done``, ``failed`` or ``cancelled``.

        Raises:
            TaskNotFoundError: The task does not exist, or its retention is over.
        """
        return self._queue.get(self.id).status or "malformed"

    def cancel(self, *, force: bool = False) -> Task | Malformed:
        """Cancel the task, as `Queue.cancel` does."""
        return self._queue.cancel(self.id, force=force)


def has_ended(task: Task | Malformed) -> bool:
    """Return True if *task* never runs again by itself."""
    return task.status in {"done", "failed", "cancelled"}


def read_end(task: Task | Malformed) -> Any:  # noqa: ANN401 - functions return anything
    """Return the stored result of an ended *task*.

    Raises:
        TaskFailedError: The task failed, or its document is no valid task.
        TaskCancelledError: The task was cancelled.
    """
    if task.status == "cancelled":
        raise TaskCancelledError(task.id)
    if isinstance(task, Malformed):
        raise TaskFailedError(task.id, code="malformed", message=task.problem)
    if task.status == "done":
        return task.result
    code, message = ("", "the cause is not known") if task.error is None else (task.error.code, task.error.message)
    raise TaskFailedError(task.id, code=code, message=truncate_text(message, _MAX_MESSAGE_CHARS), reason=task.reason)
