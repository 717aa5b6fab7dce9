"""State of the child of one run: a value that messages move, and the result that follows from it.

The child and the forkserver send over separate connections. The state of a forked child therefore has two parts:
``call`` moves on what the child sends, ``end`` on what the forkserver sends. The order between the two does not matter.

The child sends at most two messages about its state: "begun" and an answer, or "refused". Notes are no part of it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any, Final, TypeAlias

from tidemill.errors import IsolationError
from tidemill.runner.process_protocol import ForkserverLostError, decode_answer
from tidemill.runner.results import Crashed, Lost, RunResult, TimedOut

_LOST: Final = Lost("its process was lost with the helper process")
_SENT_NO_ANSWER: Final = Crashed("its process sent something that is no answer")


class ConnectionEnd(Enum):
    """Reason why no further message arrives over a connection."""

    CLOSED = auto()
    GARBLED = auto()


Received: TypeAlias = Mapping[str, Any] | ConnectionEnd
"""A message, or the end of the connection."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The child has sent nothing. It may have called the function, or may still call it."""


@dataclass(frozen=True, slots=True)
class Begun:
    """The child has called the function, or was about to."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The function has ended with *result*."""

    result: RunResult


@dataclass(frozen=True, slots=True)
class Garbled:
    """The child sent something that it may not send at this point. The function may have been called."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The child does not call the function, for *reason*."""

    reason: str


@dataclass(frozen=True, slots=True)
class Closed:
    """The connection was closed before the child called the function. The function will not be called."""


FinalCall: TypeAlias = Answered | Garbled | Closed
Call: TypeAlias = Waiting | Begun | Refused | FinalCall
"""The call of the function, as far as the child has reported it."""


@dataclass(frozen=True, slots=True)
class Reaped:
    """The process of the child has ended; *status* is its exit status, as `os.waitpid` returns it."""

    status: int


@dataclass(frozen=True, slots=True)
class ForkserverLost:
    """The forkserver ended before it reaped the child, which the system then kills."""


@dataclass(frozen=True, slots=True)
class Forking:
    """The forkserver has not yet answered the request of a child."""


@dataclass(frozen=True, slots=True)
class NotForked:
    """There is no child and will be none, for *reason*."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Forked:
    """There is a child. ``has_timed_out`` is set if a deadline passed before the result was decided."""

    call: Call
    end: Reaped | ForkserverLost | None = None
    has_timed_out: bool = False


ChildState: TypeAlias = Forking | NotForked | Forked


def on_child(state: ChildState, received: Received) -> ChildState:
    """Return the state that follows *state* once *received* arrives from the child."""
    match state:
        case Forking():  # the report of the forkserver is still on its way
            return Forked(call=_move_call(Waiting(), received))
        case NotForked():
            return state
        case Forked():
            return replace(state, call=_move_call(state.call, received))


def on_forkserver(state: ChildState, received: Received) -> ChildState:
    """Return the state that follows *state* once *received* arrives from the forkserver."""
    match state, received:
        case Forking(), {"forked": _}:
            return Forked(call=Waiting())
        case Forking(), {"refused": reason}:
            return NotForked(reason)
        case Forked(end=None), {"ended": status}:
            return replace(state, end=Reaped(status))
        case Forked(end=None), ConnectionEnd():
            return replace(state, end=ForkserverLost())
        case _:
            return state


def on_deadline(state: ChildState) -> ChildState:
    """Return the state that follows *state* once the deadline passes. A decided state does not change."""
    if isinstance(state, Forked) and not is_decided(state):
        return replace(state, has_timed_out=True)
    return state


def has_begun(state: ChildState) -> bool:
    """Return whether the function is running, as far as is known."""
    return isinstance(state, Forked) and isinstance(state.call, Begun)


def has_answered(state: ChildState) -> bool:
    """Return whether the result of the function has arrived."""
    return isinstance(state, Forked) and isinstance(state.call, Answered)


def is_decided(state: ChildState) -> bool:
    """Return whether there is nothing to wait for: an answer, an error, or the end of the process is known."""
    match state:
        case Forking() | Forked(call=Waiting() | Begun() | Closed(), end=None):
            return False
        case _:
            return True


def is_call_final(state: ChildState) -> bool:
    """Return whether nothing that the child sends can change the state."""
    return isinstance(state, Forked) and isinstance(state.call, FinalCall)


def is_child_gone(state: ChildState) -> bool:
    """Return whether the process has ended and everything that matters has been received from it."""
    return isinstance(state, Forked) and state.end is not None and not isinstance(state.call, Waiting)


def decide_result(state: ChildState) -> RunResult:
    """Return the result of the run. In doubt the function counts as called.

    Raises:
        ForkserverLostError: The forkserver was lost before the function started.
        IsolationError: The function did not start, for another reason.
    """
    match state:
        case Forking():
            raise ForkserverLostError
        case NotForked(reason) | Forked(call=Refused(reason)):
            raise IsolationError(reason)
        case Forked(call=Answered(result)):
            return result
        case Forked(call=Begun() | Garbled(), has_timed_out=True):
            return TimedOut()
        case Forked(call=Garbled()):
            return _SENT_NO_ANSWER
        case Forked(call=Closed(), end=Reaped(status)):
            raise IsolationError(f"{_describe_exit(status)} before it called the function")
        case Forked(call=Closed()):
            raise ForkserverLostError
        case Forked(end=Reaped(status)):
            return Crashed(_describe_exit(status))
        case Forked():
            return _LOST


def _move_call(call: Call, received: Received) -> Call:
    if isinstance(call, FinalCall):
        return call
    match call, received:
        case (Waiting(), ConnectionEnd.CLOSED):
            return Closed()
        case (_, ConnectionEnd.CLOSED):
            return call
        case (Waiting(), {"begun": _}):
            return Begun()
        case (Waiting(), {"refused": reason}):
            return Refused(str(reason))
        case (Begun(), Mapping() as message) if (result := decode_answer(message)) is not None:
            return Answered(result)
        case _:
            return Garbled()


def _describe_exit(status: int) -> str:
    """Describe the exit *status* of a process, as `os.waitpid` returns it."""
    code = os.waitstatus_to_exitcode(status)
    if code == 0:
        return "its process exited with code 0 without an answer"
    if code > 0:
        return f"its process exited with code {code}"
    cause = " (out of memory?)" if -code == signal.SIGKILL else ""
    return f"its process was killed by {_name_signal(-code)}{cause}"


def _name_signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # of the real-time signals only the first and the last have names
        return f"signal {number}"
