"""Messages between processes: put together from pieces, and refused where they are none."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import bson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.features.isolation.runs import a_run_spec
from tidemill.model import Failure
from tidemill.runner.process_protocol import (
    Frames,
    GarbledError,
    decode_answer,
    decode_run_spec,
    encode_answer,
    encode_run_spec,
)
from tidemill.runner.results import Raised, Returned, SnoozeRequested

LIMIT = 1000


@given(cuts=st.lists(st.integers(min_value=0, max_value=80)))
def test_messages_arrive_in_any_pieces(cuts: list[int]) -> None:
    sent: list[dict[str, Any]] = [{"n": 1}, {}, {"text": "é" * 9}, {"list": [1, None]}]
    data = b"".join(map(bson.encode, sent))
    ends = [*sorted(cuts), len(data)]
    frames = Frames(limit=LIMIT)

    pieces = [data[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]

    assert [message for piece in pieces for message in frames.add(piece)] == sent


@pytest.mark.parametrize(
    "data",
    [
        b"\x00" * 5,
        b"\xff" * 5,
        (LIMIT + 1).to_bytes(4, "little") + b"\x00",
        b"\x05\x00\x00\x00\x01",
        b"\x0c\x00\x00\x00\x02a\x00\xff\xff\xff\x7f\x00",
    ],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(GarbledError):
        list(Frames(limit=LIMIT).add(data))


def test_what_came_before_garbage_counts() -> None:
    found: list[dict[str, Any]] = []

    with pytest.raises(GarbledError):
        found.extend(Frames(limit=LIMIT).add(bson.encode({"n": 1}) + b"\xff" * 5))

    assert found == [{"n": 1}]


@given(st.binary())
def test_whatever_comes_is_a_message_or_refused(data: bytes) -> None:
    try:
        found = list(Frames(limit=LIMIT).add(data))
    except GarbledError:
        return
    assert all(isinstance(message, dict) for message in found)


def over_the_wire(message: dict[str, Any]) -> dict[str, Any]:
    [arrived] = Frames(limit=LIMIT).add(bson.encode(message))
    return arrived


def test_a_run_spec_arrives_as_it_was_given() -> None:
    spec = a_run_spec("noop", {"a": {"b": [1]}}, timeout=0.25, task_id={"x": 1}, attempt=7, is_last_attempt=True)

    assert decode_run_spec(over_the_wire(encode_run_spec(spec))) == spec


FAILURE = Failure(message="no", code="x", retryable=False, retry_after=timedelta(days=1, microseconds=1))


@pytest.mark.parametrize(
    "answer",
    [
        Returned(None),
        Returned({"returned": 1, "raised": 2}),
        Raised(Failure(message="", code="")),
        Raised(FAILURE),
        SnoozeRequested(timedelta.max),
        SnoozeRequested(timedelta(microseconds=-1)),
        SnoozeRequested(datetime.max.replace(tzinfo=UTC)),
        SnoozeRequested(datetime(2031, 7, 1, 0, 0, 0, 1, tzinfo=UTC)),
    ],
)
def test_an_answer_arrives_as_it_was_given(answer: Returned | Raised | SnoozeRequested) -> None:
    assert decode_answer(over_the_wire(encode_answer(answer))) == answer


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"begun": True},
        {"raised": None},
        {"raised": {"message": "no"}},
        {"raised": {"message": "no", "code": "x", "retry_after": None, "more": 1}},
        {"raised": {"message": "no", "code": "x", "retry_after": {"days": 10**15}}},
        {"snoozing_for": "long"},
        {"snoozing_until": 5},
        {"snoozing_until": "tomorrow"},
    ],
)
def test_what_is_no_answer_is_none(message: dict[str, Any]) -> None:
    assert decode_answer(message) is None
