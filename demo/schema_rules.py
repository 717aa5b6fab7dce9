"""What the models check in code and a JSON Schema can say all the same, by the names of the models.

What it cannot say stays with the models: sizes in bytes, depth, order of two times, a whole number written as ``1.0``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from tidemill.gateway.models import MIN_HTTP_BASE_SEC
from tidemill.policies import MAX_BACKOFF_SEC, MAX_COUNT, MAX_FACTOR

Schema: TypeAlias = dict[str, Any]

MOMENT: Final = (
    r"^(?!0000)[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
    r"[Tt]([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?"
    r"([Zz]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$"
)
"""A date and time with an offset: ``format`` says no more than what it is meant to be."""

_PRINTABLE: Final = r"[^\u0000-\u0020\u007f-\u00a0]"
_TRIMMED: Final = rf"^{_PRINTABLE}([^\u0000-\u001f\u007f-\u00a0]*{_PRINTABLE})?$"
_GIVEN: Final[Mapping[str, Any]] = {"not": {"type": "null"}}


def _given(*names: str) -> Schema:
    """Return what holds where all of *names* are there and not ``null``."""
    return {"required": [*names], "properties": dict.fromkeys(names, _GIVEN)}


def _bounded(**bounds: Schema) -> Schema:
    return {"properties": bounds}


_ONE_START: Final[Schema] = {"not": _given("delay_sec", "not_before")}
_KEY: Final[Schema] = {"properties": {"idempotency_key": {"pattern": _TRIMMED}}}
_CHOSEN: Final[Schema] = {
    "oneOf": [
        _given("id"),
        {"anyOf": [_given(name) for name in ("fingerprint", "name", "queue", "since", "until")]},
        {"required": ["all"], "properties": {"all": {"const": True}}},
    ],
    "if": _given("redrives"),
    "then": _given("id"),
}
_COUNT: Final[Schema] = {"minimum": 1, "maximum": MAX_COUNT}
_NUMBER: Final[Schema] = {"type": "number"}  # and not null
_WHOLE: Final[Schema] = {"type": "integer"}

RULES: Final[Mapping[str, Schema]] = {
    "HttpTask": _ONE_START,
    "HttpBatchTask": _ONE_START | _KEY,
    "NewTask": _ONE_START | _KEY,
    "Occurrence": {"properties": {"schedule": {"pattern": rf"^(?!<){_TRIMMED.removeprefix('^')}"}}},
    "QueueSet": {"minProperties": 3} | _bounded(retry_share={"minimum": 0, "maximum": 1}, max_in_flight_retries=_COUNT),
    "AdaptiveChange": _bounded(
        scale=_WHOLE | _COUNT, max_sec=_NUMBER | {"exclusiveMinimum": 0, "maximum": MAX_BACKOFF_SEC}
    ),
    "BudgetChange": _bounded(per_minute=_WHOLE | _COUNT, factor=_NUMBER | {"minimum": 1, "maximum": MAX_FACTOR}),
    "DeadLetterRedrive": _CHOSEN,
    "DeadLetterPurge": _CHOSEN,
}
"""Beside what the model says; ``properties`` are added to those it has."""

OVER_HTTP: Final[Mapping[str, Schema]] = {**RULES, "RetryOptions": _bounded(base_sec={"minimum": MIN_HTTP_BASE_SEC})}
"""The same where the tasks of strangers are meant."""

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
"""What Lambda sends: a shape of AWS's, so what it may have beside this is left open."""
