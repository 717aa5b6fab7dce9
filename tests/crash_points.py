"""Crashes wherever a use case talks to MongoDB or AWS: the points are found by running it, not by a list.

for point, state in points(use_case, make_state):
    use_case(state)  # what runs after the crash
    assert is_well(state), point
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final, TypeVar
from unittest.mock import patch

from botocore.client import BaseClient
from bson.raw_bson import RawBSONDocument
from pymongo.synchronous.pool import Connection

import tidemill
from tests.waiting import eventually

State = TypeVar("State")

_HEADER: Final = 21
"""Bytes of a message before its command: length, ids, kind, flags, and the kind of the first section."""

_DRIVERS: Final = "pymongo_"
"""What the names of the driver's own threads begin with."""

_PRODUCT: Final = f"{Path(tidemill.__file__).parent}{os.sep}"

THREADS_END_WITHIN_SEC: Final = 20.0


class Crash(BaseException):
    """The process ends here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What a use case calls: commands with their collections, and operations of AWS.

    ``callers`` are the functions of Tidemill that were under way at any call, as ``store/claims.py:take``.
    """

    calls: Sequence[str]
    callers: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Point:
    """Before or after the effect of the *number*-th call, counted from 1."""

    number: int
    after: bool
    call: str

    def __repr__(self) -> str:
        return f"crashed {'after' if self.after else 'before'} call {self.number}, {self.call}"


def points(use_case: Callable[[State], object], make_state: Callable[[], State]) -> Iterator[tuple[Point, State]]:
    """Yield every point, each with a new state in which *use_case* has crashed there.

    Where threads call side by side, which of their calls is the n-th is left to chance.

    Raises:
        AssertionError: The use case went on after a crash, or made fewer calls than when they were counted.
    """
    for number in range(1, len(calls(use_case, make_state())) + 1):
        for after in (False, True):
            state = make_state()
            yield crash(use_case, state, number=number, after=after), state


def calls(use_case: Callable[[State], object], state: State) -> list[str]:
    """Run *use_case* and return what it calls, in order: commands with their collections, and operations of AWS."""
    return list(traced(use_case, state).calls)


def traced(use_case: Callable[[State], object], state: State) -> Trace:
    """Run *use_case* and return what it calls, and from where."""
    process = _Process()
    with _watched(process):
        use_case(state)
    return Trace(calls=process.calls, callers=frozenset(process.callers))


def crash(use_case: Callable[[State], object], state: State, *, number: int, after: bool) -> Point:
    """Let *use_case* crash at a point. Nothing that it does from then on gets through, cleaning up included.

    Raises:
        AssertionError: It ended well: the point was not reached, or it went on after the crash.
    """
    process = _Process(number=number, after=after)
    point = _crashed(use_case, state, process)
    if point is None:
        raise AssertionError(f"it ended well, though it was to crash {after=} call {number} of {process.calls}")
    return point


def crash_if_reached(use_case: Callable[[State], object], state: State, *, number: int, after: bool) -> Point | None:
    """Do as `crash`, but return ``None`` where fewer calls were made: threads do not always make as many.

    Raises:
        AssertionError: It went on after the crash.
    """
    return _crashed(use_case, state, _Process(number=number, after=after))


def _crashed(use_case: Callable[[State], object], state: State, process: _Process) -> Point | None:
    with _watched(process):
        try:
            use_case(state)
        except Crash:
            return process.point()
        if process.died_in == threading.get_ident():
            raise AssertionError(f"it ended well after it had crashed at call {process.number} of {process.calls}")
    return process.point() if process.died_in else None


