"""Orders and conclusions as messages: whatever BSON value they hold arrives as it left."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from tidemill.conclusions import Conclusion, Raised, Returned, Snoozing
from tidemill.isolation.order import IsolatedRun
from tidemill.model import Failure

RUN: Final = b"r"
"""Comes over the control connection with two sockets: the one of the child, and the one the child is watched by."""

QUIT: Final = b"q"
CANCEL: Final = b"c"

MAX_ORDER_BYTES: Final = 48 * 1024**2
"""Well above the largest document there can be."""

MAX_ANSWER_BYTES: Final = 256 * 1024
"""Well above a result, and above the message of a failure: both are bounded by now."""


def order_document(order: IsolatedRun) -> dict[str, Any]:
    """Return *order* as a message."""
    return {
        "name": order.name,
        "payload": order.payload,
        "task_id": order.task_id,
        "attempt": order.attempt,
        "is_last_attempt": order.is_last_attempt,
        "timeout": _span_document(order.timeout),
        "correlation_id": order.correlation_id,
        "traceparent": order.traceparent,
    }


def order_of(message: Mapping[str, Any]) -> IsolatedRun:
    """Return the order that *message* is."""
    return IsolatedRun(**{**message, "timeout": _span(message["timeout"])})


def answer_document(conclusion: Returned | Raised | Snoozing) -> dict[str, Any]:
    """Return what a function came to, as a message."""
    match conclusion:
        case Returned(result=result):
            return {"returned": result}
        case Raised(failure=failure):
            return {"raised": _failure_document(failure)}
        case Snoozing(until=until):
            return _snooze_document(until)


def answer_of(message: Mapping[str, Any]) -> Conclusion | None:
    """Return what the function came to that *message* tells of, or ``None`` where it does not."""
    try:
        return _answer(message)
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def _answer(message: Mapping[str, Any]) -> Conclusion | None:
    match message:
        case {"returned": result}:
            return Returned(result)
        case {"raised": failure}:
            return Raised(_failure(failure))
        case {"snoozing_for": span}:
            return Snoozing(_span(span))
        case {"snoozing_until": text}:
            return Snoozing(datetime.fromisoformat(text))
    return None


def _snooze_document(until: datetime | timedelta) -> dict[str, Any]:
    if isinstance(until, timedelta):
        return {"snoozing_for": _span_document(until)}
    return {"snoozing_until": until.isoformat()}  # a date of BSON would lose the microseconds


def _failure_document(failure: Failure) -> dict[str, Any]:
    return {
        "message": failure.message,
        "code": failure.code,
        "retryable": failure.retryable,
        "retry_after": None if failure.retry_after is None else _span_document(failure.retry_after),
        "by_function": failure.by_function,
    }


def _failure(document: Mapping[str, Any]) -> Failure:
    after = document["retry_after"]
    return Failure(**{**document, "retry_after": None if after is None else _span(after)})


def _span_document(span: timedelta) -> dict[str, int]:
    return {"days": span.days, "seconds": span.seconds, "microseconds": span.microseconds}


def _span(document: Mapping[str, Any]) -> timedelta:
    return timedelta(**document)
