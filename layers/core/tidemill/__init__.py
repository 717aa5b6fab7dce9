"""Tidemill: a task queue for teams that already run MongoDB and AWS Lambda.

Write a function with `task`, enqueue it with `Queue`, and let scheduled executors run it.
"""

from typing import TYPE_CHECKING, Any, Final

from tidemill.client import Queue
from tidemill.errors import (
    DuplicateKeyError,
    Fail,
    InvalidRequestError,
    MissingIndexError,
    NotDelayedError,
    ResultError,
    Retry,
    SettingsError,
    Snooze,
    TaskCancelledError,
    TaskFailedError,
    TaskNotFoundError,
    TaskTimeoutError,
    TidemillError,
    UnavailableError,
    UnknownTaskError,
    WaitTimeoutError,
)
from tidemill.explain.reasons import Explanation
from tidemill.handles import Handle
from tidemill.model import Attempt, Backoff, Malformed, RetryPolicy, Task
from tidemill.policy.retry import PRESETS
from tidemill.references import TaskRef
from tidemill.registry import task, task_hook
from tidemill.requests.tasks import NewTask
from tidemill.runner.resources import resource
from tidemill.task_functions import TaskContext

if TYPE_CHECKING:
    from tidemill.asynchronous.client import AsyncHandle, AsyncQueue

__all__ = [
    "PRESETS",
    "AsyncHandle",
    "AsyncQueue",
    "Attempt",
    "Backoff",
    "DuplicateKeyError",
    "Explanation",
    "Fail",
    "Handle",
    "InvalidRequestError",
    "Malformed",
    "MissingIndexError",
    "NewTask",
    "NotDelayedError",
    "Queue",
    "ResultError",
    "Retry",
    "RetryPolicy",
    "SettingsError",
    "Snooze",
    "Task",
    "TaskCancelledError",
    "TaskContext",
    "TaskFailedError",
    "TaskNotFoundError",
    "TaskRef",
    "TaskTimeoutError",
    "TidemillError",
    "UnavailableError",
    "UnknownTaskError",
    "WaitTimeoutError",
    "__version__",
    "resource",
    "task",
    "task_hook",
]

__version__: Final = "0.1.0"


def __getattr__(name: str) -> Any:  # noqa: ANN401 - a class
    """Import the client for event loops when it is first used: a function of Lambda starts without it."""
    if name not in {"AsyncHandle", "AsyncQueue"}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from tidemill.asynchronous import client  # noqa: PLC0415

    return getattr(client, name)