class _Process:
    """Counts calls, and dies at one of them; ``died_in`` is the thread that made it."""

    def __init__(self, *, number: int | None = None, after: bool = False) -> None:
        self.calls: list[str] = []
        self.callers: set[str] = set()
        self.number = number
        self.died_in: int | None = None
        self._after = after
        self._lock = threading.Lock()

    def point(self) -> Point:
        """Return where it died."""
        number = self.number or 0
        return Point(number=number, after=self._after, call=self.calls[number - 1])

    def call(self, name: str) -> int:
        """Note a call that is about to be made, and return its number."""
        with self._lock:
            if self.died_in is None:
                self.calls.append(name)
                self.callers.update(_callers(sys._getframe()))
            number = len(self.calls)
            self._live_on(unless=number == self.number and not self._after)
            return number

    def returned(self, number: int) -> None:
        """Note that a call has had its effect."""
        with self._lock:
            self._live_on(unless=number == self.number)

    def _live_on(self, *, unless: bool) -> None:
        if self.died_in is None and unless:
            self.died_in = threading.get_ident()
        if self.died_in is not None:
            raise Crash


def _callers(frame: FrameType | None) -> Iterator[str]:
    """Yield the functions of Tidemill that have led to *frame*."""
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(_PRODUCT):
            yield f"{code.co_filename.removeprefix(_PRODUCT)}:{code.co_qualname}"
        frame = frame.f_back


@contextmanager
def _watched(process: _Process) -> Iterator[None]:
    """Let *process* know of every call of this process, but of those that the driver makes of its own accord.

    Threads that were begun meanwhile are waited for: what they do later would get through.
    """
    with _watched_mongodb(process), _watched_aws(process), _threads_die_quietly():
        before = set(threading.enumerate())
        try:
            yield
        finally:
            assert eventually(lambda: not _begun_since(before), within=THREADS_END_WITHIN_SEC), _begun_since(before)


def _begun_since(before: set[threading.Thread]) -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one not in before and not one.name.startswith(_DRIVERS)]


@contextmanager
def _threads_die_quietly() -> Iterator[None]:
    tell = threading.excepthook

    def tell_of_others(told: threading.ExceptHookArgs) -> None:
        if told.exc_type is not Crash:
            tell(told)

    with patch.object(threading, "excepthook", tell_of_others):
        yield


@contextmanager
def _watched_mongodb(process: _Process) -> Iterator[None]:
    send, receive = Connection.send_message, Connection.receive_message
    sent: dict[Connection, tuple[int, RawBSONDocument]] = {}

    def send_watched(conn: Connection, message: bytes, max_doc_size: int) -> None:
        if not _is_of_the_driver(conn):
            command = _command(message)
            with freed_by_a_crash(conn, command):
                sent[conn] = process.call(_name(command)), command
        send(conn, message, max_doc_size)

    def receive_watched(conn: Connection, request_id: int | None) -> Any:
        reply = receive(conn, request_id)
        if conn in sent:
            number, command = sent.pop(conn)
            with freed_by_a_crash(conn, command):
                process.returned(number)
        return reply

    @contextmanager
    def freed_by_a_crash(conn: Connection, command: RawBSONDocument) -> Iterator[None]:
        try:
            yield
        except Crash:
            if "autocommit" in command:  # the server would do so a minute later, for which no test waits
                abort = {"abortTransaction": 1} | {name: command[name] for name in ("lsid", "txnNumber", "autocommit")}
                with patch.multiple(Connection, send_message=send, receive_message=receive):
                    conn.command("admin", abort, check=False)
            raise

    with patch.multiple(Connection, send_message=send_watched, receive_message=receive_watched):
        yield


@contextmanager
def _watched_aws(process: _Process) -> Iterator[None]:
    call = vars(BaseClient)["_make_api_call"]

    def call_watched(client: BaseClient, operation: str, parameters: Any) -> Any:
        number = process.call(operation)
        answer = call(client, operation, parameters)
        process.returned(number)
        return answer

    with patch.object(BaseClient, "_make_api_call", call_watched):
        yield


def _is_of_the_driver(conn: Connection) -> bool:
    return not conn.ready or threading.current_thread().name.startswith(_DRIVERS)


def _command(message: bytes) -> RawBSONDocument:
    size = int.from_bytes(message[_HEADER : _HEADER + 4], "little")
    return RawBSONDocument(message[_HEADER : _HEADER + size])


def _name(command: RawBSONDocument) -> str:
    name, value = next(iter(command.items()))
    collection = command.get("collection", value)
    return f"{name} {collection}" if isinstance(collection, str) else name
