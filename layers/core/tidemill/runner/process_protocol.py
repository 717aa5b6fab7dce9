"""Messages between executor, forkserver and child, and the interface of isolated runs.

Messages are BSON, so that payloads and results arrive with their types.
"""

from __future__ import annotations

import math
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from typing import Any, Final, Protocol

import bson
from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument

from tidemill.documents import decode
from tidemill.errors import IsolationError
from tidemill.model import Failure, TaskId
from tidemill.policy.failures import MAX_NOTE_CHARS, truncate_text
from tidemill.runner.results import Raised, Returned, RunResult, SnoozeRequested

RUN: Final = b"r"
"""Sent over the control connection with two sockets: the one of the child, and the one to watch the child by."""

QUIT: Final = b"q"
CANCEL: Final = b"c"

JSON_LOG: Final = "json"
PLAIN_LOG: Final = "plain"
"""Arguments of the forkserver: loggers of functions write lines of JSON, or only what task modules set up."""

MAX_RUN_SPEC_BYTES: Final = 48 * 1024**2
"""Well above the largest BSON document that MongoDB takes."""

MAX_ANSWER_BYTES: Final = 256 * 1024
"""Well above a result and the message of a failure, which are bounded before they are sent."""

MAX_READ_BYTES: Final = 64 * 1024
"""Read from a connection at once."""

POLL_INTERVAL_SEC: Final = 0.2
"""Also the longest delay of a cancellation."""

_MIN_MESSAGE_BYTES: Final = 5
"""Length of the shortest BSON document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """One run of the function registered as *name*. ``timeout`` counts from the call of the function.

    With ``keeps_traceback`` the answer has the traceback of an exception.
    """

    name: str
    payload: dict[str, Any]
    task_id: TaskId
    attempt: int
    is_last_attempt: bool
    timeout: timedelta
    correlation_id: str | None = None
    traceparent: str | None = None
    keeps_traceback: bool = False


class IsolatedRunner(Protocol):
    """Runs each function in a process of its own, so that a crash ends no other run."""

    def run(self, spec: RunSpec, *, cancelled: threading.Event, take_note: Callable[[str], object]) -> RunResult:
        """Run the function and return its result. May be called from many threads at once.

        Once *cancelled* is set, the context of the function reports the cancellation. *take_note* is called with each
        note of the function.

        Raises:
            IsolationError: No process can run the function. It has not started and will not.
        """

    def close(self) -> None:
        """End every run and every process."""


class GarbledError(Exception):
    """The received bytes are no message, so the messages after them are lost too. Private to this package."""


class ForkserverLostError(IsolationError):
    """The forkserver died or does not answer. The function has not started."""

    def __init__(self) -> None:
        super().__init__("the helper process is gone")


class Frames:
    """Assembles messages of up to *limit* bytes from the received pieces."""

    def __init__(self, *, limit: int) -> None:
        self._limit = limit
        self._buffer = bytearray()

    def add(self, data: bytes) -> Iterator[dict[str, Any]]:
        """Yield the messages that *data* completes.

        Raises:
            GarbledError: The bytes after the yielded messages are no message.
        """
        self._buffer += data
        while len(self._buffer) >= _MIN_MESSAGE_BYTES:
            size = int.from_bytes(self._buffer[:4], "little")
            if not _MIN_MESSAGE_BYTES <= size <= self._limit:
                raise GarbledError
            if len(self._buffer) < size:
                break
            message = _decode_message(bytes(self._buffer[:size]))
            del self._buffer[:size]
            yield message


def _decode_message(data: bytes) -> dict[str, Any]:
    try:
        return decode(RawBSONDocument(data))
    except (BSONError, ValueError, TypeError, RecursionError):
        raise GarbledError from None


def send_message(connection: socket.socket, message: Mapping[str, Any]) -> None:
    """Send the whole *message*.

    Raises:
        OSError: The other side is gone, or did not read in time.
    """
    connection.sendall(bson.encode(message))


def poll_intervals(span: timedelta) -> range:
    """Return a range with an element for each poll interval in *span*, at least one."""
    return range(max(1, math.ceil(span.total_seconds() / POLL_INTERVAL_SEC)))


def encode_run_spec(spec: RunSpec) -> dict[str, Any]:
    """Return *spec* as a message."""
    return _encode_fields(spec)


def decode_run_spec(message: Mapping[str, Any]) -> RunSpec:
    """Return the run spec in *message*."""
    return RunSpec(**{**message, "timeout": _decode_span(message["timeout"])})


def encode_answer(result: Returned | Raised | SnoozeRequested) -> dict[str, Any]:
    """Return the result of a called function as a message."""
    match result:
        case Returned(result=value):
            return {"returned": value}
        case Raised(failure=failure):
            return {"raised": _encode_fields(failure)}
        case SnoozeRequested(until=until):
            return _encode_snooze(until)


def decode_answer(message: Mapping[str, Any]) -> RunResult | None:
    """Return the result in *message*, or ``None`` if it holds none."""
    try:
        return _parse_answer(message)
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def encode_note(text: str) -> dict[str, Any]:
    """Return a note of the function as a message."""
    return {"note": text}


def decode_note(message: Mapping[str, Any]) -> str | None:
    """Return the note in *message*, bounded, or ``None`` if it holds none."""
    match message:
        case {"note": str(text)}:
            return truncate_text(text, MAX_NOTE_CHARS)
    return None


def _parse_answer(message: Mapping[str, Any]) -> RunResult | None:
    match message:
        case {"returned": value}:
            return Returned(value)
        case {"raised": failure}:
            return Raised(_decode_failure(failure))
        case {"snoozing_for": span}:
            return SnoozeRequested(_decode_span(span))
        case {"snoozing_until": text}:
            return SnoozeRequested(datetime.fromisoformat(text))
    return None


def _encode_snooze(until: datetime | timedelta) -> dict[str, Any]:
    if isinstance(until, timedelta):
        return {"snoozing_for": _encode_span(until)}
    return {"snoozing_until": until.isoformat()}  # a BSON date would lose the microseconds


def _decode_failure(document: Mapping[str, Any]) -> Failure:
    after = document["retry_after"]
    return Failure(**{**document, "retry_after": None if after is None else _decode_span(after)})


def _encode_fields(value: RunSpec | Failure) -> dict[str, Any]:
    entries = {field.name: getattr(value, field.name) for field in fields(value)}
    return {name: _encode_span(entry) if isinstance(entry, timedelta) else entry for name, entry in entries.items()}


def _encode_span(span: timedelta) -> dict[str, int]:
    return {"days": span.days, "seconds": span.seconds, "microseconds": span.microseconds}


def _decode_span(document: Mapping[str, Any]) -> timedelta:
    return timedelta(**document)
