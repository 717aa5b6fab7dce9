"""API Gateway's events and answers (REST, payload v1) in our terms: bodies, callers, keys, limits, errors."""

from tidemill.gateway.answers import HEADERS, HttpError, accepted, all_accepted, plain, refusal, told
from tidemill.gateway.bodies import json_value
from tidemill.gateway.documented import CANCEL, GET, POST, POST_BATCH
from tidemill.gateway.events import (
    caller,
    cleaned,
    direct_trace,
    idempotency_key,
    is_direct,
    is_http,
    location,
    object_id,
    trace,
)
from tidemill.gateway.limits import admitted, all_admitted, found_by_routes, keyed_directly, refuse_too_long
from tidemill.gateway.models import (
    AcceptedTask,
    AcceptedTasks,
    Batch,
    ErrorAnswer,
    HttpBatchTask,
    HttpTask,
    TaskAnswer,
)

__all__ = [
    "CANCEL",
    "GET",
    "HEADERS",
    "POST",
    "POST_BATCH",
    "AcceptedTask",
    "AcceptedTasks",
    "Batch",
    "ErrorAnswer",
    "HttpBatchTask",
    "HttpError",
    "HttpTask",
    "TaskAnswer",
    "accepted",
    "admitted",
    "all_accepted",
    "all_admitted",
    "caller",
    "cleaned",
    "direct_trace",
    "found_by_routes",
    "idempotency_key",
    "is_direct",
    "is_http",
    "json_value",
    "keyed_directly",
    "location",
    "object_id",
    "plain",
    "refusal",
    "refuse_too_long",
    "told",
    "trace",
]
