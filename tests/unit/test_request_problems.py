"""What is wrong with a request is told shortly, and without what was sent."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, ValidationError

from tests.ids import shown
from tidemill import InvalidRequestError
from tidemill.model import SELECTIONS
from tidemill.requests.events import ExecuteRequest, SweepRequest, find_dead_owner
from tidemill.requests.tasks import new_task
from tidemill.requests.validation import MAX_FIELD_CHARS, MAX_PROBLEMS, parse_request, problems

SECRET = "S3cr3t-pa55word"


def refused(**fields: Any) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        new_task(**({"name": "noop", "payload": {}} | fields))
    return caught.value


FIELDS = ["name", "payload", "queue", "priority", "delay_sec", "not_before", "expires_at", "retry", "max_retries",
          "timeout_sec", "idempotency_key"]  # fmt: skip


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize(
    "value",
    [SECRET + "\x00", f"\u200b{SECRET}", [SECRET], {SECRET: object()}, SECRET.encode(), date(2026, 7, 1), object()],
    ids=shown,
)
def test_no_message_repeats_a_value(field: str, value: object) -> None:  # P8
    if field in {"retry", "payload"} and isinstance(value, dict):
        value = {"a": {SECRET, object}}

    error = refused(**{field: value})

    assert SECRET not in str(error)
    assert SECRET not in repr(error.__cause__)
    assert error.__suppress_context__


@pytest.mark.parametrize(
    "option", ["strategy", "base_sec", "factor", "max_sec", "jitter", "jitter_factor", "max_retries"]
)
def test_no_message_repeats_a_value_of_a_policy(option: str) -> None:  # P8
    for value in (SECRET, [SECRET], {SECRET: SECRET}):
        error = refused(retry={option: value})

        assert [one.field for one in error.problems] == [f"retry.{option}"]
        assert SECRET not in str(error)


def test_no_message_repeats_a_time() -> None:
    assert "24:99" not in str(refused(not_before="2026-07-01T09:00:00+24:99"))


def test_a_name_of_5_mb_does_not_come_back() -> None:
    error = refused(**{"k" * 5_000_000: 1})

    assert len(str(error)) < 300
    assert error.problems[0].field.startswith("kkk")
    assert len(error.problems[0].field) <= MAX_FIELD_CHARS


def test_many_problems_are_told_as_a_few() -> None:
    wrong = {f"k{n}": 1 for n in range(15)}

    error = refused(**wrong, retry=wrong)

    assert len(error.problems) == MAX_PROBLEMS + 1
    assert (error.problems[-1].field, error.problems[-1].message) == ("task", "and 10 more problems")
    assert len(str(error)) < 5000


@pytest.mark.parametrize("where", ["task", "retry"])
def test_a_hundred_thousand_are_one_problem(where: str) -> None:
    wrong = {f"k{n}": 1 for n in range(100_000)}

    error = refused(**(wrong if where == "task" else {"retry": wrong}))

    assert [one.message for one in error.problems] == ["has far too many fields"]


@given(st.text(min_size=1, max_size=200))
def test_a_name_is_told_on_one_line_in_text_every_log_can_hold(name: str) -> None:
    try:
        new_task(name="noop", payload={}, retry={name: 1})
    except InvalidRequestError as error:
        told = error.problems[0].field
        assert told.isprintable()
        told.encode()


class Circle(BaseModel):
    kind: Literal["circle"]


class Square(BaseModel):
    kind: Literal["square"]


class Drawing(BaseModel):
    shape: Annotated[Circle | Square, Field(discriminator="kind")]
    sizes: dict[str, int] = {}


def test_the_tag_of_a_union_is_a_value_too() -> None:
    with pytest.raises(ValidationError) as caught:
        Drawing.model_validate({"shape": {"kind": SECRET}, "sizes": {"a": SECRET}})

    told = {one.field: one.message for one in problems(caught.value, below="payload")}

    assert list(told) == ["shape", "sizes.a"]
    assert SECRET not in str(told)


@pytest.mark.parametrize("event", [None, {}])
def test_nothing_is_as_good_as_an_empty_event(event: object) -> None:  # F66
    assert parse_request(ExecuteRequest, event) == ExecuteRequest(source="tick", queues=[])
    assert parse_request(SweepRequest, event) == SweepRequest()


@pytest.mark.parametrize("event", [[], "x", 5, True, b"{}"])
def test_an_event_that_is_no_object_is_refused(event: object) -> None:  # F66
    for model in (ExecuteRequest, SweepRequest):
        with pytest.raises(InvalidRequestError, match="event: Input should be a valid dictionary"):
            parse_request(model, event)


@pytest.mark.parametrize(
    "event",
    [
        {"source": "tick"},
        {"source": "wake", "queues": ["eu", "us"], "lane": "retry"},
        {"batch_size": 5},
        {"batch_size": 1000, "concurrency": 1},
        {"queues": [], "lane": None},
        *({"selection": one} for one in SELECTIONS),
        {"selection": None},
    ],
)
def test_an_order_may_choose(event: dict[str, Any]) -> None:
    assert parse_request(ExecuteRequest, event).model_dump(exclude_unset=True) == event


@pytest.mark.parametrize(
    ("event", "field"),
    [
        ({"source": "aws.events"}, "source"),
        ({"lane": "slow"}, "lane"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": -5}, "batch_size"),
        ({"batch_size": "10"}, "batch_size"),
        ({"batch_size": 10**6}, "batch_size"),
        ({"batch_size": True}, "batch_size"),
        ({"concurrency": 1.5}, "concurrency"),
        ({"queues": "eu"}, "queues"),
        ({"queues": [{"$ne": 1}]}, "queues.0"),
        ({"queues": ["eu", "!"]}, "queues.1"),
        ({"queues": ["eu"] * 101}, "queues"),
        ({"queue": {"$ne": 1}}, "queue"),
        ({"key1": "v"}, "key1"),
        *(({"selection": value}, "selection") for value in ("moon", "Weighted", "", 1, ["weighted"])),
        ({"time": "garbage"}, "time"),
        ({1: 2}, "1"),
    ],
)
def test_an_order_that_is_not_understood_is_refused(event: dict[Any, Any], field: str) -> None:  # F47, F67, F71
    with pytest.raises(InvalidRequestError) as caught:
        parse_request(ExecuteRequest, event)

    assert [one.field for one in caught.value.problems] == [field]


def test_a_sweep_has_nothing_to_choose() -> None:
    with pytest.raises(InvalidRequestError, match="batch_size: there is no such field"):
        parse_request(SweepRequest, {"batch_size": 5})


DEATH = {"requestId": "r-1", "functionArn": "arn:aws:lambda:eu-central-1:1:function:x", "condition": "RetriesExhausted"}


@pytest.mark.parametrize(
    ("event", "owner"),
    [
        ({"version": "1.0", "requestContext": DEATH, "requestPayload": {}}, "r-1"),
        ({"requestContext": DEATH | {"requestId": ""}}, None),
        ({"requestContext": DEATH | {"requestId": 7}}, None),
        ({"requestContext": {"requestId": "r-1"}}, None),
        ({"requestContext": {"requestId": "r-1", "identity": {}}}, None),
        ({"requestContext": {}}, None),
        ({"requestContext": None}, None),
        ({"requestContext": "r-1"}, None),
        ({}, None),
        ([], None),
        (None, None),
    ],
)
def test_the_report_of_a_death_names_the_owner(event: object, owner: str | None) -> None:
    assert find_dead_owner(event) == owner
