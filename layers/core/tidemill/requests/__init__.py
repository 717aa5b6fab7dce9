"""What may be asked for, validated alike wherever it comes from."""

from tidemill.requests.direct import DirectRequest, Occurrence, is_single, read_direct
from tidemill.requests.events import MAX_CONCURRENCY, ExecuteRequest, Source, SweepRequest, dead_owner
from tidemill.requests.payloads import MAX_PAYLOAD_BYTES, MAX_PAYLOAD_DEPTH, storage_problem
from tidemill.requests.problems import MAX_FIELD_CHARS, MAX_PROBLEMS, Request, below, foremost, listed, parsed, problems
from tidemill.requests.retries import RetryOptions, retry_options
from tidemill.requests.tasks import (
    MAX_DELAY_SEC,
    MAX_KEY_CHARS,
    MAX_TASKS,
    MAX_TIMEOUT_SEC,
    NAME_PATTERN,
    QUEUE_PATTERN,
    Checked,
    Moment,
    NewTask,
    TaskFields,
    checked,
    new_task,
    new_tasks,
)

__all__ = [
    "MAX_CONCURRENCY",
    "MAX_DELAY_SEC",
    "MAX_FIELD_CHARS",
    "MAX_KEY_CHARS",
    "MAX_PAYLOAD_BYTES",
    "MAX_PAYLOAD_DEPTH",
    "MAX_PROBLEMS",
    "MAX_TASKS",
    "MAX_TIMEOUT_SEC",
    "NAME_PATTERN",
    "QUEUE_PATTERN",
    "Checked",
    "DirectRequest",
    "ExecuteRequest",
    "Moment",
    "NewTask",
    "Occurrence",
    "Request",
    "RetryOptions",
    "Source",
    "SweepRequest",
    "TaskFields",
    "below",
    "checked",
    "dead_owner",
    "foremost",
    "is_single",
    "listed",
    "new_task",
    "new_tasks",
    "parsed",
    "problems",
    "read_direct",
    "retry_options",
    "storage_problem",
]
