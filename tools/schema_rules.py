"""Rules that the models check in code and that a JSON Schema can express, by the names of the models.

A JSON Schema cannot express sizes in bytes, depth, the order of two times, or a whole number written as ``1.0``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from tidemill.enqueue.rules import MIN_HTTP_BASE_SEC
from tidemill.model import MAX_BACKOFF_SEC, MAX_COUNT, MAX_FACTOR

Schema: TypeAlias = dict[str, Any]

MOMENT: Final = (
    r"^(?!0000)[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
    r"[Tt]([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?"
    r"([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$"
)
"""A date and time with an offset: most validators do not check ``format``."""

_PRINTABLE: Final = r"[^\u0000-\u0020\u007f-\u00a0]"
_TRIMMED: Final = rf"^{_PRINTABLE}([^\u0000-\u001f\u007f-\u00a0]*{_PRINTABLE})?$"
_NOT_NULL: Final[Mapping[str, Any]] = {"not": {"type": "null"}}


def _require(*names: str) -> Schema:
    """Return the schema of an object that has all *names*, none of them ``null``."""
    return {"required": [*names], "properties": dict.fromkeys(names, _NOT_NULL)}


def _bound(**bounds: Schema) -> Schema:
    return {"properties": bounds}


_ONE_START: Final[Schema] = {"not": _require("delay_sec", "not_before")}
_KEY: Final[Schema] = {"properties": {"idempotency_key": {"pattern": _TRIMMED}}}
_CHOSEN: Final[Schema] = {
    "oneOf": [
        _require("id"),
        {"anyOf": [_require(name) for name in ("fingerprint", "name", "queue", "since", "until")]},
        {"required": ["all"], "properties": {"all": {"const": True}}},
    ],
    "if": _require("redrives"),
    "then": _require("id"),
}
_COUNT: Final[Schema] = {"minimum": 1, "maximum": MAX_COUNT}
_CAP: Final[Schema] = {"minimum": 0, "maximum": MAX_COUNT}
_NUMBER: Final[Schema] = {"type": "number"}  # and not null
_WHOLE: Final[Schema] = {"type": "integer"}

RULES: Final[Mapping[str, Schema]] = {
    "HttpTask": _ONE_START,
    "HttpBatchTask": _ONE_START | _KEY,
    "NewTask": _ONE_START | _KEY,
    "Occurrence": {"properties": {"schedule": {"pattern": rf"^(?!<){_TRIMMED.removeprefix('^')}"}}},
    "QueueSet": {"minProperties": 3} | _bound(retry_share={"minimum": 0, "maximum": 1}, max_in_flight_retries=_CAP),
    "AdaptiveChange": _bound(
        scale=_WHOLE | _COUNT, max_sec=_NUMBER | {"exclusiveMinimum": 0, "maximum": MAX_BACKOFF_SEC}
    ),
    "BudgetChange": _bound(per_minute=_WHOLE | _COUNT, factor=_NUMBER | {"minimum": 1, "maximum": MAX_FACTOR}),
    "DeadLetterRedrive": _CHOSEN,
    "DeadLetterPurge": _CHOSEN,
}
"""Additions to the schema of a model; ``properties`` add to the properties that it has."""

OVER_HTTP: Final[Mapping[str, Schema]] = {**RULES, "RetryOptions": _bound(base_sec={"minimum": MIN_HTTP_BASE_SEC})}
"""The rules for tasks from callers over HTTP."""

FAILURE: Final[Schema] = {
    "type": "object",
    "required": ["requestContext"],
    "properties": {
        "version": {"type": "string"},
        "timestamp": {"type": "string", "format": "date-time"},
        "requestContext": {
            "type": "object",
            "required": ["requestId", "functionArn", "condition"],
            "properties": {
                "requestId": {
                    "type": "string",
                    "minLength": 1,
                    "description": "Of the invocation that failed: the owner of the leases it left.",
                },
                "functionArn": {
                    "type": "string",
                    "description": "The function that failed, and that one is started of in its place.",
                },
                "condition": {"type": "string", "examples": ["RetriesExhausted", "EventAgeExceeded"]},
                "approximateInvokeCount": {"type": "integer", "minimum": 0},
            },
        },
        "requestPayload": {"description": "The event of the invocation that failed."},
        "responseContext": {
            "type": "object",
            "description": "Not there where the function was never started.",
            "properties": {
                "statusCode": {"type": "integer"},
                "executedVersion": {"type": "string"},
                "functionError": {"type": ["string", "null"]},
            },
        },
        "responsePayload": {"description": "The error, as the runtime or the platform tells it."},
    },
}
"""Event of Lambda. AWS defines it, so further fields are allowed."""

RETRIES: Final[Schema] = {
    "type": "object",
    "required": ["Records"],
    "properties": {
        "Records": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["messageId", "body", "eventSource"],
                "properties": {
                    "messageId": {"type": "string"},
                    "receiptHandle": {"type": "string"},
                    "body": {
                        "type": "string",
                        "description": (
                            "JSON: Lambda's record of an invocation that failed, or the input of a schedule that "
                            "EventBridge Scheduler could not deliver. What is neither is set aside."
                        ),
                    },
                    "attributes": {"type": "object"},
                    "messageAttributes": {
                        "type": "object",
                        "description": "Of Scheduler's: SCHEDULE_ARN, SCHEDULED_TIME, ERROR_CODE and others.",
                        "additionalProperties": {
                            "type": "object",
                            "properties": {"stringValue": {"type": "string"}, "dataType": {"type": "string"}},
                        },
                    },
                    "md5OfBody": {"type": "string"},
                    "eventSource": {"const": "aws:sqs"},
                    "eventSourceARN": {"type": "string"},
                    "awsRegion": {"type": "string"},
                },
            },
        },
    },
}
"""Event of SQS, likewise."""
