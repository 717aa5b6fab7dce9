"""What an operator may ask for: no type is guessed, no name unknown, no value repeated; and answers that fit."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.ids import shown
from tidemill.admin.api import (
    MAX_ANSWER_BYTES,
    OPERATIONS,
    NoOperationError,
    bound_answer,
    read_operation,
)
from tidemill.admin.queues import apply_changes
from tidemill.admin.requests import QueueSet, TaskCancel, TaskList
from tidemill.errors import InvalidRequestError
from tidemill.model import Adaptive, Budget, Pressure, QueueOptions

SECRET = "S3cr3t-pa55word"
QUEUES = ("queue.declare", "queue.status", "queue.pause", "queue.resume")
BY_ID = ("task.show", "task.explain", "task.retry", "task.cancel")
ALL = QueueOptions(
    paused=True,
    selection="oldest_first",
    retry_share=0.5,
    max_in_flight_retries=7,
    pressure=Pressure(adaptive=Adaptive(scale=3, max_sec=9), budget=Budget(per_minute=4, factor=5)),
)


def problems(**event: Any) -> dict[str, str]:
    with pytest.raises(InvalidRequestError) as refused:
        read_operation(event)
    assert not isinstance(refused.value, NoOperationError)
    assert SECRET not in str(refused.value)
    return {one.field: one.message for one in refused.value.problems}


def a_change(**choices: Any) -> QueueSet:
    request = read_operation({"op": "queue.set", "queue": "eu", **choices})
    assert isinstance(request, QueueSet)
    return request


def test_these_are_the_operations() -> None:
    assert OPERATIONS == (
        "queue.list", "queue.declare", "queue.status", "queue.pause", "queue.resume", "queue.set",
        "caller.list", "caller.grant", "caller.revoke",
        "task.list", "task.show", "task.explain", "task.retry", "task.cancel",
        "dlq.groups", "dlq.list", "dlq.show", "dlq.redrive", "dlq.purge", "dlq.export", "stats",
    )  # fmt: skip


@pytest.mark.parametrize(
    "event",
    [{"op": "queue.list"}, {"op": "task.list"}, {"op": "stats"}]
    + [{"op": op, "queue": "eu"} for op in QUEUES]
    + [{"op": op, "id": "order-7"} for op in BY_ID],
    ids=shown,
)
def test_the_shortest_request_of_each_is_enough(event: dict[str, Any]) -> None:
    assert read_operation(event).op == event["op"]


@pytest.mark.parametrize("op", ["queue.list", "task.list"])
def test_a_cursor_is_as_long_as_a_page_may_name_one(op: str) -> None:
    assert read_operation({"op": op, "cursor": "x" * 1000}).op == op


def test_what_is_left_out_has_its_default() -> None:
    listing, cancel = read_operation({"op": "task.list"}), read_operation({"op": "task.cancel", "id": "x"})

    assert isinstance(listing, TaskList)
    assert isinstance(cancel, TaskCancel)
    assert (listing.limit, listing.cursor, cancel.force) == (20, None, False)


@pytest.mark.parametrize("limit", [0, -1, 101, 1.5, 20.0, "20", "", True, 10**30, None, [20], {"$gt": 0}], ids=shown)
def test_a_limit_that_is_none_is_refused(limit: Any) -> None:  # F67
    assert problems(op="task.list", limit=limit).keys() == {"limit"}


@pytest.mark.parametrize("field", ["queue", "name", "cursor"])
@pytest.mark.parametrize(
    "value",
    [{"$ne": None}, {"$regex": "."}, ["default"], 7, True, "", "x" * 65_537, "\ud83c", SECRET.encode()],
    ids=shown,
)
def test_a_filter_is_a_word(field: str, value: Any) -> None:  # F71, F41
    assert problems(op="task.list", **{field: value}).keys() == {field}


@pytest.mark.parametrize("status", ["dead", "PENDING", "", {"$ne": "done"}, ["pending"], 1, SECRET])
def test_a_status_is_one_of_five(status: Any) -> None:
    assert (
        "'pending', 'processing', 'done', 'failed' or 'cancelled'" in problems(op="task.list", status=status)["status"]
    )


@pytest.mark.parametrize("op", BY_ID)
@pytest.mark.parametrize("task_id", [{"$gt": ""}, ["x"], 7, None, "", "\ud83c", "x" * 8193], ids=shown)
def test_an_id_is_text(op: str, task_id: Any) -> None:  # F71
    assert problems(op=op, id=task_id).keys() == {"id"}


@pytest.mark.parametrize("op", QUEUES)
@pytest.mark.parametrize("queue", [{"$ne": 1}, ["eu"], 7, None, "", "\ud83c"], ids=shown)
def test_a_queue_is_named_by_text(op: str, queue: Any) -> None:  # F71
    assert problems(op=op, queue=queue).keys() == {"queue"}


@pytest.mark.parametrize("force", ["true", 1, None, [], {"$ne": False}])
def test_force_is_true_or_false(force: Any) -> None:
    assert problems(op="task.cancel", id="x", force=force).keys() == {"force"}


@pytest.mark.parametrize(
    "since_sec", [0, -1, "1h", True, None, float("nan"), float("inf"), 1e400, 10**10, [1]], ids=shown
)
def test_a_time_back_is_a_number_of_seconds(since_sec: Any) -> None:  # F47
    assert problems(op="stats", since_sec=since_sec).keys() == {"since_sec"}


@pytest.mark.parametrize("op", OPERATIONS)
@pytest.mark.parametrize("extra", ["_id", "payload", "status$ne", "sort", "fields", "lease", "paused", SECRET])
def test_a_field_that_an_operation_does_not_have_is_refused(op: str, extra: str) -> None:  # F46, F71
    with pytest.raises(InvalidRequestError) as refused:
        read_operation({"op": op, "queue": "eu", "id": "x", extra: SECRET})

    assert extra in {one.field for one in refused.value.problems}
    assert SECRET not in "".join(one.message for one in refused.value.problems)


@pytest.mark.parametrize(
    ("choice", "field", "message"),
    [
        ({"selection": "random"}, "selection", "must be one of weighted, retries_first, oldest_first"),
        ({"selection": {"$ne": 1}}, "selection", "must be one of weighted, retries_first, oldest_first"),
        ({"retry_share": 1.1}, "retry_share", "must be a number from 0 to 1"),
        ({"retry_share": "0.5"}, "retry_share", "must be a number from 0 to 1"),
        ({"retry_share": True}, "retry_share", "must be a number from 0 to 1"),
        ({"retry_share": float("nan")}, "retry_share", "must be a number from 0 to 1"),
        ({"max_in_flight_retries": -1}, "max_in_flight_retries", "must be a whole number from 0 to 1000000"),
        ({"max_in_flight_retries": 10**30}, "max_in_flight_retries", "must be a whole number from 0 to 1000000"),
        ({"adaptive": {"scale": 0}}, "adaptive.scale", "must be a whole number from 1 to 1000000"),
        ({"adaptive": {"scale": None}}, "adaptive.scale", "must be a whole number from 1 to 1000000"),
        ({"adaptive": {"max_sec": float("inf")}}, "adaptive.max_sec", "must be a number above 0, up to 7 days"),
        ({"budget": {"per_minute": 1.5}}, "budget.per_minute", "must be a whole number from 1 to 1000000"),
        ({"budget": {"factor": 0.5}}, "budget.factor", "must be a number from 1 to 1000"),
        ({"budget": {"floor": 1}}, "budget.floor", "there is no such field"),
    ],
)
def test_a_choice_out_of_range_is_named(choice: dict[str, Any], field: str, message: str) -> None:  # F47
    assert problems(op="queue.set", queue="eu", **choice) == {field: message}


@pytest.mark.parametrize("choice", [{"adaptive": "on"}, {"adaptive": True}, {"budget": []}, {"budget": 100}], ids=shown)
def test_pressure_is_an_object_or_null(choice: dict[str, Any]) -> None:
    assert problems(op="queue.set", queue="eu", **choice).keys() == choice.keys()


def test_a_change_of_nothing_is_refused() -> None:
    assert problems(op="queue.set", queue="eu")["event"].startswith("nothing to change: give at least one of adaptive")


@pytest.mark.parametrize(
    ("choice", "options"),
    [
        ({"selection": "retries_first"}, QueueOptions(selection="retries_first")),
        ({"retry_share": 0}, QueueOptions(retry_share=0.0)),
        ({"max_in_flight_retries": 3}, QueueOptions(max_in_flight_retries=3)),
        ({"max_in_flight_retries": 0}, QueueOptions(max_in_flight_retries=0)),
        ({"adaptive": {}}, QueueOptions(pressure=Pressure(adaptive=Adaptive()))),
        ({"adaptive": {"scale": 5}}, QueueOptions(pressure=Pressure(adaptive=Adaptive(scale=5)))),
        ({"budget": {"factor": 3.0}}, QueueOptions(pressure=Pressure(budget=Budget(factor=3.0)))),
        ({"budget": None}, QueueOptions()),
    ],
)
def test_what_is_given_is_set(choice: dict[str, Any], options: QueueOptions) -> None:
    assert apply_changes(QueueOptions(), a_change(**choice)) == options


@pytest.mark.parametrize("field", ["selection", "retry_share", "max_in_flight_retries"])
def test_null_takes_a_choice_back_and_leaves_the_others(field: str) -> None:
    after = apply_changes(ALL, a_change(**{field: None}))

    assert {name for name in QueueOptions.__slots__ if getattr(after, name) != getattr(ALL, name)} == {field}
    assert getattr(after, field) is None


def test_switching_on_what_is_on_keeps_its_numbers() -> None:
    after = apply_changes(ALL, a_change(adaptive={}, budget={"per_minute": 8}))

    assert after.pressure == Pressure(adaptive=Adaptive(scale=3, max_sec=9), budget=Budget(per_minute=8, factor=5))


def test_an_answer_that_fits_is_left_alone() -> None:
    answer = {"tasks": [{"id": "x" * 10_000}] * 400, "next": None}

    assert bound_answer(answer) is answer


@pytest.mark.parametrize(
    "answer",
    [
        {"text": "x" * 7_000_000},
        {"control": "\x01" * 1_000_000},
        {"emoji": "\N{WAVING HAND SIGN}" * 1_000_000},
        {"log": [{"note": "x" * 2000}] * 5_000},
        {"queues": [{"current": [{"name": "\x01" * 2000}] * 20}] * 50},
        {"queues": [[{"name": "\x01" * 2000} for _ in range(100)]] * 100},
    ],
    ids=lambda answer: next(iter(answer)),
)
def test_an_answer_that_is_too_large_is_cut_until_it_fits(answer: dict[str, Any]) -> None:  # F69
    cut = bound_answer(answer | {"now": "2031-07-01T09:00:00.000Z", "n": 7})

    assert len(json.dumps(cut)) <= MAX_ANSWER_BYTES
    assert (cut["truncated"], cut["now"], cut["n"]) == (True, "2031-07-01T09:00:00.000Z", 7)


def test_a_cursor_is_left_whole() -> None:
    cut = bound_answer({"tasks": [{"id": "x" * 50_000}] * 200, "next": "y" * 50_000})

    assert (cut["truncated"], cut["next"]) == (True, "y" * 50_000)


def test_of_a_list_the_first_and_the_newest_are_left() -> None:
    cut = bound_answer({"log": [{"n": n, "note": "x" * 100} for n in range(50_000)]})

    assert [one["n"] for one in cut["log"][:2]] == [0, 48_001]
    assert cut["log"][-1]["n"] == 49_999
