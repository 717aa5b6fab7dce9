"""API Gateway's events and answers (REST, payload v1) in our terms: bodies, callers, keys, limits, errors."""

from tidemill.gateway.answers import HEADERS, HttpError, accepted, all_accepted, plain, told
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
from tidemill.gateway.limits import all_requested, found_by_routes, keyed_directly, refuse, refuse_too_long, requested
from tidemill.gateway.models import (
    AcceptedTask,
    AcceptedTasks,
    Batch,
    HttpTask,
    TaskAnswer,
)
from tidemill.gateway.refusals import not_allowed, refusal

__all__ = [
    "CANCEL",
    "GET",
    "HEADERS",
    "POST",
    "POST_BATCH",
    "AcceptedTask",
    "AcceptedTasks",
    "Batch",
    "HttpError",
    "HttpTask",
    "TaskAnswer",
    "accepted",
    "all_accepted",
    "all_requested",
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
    "not_allowed",
    "object_id",
    "plain",
    "refusal",
    "refuse",
    "refuse_too_long",
    "requested",
    "told",
    "trace",
]
