"""What may be asked of dead letters: nothing is done to all of them unless somebody says all."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.ids import shown
from tidemill.admin.api import read_operation
from tidemill.admin.requests import DeadLetterList, DeadLetterPurge, DeadLetterRedrive
from tidemill.errors import InvalidRequestError

CHANGES = ("dlq.redrive", "dlq.purge")
SECRET = "S3cr3t-pa55word"


def problems(**event: Any) -> dict[str, str]:
    with pytest.raises(InvalidRequestError) as refused:
        read_operation(event)
    assert SECRET not in str(refused.value)
    return {one.field: one.message for one in refused.value.problems}


@pytest.mark.parametrize(
    "event",
    [
        {"op": "dlq.groups"},
        {"op": "dlq.list"},
        {"op": "dlq.show", "id": "order-7"},
        {"op": "dlq.export"},
        *({"op": op, "id": "order-7"} for op in CHANGES),
        *({"op": op, "id": "order-7", "redrives": 2} for op in CHANGES),
        *({"op": op, "all": True} for op in CHANGES),
        *({"op": op, "fingerprint": "00000000000000aa"} for op in CHANGES),
        *({"op": op, "name": "noop", "queue": "eu"} for op in CHANGES),
        *({"op": op, "since": "2031-07-01T09:00:00Z", "until": "2031-07-01T12:00:00+02:00"} for op in CHANGES),
    ],
    ids=shown,
)
def test_the_shortest_request_of_each_is_enough(event: dict[str, Any]) -> None:
    assert read_operation(event).op == event["op"]


@pytest.mark.parametrize("op", CHANGES)
@pytest.mark.parametrize("more", [{}, {"dry_run": True}, {"limit": 1}, {"cursor": "x"}], ids=shown)
def test_what_does_not_say_which_letters_is_refused(op: str, more: dict[str, Any]) -> None:
    said = "say which dead letters: id, fingerprint, name, queue, since, until, or all: true"
    assert problems(op=op, **more) == {"event": said}


@pytest.mark.parametrize("op", CHANGES)
@pytest.mark.parametrize(
    "which",
    [
        {"all": True, "queue": "eu"},
        {"all": True, "since": "2031-07-01T09:00:00Z"},
        {"all": True, "id": "x"},
        {"id": "x", "fingerprint": "a"},
    ],
    ids=shown,
)
def test_two_ways_to_say_which_are_refused(op: str, which: dict[str, Any]) -> None:
    assert problems(op=op, **which) == {"event": "id, filters and all exclude each other"}


@pytest.mark.parametrize("op", CHANGES)
@pytest.mark.parametrize("value", [False, None, 1, "true", {"$ne": False}], ids=shown)
def test_all_is_true_or_left_out(op: str, value: Any) -> None:
    assert problems(op=op, all=value)


@pytest.mark.parametrize("op", ["dlq.list", *CHANGES])
@pytest.mark.parametrize(
    "times", [("2031-07-01T09:00:00Z", "2031-07-01T09:00:00Z"), ("2031-07-02T00:00:00Z", "2031-07-01T00:00:00Z")]
)
def test_a_time_range_that_is_empty_is_refused(op: str, times: tuple[str, str]) -> None:
    assert problems(op=op, since=times[0], until=times[1]) == {"event": "since must be before until"}


@pytest.mark.parametrize("field", ["since", "until"])
@pytest.mark.parametrize("value", ["2h", "2031-07-01", "2031-07-01T09:00:00", 7, "2031-02-30T00:00:00Z"], ids=shown)
def test_a_time_has_an_offset(field: str, value: Any) -> None:
    assert problems(op="dlq.list", **{field: value}).keys() == {field}


@pytest.mark.parametrize("field", ["fingerprint", "name", "queue", "cursor"])
@pytest.mark.parametrize(
    "value", [{"$ne": None}, {"$regex": "."}, ["a"], 7, True, "", "x" * 65_537, "\ud83c"], ids=shown
)
def test_a_filter_is_a_word(field: str, value: Any) -> None:  # F71, F41
    assert problems(op="dlq.list", **{field: value}).keys() == {field}


@pytest.mark.parametrize(
    ("op", "limit"),
    [
        (op, limit)
        for op, most in (("dlq.groups", 100), ("dlq.list", 100), ("dlq.export", 1000), *((op, 1000) for op in CHANGES))
        for limit in (0, -1, most + 1, 1.5, "20", True, 10**30, None)
    ],
    ids=shown,
)
def test_a_limit_that_is_none_is_refused(op: str, limit: Any) -> None:  # F67
    which = {"all": True} if op in CHANGES else {}
    assert problems(op=op, limit=limit, **which).keys() == {"limit"}


@pytest.mark.parametrize("per_sec", [0, -1, 5e-324, 0.00099, "10", True, float("nan"), float("inf"), 1e7], ids=shown)
def test_a_rate_is_a_number_of_letters_a_second(per_sec: Any) -> None:
    assert problems(op="dlq.redrive", all=True, per_sec=per_sec).keys() == {"per_sec"}


@pytest.mark.parametrize("per_sec", [0.001, 1, 1_000_000, None])
def test_a_rate_may_be_slow_or_fast(per_sec: float | None) -> None:
    request = read_operation({"op": "dlq.redrive", "all": True, "per_sec": per_sec})

    assert isinstance(request, DeadLetterRedrive)
    assert request.per_sec == per_sec


@pytest.mark.parametrize("redrives", [-1, 1.5, "0", True, 2**31], ids=shown)
def test_a_number_of_redrives_is_a_count(redrives: Any) -> None:
    assert problems(op="dlq.show", id="x", redrives=redrives).keys() == {"redrives"}


@pytest.mark.parametrize("op", CHANGES)
def test_a_number_of_redrives_tells_letters_of_one_task_apart(op: str) -> None:
    assert problems(op=op, name="noop", redrives=1) == {"event": "redrives goes with id"}


@pytest.mark.parametrize("op", ["dlq.show", *CHANGES])
@pytest.mark.parametrize("task_id", [{"$gt": ""}, ["x"], 7, "", "\ud83c", "x" * 8193], ids=shown)
def test_an_id_is_text(op: str, task_id: Any) -> None:  # F71
    assert problems(op=op, id=task_id).keys() == {"id"}


@pytest.mark.parametrize("extra", ["filter", "_id", "force", "yes", SECRET])
def test_a_field_that_is_none_is_refused(extra: str) -> None:
    for op in CHANGES:
        assert extra in problems_of_fields(op=op, all=True, **{extra: SECRET})


def problems_of_fields(**event: Any) -> set[str]:
    with pytest.raises(InvalidRequestError) as refused:
        read_operation(event)
    assert SECRET not in "".join(one.message for one in refused.value.problems)
    return {one.field for one in refused.value.problems}


def test_what_is_left_out_has_its_default() -> None:
    listing, redrive = read_operation({"op": "dlq.list"}), read_operation({"op": "dlq.redrive", "all": True})
    purge = read_operation({"op": "dlq.purge", "since": "2031-07-01T09:00:00.1234Z"})

    assert isinstance(listing, DeadLetterList)
    assert (listing.limit, listing.redriven) == (20, False)
    assert isinstance(redrive, DeadLetterRedrive)
    assert (redrive.limit, redrive.dry_run, redrive.per_sec, redrive.drop_expiry) == (1000, False, None, False)
    assert isinstance(purge, DeadLetterPurge)
    assert purge.since == datetime(2031, 7, 1, 9, 0, 0, 123000, tzinfo=UTC)
