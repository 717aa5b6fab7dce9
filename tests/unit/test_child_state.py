"""The state of a child: every state by every message, and the result that follows."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import Enum
from itertools import product
from typing import Any, Final

import pytest

from tidemill.errors import IsolationError
from tidemill.runner.child_state import (
    Answered,
    Begun,
    Call,
    ChildState,
    Closed,
    ConnectionEnd,
    Forked,
    Forking,
    ForkserverLost,
    Garbled,
    NotForked,
    Reaped,
    Received,
    Refused,
    Waiting,
    decide_result,
    has_answered,
    has_begun,
    is_call_final,
    is_child_gone,
    is_decided,
    on_child,
    on_deadline,
    on_forkserver,
)
from tidemill.runner.process_protocol import ForkserverLostError
from tidemill.runner.results import Crashed, Lost, Returned, RunResult, TimedOut

BEGUN: Final = {"begun": True}
REFUSED: Final = {"refused": "unknown name"}
ANSWER: Final = {"returned": 1}
NONSENSE: Final = {"sent": "by the function"}
GARBLED, CLOSED = ConnectionEnd.GARBLED, ConnectionEnd.CLOSED
FORKED: Final = {"forked": 7}
EXIT_5: Final = {"ended": 5 << 8}
KILLED: Final = {"ended": int(signal.SIGKILL)}

WAITING = Waiting()
IS_BEGUN = Begun()
ANSWERED = Answered(Returned(1))
IS_GARBLED = Garbled()
IS_REFUSED = Refused("unknown name")
IS_CLOSED = Closed()
CALLS: Final[Sequence[Call]] = (WAITING, IS_BEGUN, ANSWERED, IS_GARBLED, IS_REFUSED, IS_CLOSED)
ENDS: Final = (None, Reaped(5 << 8), ForkserverLost())

FROM_CHILD: Final[Sequence[Received]] = (BEGUN, REFUSED, ANSWER, NONSENSE, GARBLED, CLOSED)
AFTER_CHILD: Final[dict[Call, Sequence[Call]]] = {
    WAITING: (IS_BEGUN, IS_REFUSED, IS_GARBLED, IS_GARBLED, IS_GARBLED, IS_CLOSED),
    IS_BEGUN: (IS_GARBLED, IS_GARBLED, ANSWERED, IS_GARBLED, IS_GARBLED, IS_BEGUN),
    ANSWERED: (ANSWERED,) * 6,
    IS_GARBLED: (IS_GARBLED,) * 6,
    IS_REFUSED: (IS_GARBLED, IS_GARBLED, IS_GARBLED, IS_GARBLED, IS_GARBLED, IS_REFUSED),
    IS_CLOSED: (IS_CLOSED,) * 6,
}


EVERY_FORKED: Final = [
    Forked(call=call, end=end, has_timed_out=has_timed_out)
    for call, end, has_timed_out in product(CALLS, ENDS, (False, True))
]


@pytest.mark.parametrize("state", EVERY_FORKED, ids=repr)
def test_what_the_child_sends_moves_the_call_and_nothing_else(state: Forked) -> None:
    moved = [on_child(state, received) for received in FROM_CHILD]

    assert moved == [replace(state, call=call) for call in AFTER_CHILD[state.call]]


def test_what_the_child_sends_proves_that_it_was_forked() -> None:
    moved = [on_child(Forking(), received) for received in FROM_CHILD]

    assert moved == [Forked(call=call) for call in AFTER_CHILD[WAITING]]


def test_a_child_that_was_not_forked_sends_nothing() -> None:
    assert {on_child(NotForked("no process"), received) for received in (BEGUN, CLOSED)} == {NotForked("no process")}


FROM_FORKSERVER: Final[Sequence[Received]] = (FORKED, {"refused": "no process"}, EXIT_5, NONSENSE, GARBLED, CLOSED)


@pytest.mark.parametrize("state", EVERY_FORKED, ids=repr)
def test_what_the_forkserver_sends_moves_the_end_and_nothing_else(state: Forked) -> None:
    moved = [on_forkserver(state, received) for received in FROM_FORKSERVER]

    reaped, lost = ENDS[1:] if state.end is None else (state.end, state.end)
    assert moved == [replace(state, end=end) for end in (state.end, state.end, reaped, state.end, lost, lost)]


def test_the_forkserver_forks_or_does_not() -> None:
    moved = [on_forkserver(Forking(), received) for received in FROM_FORKSERVER]

    assert moved == [Forked(call=WAITING), NotForked("no process"), *[Forking()] * 4]
    assert {on_forkserver(NotForked("none"), received) for received in (FORKED, CLOSED)} == {NotForked("none")}


@pytest.mark.parametrize("state", [Forking(), NotForked("no process"), *EVERY_FORKED], ids=repr)
def test_a_deadline_is_missed_by_a_child_that_is_not_decided(state: ChildState) -> None:
    late = replace(state, has_timed_out=True) if isinstance(state, Forked) else state

    assert on_deadline(state) == (state if is_decided(state) else late)


NOTHING = (False, False, False, False, False)
QUESTIONS = (has_begun, has_answered, is_call_final, is_decided, is_child_gone)
WITHOUT_END: Final[dict[Call, Sequence[bool]]] = {
    WAITING: NOTHING,
    IS_BEGUN: (True, False, False, False, False),
    ANSWERED: (False, True, True, True, False),
    IS_GARBLED: (False, False, True, True, False),
    IS_REFUSED: (False, False, False, True, False),
    IS_CLOSED: (False, False, True, False, False),
}


@pytest.mark.parametrize("state", EVERY_FORKED, ids=repr)
def test_what_is_known_of_a_forked_child(state: Forked) -> None:
    begun, answered, final, decided, _ = WITHOUT_END[state.call]
    has_ended = state.end is not None

    assert tuple(question(state) for question in QUESTIONS) == (
        begun,
        answered,
        final,
        decided or has_ended,
        has_ended and state.call != WAITING,
    )


def test_what_is_known_without_a_child() -> None:
    assert tuple(question(Forking()) for question in QUESTIONS) == NOTHING
    assert tuple(question(NotForked("no process")) for question in QUESTIONS) == (False, False, False, True, False)


EXITED = Crashed("its process exited with code 5")
NO_ANSWER = Crashed("its process sent something that is no answer")
LOST = Lost("its process was lost with the helper process")
UNKNOWN_NAME = "unknown name"
NOT_CALLED = "its process exited with code 5 before it called the function"
GONE = "the helper process is gone"

# In the order of ENDS: not ended, reaped, forkserver lost. A text is the reason why the function has not started.
RESULTS: Final[dict[Call, Sequence[RunResult | str]]] = {
    WAITING: (LOST, EXITED, LOST),
    IS_BEGUN: (LOST, EXITED, LOST),
    ANSWERED: (Returned(1),) * 3,
    IS_GARBLED: (NO_ANSWER,) * 3,
    IS_REFUSED: (UNKNOWN_NAME,) * 3,
    IS_CLOSED: (GONE, NOT_CALLED, GONE),
}


@pytest.mark.parametrize("state", EVERY_FORKED, ids=repr)
def test_the_result_of_a_forked_child(state: Forked) -> None:
    has_missed_deadline = state.has_timed_out and state.call in (IS_BEGUN, IS_GARBLED)

    expected = TimedOut() if has_missed_deadline else RESULTS[state.call][ENDS.index(state.end)]

    assert result_or_reason(state) == expected


def test_there_is_no_result_without_a_child() -> None:
    assert result_or_reason(Forking()) == GONE
    assert result_or_reason(NotForked("no process")) == "no process"


@pytest.mark.parametrize("state", [Forking(), Forked(call=IS_CLOSED), Forked(call=IS_CLOSED, end=ForkserverLost())])
def test_a_run_is_tried_again_if_only_the_forkserver_is_to_blame(state: ChildState) -> None:
    with pytest.raises(ForkserverLostError):
        decide_result(state)


@pytest.mark.parametrize(
    "state", [NotForked("no process"), Forked(call=IS_REFUSED), Forked(call=IS_CLOSED, end=Reaped(0))], ids=repr
)
def test_a_run_is_not_tried_again_otherwise(state: ChildState) -> None:
    with pytest.raises(IsolationError) as caught:
        decide_result(state)
    assert not isinstance(caught.value, ForkserverLostError)


def result_or_reason(state: ChildState) -> RunResult | str:
    """The result, or the reason why the function has not started."""
    try:
        return decide_result(state)
    except IsolationError as error:
        return error.reason


STATUSES = {
    0: "its process exited with code 0 without an answer",
    3 << 8: "its process exited with code 3",
    int(signal.SIGSEGV): "its process was killed by SIGSEGV",
    int(signal.SIGKILL): "its process was killed by SIGKILL (out of memory?)",
    signal.SIGRTMIN + 1: f"its process was killed by signal {signal.SIGRTMIN + 1}",
}


@pytest.mark.parametrize("status", STATUSES)
def test_an_exit_is_described(status: int) -> None:
    assert decide_result(Forked(call=IS_BEGUN, end=Reaped(status))) == Crashed(STATUSES[status])


class Time(Enum):
    """What is no message."""

    DEADLINE = 0


Event = tuple[str, Received] | Time
DEADLINE = Time.DEADLINE


def child(*received: Received) -> list[Event]:
    return [("child", message) for message in received]


def forkserver(*received: Received) -> list[Event]:
    return [("forkserver", message) for message in received]


def after(events: list[Event]) -> ChildState:
    """The state of a forked child after *events*."""
    state = on_forkserver(Forking(), FORKED)
    for event in events:
        match event:
            case Time():
                state = on_deadline(state)
            case ("child", received):
                state = on_child(state, received)
            case (_, received):
                state = on_forkserver(state, received)
    return state


KILLED_EARLY = "its process was killed by SIGKILL (out of memory?) before it called the function"
IN_TIME: Final[dict[str, tuple[list[Event], list[Event], RunResult | str]]] = {
    "answered, not yet reaped": (child(BEGUN, ANSWER), [], Returned(1)),
    "answered, then killed": (child(BEGUN, ANSWER, CLOSED), forkserver(KILLED, CLOSED), Returned(1)),
    "answered, then garbage": (child(BEGUN, ANSWER, GARBLED), forkserver(EXIT_5), Returned(1)),
    "answered, forkserver lost": (child(BEGUN, ANSWER, CLOSED), forkserver(CLOSED), Returned(1)),
    "garbage, then an answer": (child(BEGUN, NONSENSE, ANSWER), forkserver(KILLED), NO_ANSWER),
    "garbage before it began": (child(GARBLED), forkserver(KILLED), NO_ANSWER),
    "refusal by the function": (child(BEGUN, REFUSED, CLOSED), forkserver(KILLED), NO_ANSWER),
    "begun after a refusal": (child(REFUSED, BEGUN, CLOSED), forkserver(KILLED), NO_ANSWER),
    "answer before it began": (child(ANSWER, CLOSED), forkserver(KILLED), NO_ANSWER),
    "closed by the function, exit not yet reported": (child(BEGUN, CLOSED), [], LOST),
    "closed by the function, exit reported": (child(BEGUN, CLOSED), forkserver(EXIT_5, CLOSED), EXITED),
    "died before it began": (child(CLOSED), forkserver(EXIT_5, CLOSED), NOT_CALLED),
    "died, and may have begun": ([], forkserver(EXIT_5, CLOSED), EXITED),
    "refused": (child(REFUSED, CLOSED), forkserver({"ended": 0}, CLOSED), UNKNOWN_NAME),
    "refused, connection still open": (child(REFUSED), forkserver({"ended": 0}), UNKNOWN_NAME),
    "refused, forkserver lost": (child(REFUSED, CLOSED), forkserver(CLOSED), UNKNOWN_NAME),
    "forkserver lost before it began": (child(CLOSED), forkserver(CLOSED), GONE),
    "forkserver lost after it began": (child(BEGUN, CLOSED), forkserver(CLOSED), LOST),
    "forkserver lost, and it may have begun": ([], forkserver(CLOSED), LOST),
    "forkserver garbled": (child(BEGUN, CLOSED), forkserver(GARBLED), LOST),
}


@pytest.mark.parametrize("name", IN_TIME)
def test_the_order_between_child_and_forkserver_does_not_matter(name: str) -> None:
    from_child, from_forkserver, expected = IN_TIME[name]

    for events in interleave(from_child, from_forkserver):
        assert result_or_reason(after(events)) == expected, events


def interleave(first: list[Event], second: list[Event]) -> Iterator[list[Event]]:
    """Every order of both in which each keeps its own."""
    if not first or not second:
        yield [*first, *second]
        return
    yield from ([first[0], *rest] for rest in interleave(first[1:], second))
    yield from ([second[0], *rest] for rest in interleave(first, second[1:]))


TOO_LATE: Final[dict[str, tuple[list[Event], RunResult | str]]] = {
    "runs too long": ([*child(BEGUN), DEADLINE, *forkserver(KILLED)], TimedOut()),
    "runs too long, forkserver silent": ([*child(BEGUN), DEADLINE], TimedOut()),
    "runs too long, forkserver lost": ([*child(BEGUN), DEADLINE, *forkserver(CLOSED)], TimedOut()),
    "answers before it is killed": ([*child(BEGUN), DEADLINE, *child(ANSWER), *forkserver(KILLED)], Returned(1)),
    "sends garbage before it is killed": ([*child(BEGUN), DEADLINE, *child(GARBLED)], TimedOut()),
    "begins before it is killed": ([DEADLINE, *child(BEGUN, CLOSED), *forkserver(KILLED)], TimedOut()),
    "has begun, which arrives last": ([DEADLINE, *forkserver(KILLED), *child(BEGUN, CLOSED)], TimedOut()),
    "begins and answers before it is killed": ([DEADLINE, *child(BEGUN, ANSWER)], Returned(1)),
    "is killed before it begins": ([DEADLINE, *child(CLOSED), *forkserver(KILLED)], KILLED_EARLY),
    "refuses before it is killed": ([DEADLINE, *child(REFUSED, CLOSED), *forkserver(KILLED)], UNKNOWN_NAME),
    "does not begin, forkserver lost": ([DEADLINE, *child(CLOSED), *forkserver(CLOSED)], GONE),
    "may have begun, forkserver silent": ([DEADLINE], LOST),
    "answered before the deadline": ([*child(BEGUN, ANSWER), DEADLINE, *forkserver(KILLED)], Returned(1)),
    "died before the deadline": ([*child(BEGUN), *forkserver(EXIT_5), DEADLINE], EXITED),
    "died before the deadline, begun arrives later": ([*forkserver(EXIT_5), DEADLINE, *child(BEGUN)], EXITED),
    "garbled before the deadline": ([*child(BEGUN, GARBLED), DEADLINE, *forkserver(KILLED)], NO_ANSWER),
}


@pytest.mark.parametrize("name", TOO_LATE)
def test_a_child_and_a_deadline(name: str) -> None:
    events, expected = TOO_LATE[name]

    assert result_or_reason(after(events)) == expected


@pytest.mark.parametrize("message", [{"raised": "no failure"}, {"snoozing_until": 5}, {}], ids=repr)
def test_what_is_no_answer_is_garbled(message: dict[str, Any]) -> None:
    assert on_child(Forked(call=IS_BEGUN), message) == Forked(call=IS_GARBLED)
