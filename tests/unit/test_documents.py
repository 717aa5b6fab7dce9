"""The shape of a task document: what is read from it, and what is wrong with it."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import bson
import pytest
from bson import Decimal128, Int64, ObjectId
from bson.datetime_ms import DatetimeMS
from bson.raw_bson import RawBSONDocument
from hypothesis import given

from tests.builders import document
from tests.fixtures import T0
from tests.unit.make import a_task, backoffs, raw
from tidemill import Attempt, Backoff, Malformed, Task
from tidemill.documents import (
    attempt_document,
    backoff_document,
    claim_key,
    decode,
    error_document,
    id_key,
    read_task,
    schedule,
)
from tidemill.model import EARLIEST, LATEST, Lease, TaskError

REQUIRED = {"name", "queue", "payload", "status", "lane", "due_at", "attempts"}
LINE = {"attempt": 0, "status": "failed", "started_at": T0, "duration_ms": 5, "note": "why"}


def reading(**fields: Any) -> Task | Malformed:
    return read_task(raw(document(T0, **fields)))


def problem(**fields: Any) -> str | None:
    found = reading(**fields)
    return found.problem if isinstance(found, Malformed) else None


def test_a_new_task_is_read_as_it_was_written() -> None:
    written = document(T0, payload={"a": [1]}, trace={"source": "me", "correlation_id": "c", "traceparent": "t"})

    task = read_task(raw(written))

    assert isinstance(task, Task)
    assert (task.id, task.payload, task.status, task.lane) == (written["_id"], {"a": [1]}, "pending", "fresh")
    assert (task.due_at, task.next_retry_at, task.created_at) == (T0, None, T0)
    assert (task.max_retries, task.backoff, task.timeout, task.lease, task.error) == (None,) * 5
    assert (task.source, task.correlation_id, task.traceparent) == ("me", "c", "t")


def test_times_are_aware_and_utc() -> None:  # F29
    assert a_task().due_at.utcoffset() == timedelta(0)


@pytest.mark.parametrize("name", sorted(REQUIRED))
def test_a_document_without_what_every_task_has_is_malformed(name: str) -> None:  # F25
    written = document(T0)
    del written[name]

    status = written.get("status")
    assert read_task(raw(written)) == Malformed(
        id=written["_id"], problem=f"{name} is missing", lease=None, status=status
    )


@pytest.mark.parametrize("name", sorted(set(document(T0)) - REQUIRED - {"_id"}))
@pytest.mark.parametrize("as_null", [False, True])
def test_everything_else_may_be_absent_or_null(name: str, *, as_null: bool) -> None:
    written = document(T0)
    del written[name]

    assert isinstance(read_task(raw(written | ({name: None} if as_null else {}))), Task)


def test_fields_of_later_releases_are_ignored() -> None:
    assert isinstance(reading(moon="full"), Task)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("name", ""), ("name", 7), ("name", None), ("queue", None), ("queue", ["default"]),
        ("payload", "str"), ("payload", None), ("payload", [1]),
        ("status", "Ready"), ("status", 1), ("lane", "slow"), ("lane", {}),
        ("due_at", None), ("due_at", "2026-07-01T09:00:00Z"), ("due_at", 1767225600), ("due_at", [T0]),
        ("next_retry_at", "soon"), ("next_retry_at", 0),
        ("attempts", "3"), ("attempts", None), ("attempts", -1), ("attempts", 1.5), ("attempts", True),
        ("attempts", math.inf), ("attempts", math.nan), ("attempts", 2**31 - 1), ("attempts", Decimal128("3")),
        ("priority", "high"), ("priority", math.inf), ("priority", -math.inf), ("priority", 1e300),
        ("priority", 0.5), ("priority", True),
        ("max_retries", -1), ("max_retries", "3"), ("redrives", []),
        ("timeout_sec", 0), ("timeout_sec", -1), ("timeout_sec", math.inf), ("timeout_sec", math.nan),
        ("timeout_sec", True), ("timeout_sec", "30"),
        ("expires_at", "later"), ("created_at", 5), ("updated_at", "x"), ("finished_at", False),
        ("cancel_requested_at", True),
        ("backoff_policy", "x"), ("backoff_policy", [1]), ("backoff_policy", 5), ("backoff_policy", {"base_sec": "5"}),
        ("backoff_policy", {"base_sec": 0}), ("backoff_policy", {"strategy": ["exponential"]}),
        ("backoff_policy", {"max_sec": 1}), ("backoff_policy", {"strategy": "moon"}),
        ("backoff_policy", {"jitter": "FULL"}), ("backoff_policy", {"jitter": ["full"]}),
        ("backoff_policy", {"jitter_factor": 2}), ("backoff_policy", {"factor": math.nan}),
        ("backoff_policy", {"factor": 1001}), ("backoff_policy", {"base_sec": math.inf}),
        ("backoff_policy", {"base_sec": Decimal128("5")}),
    ],
)  # fmt: skip
def test_a_wrong_value_is_named_by_its_field_and_never_shown(name: str, value: object) -> None:  # F25, F37, F77
    assert problem(**{name: value}) == f"{name} is not what it has to be"


@pytest.mark.parametrize(
    ("stored", "crashes"),
    [
        (3, 3),
        (3.0, 3),
        (0, 0),
        (None, 0),
        (math.inf, 1),
        (math.nan, 1),
        (0.5, 1),
        (-2, 1),
        ("often", 1),
        (Decimal128("1"), 1),
        ([1], 1),
    ],
)
def test_whatever_stands_for_crashes_makes_at_least_a_suspect(stored: object, crashes: int) -> None:
    assert a_task(crashes=stored).crashes == crashes


@pytest.mark.parametrize(
    ("name", "value", "attribute", "read_as"),
    [
        ("attempts", 3.0, "attempts", 3),
        ("attempts", Int64(3), "attempts", 3),
        ("priority", -2.0, "priority", -2),
        ("timeout_sec", 1.5, "timeout", timedelta(seconds=1.5)),
        ("timeout_sec", 10**18, "timeout", timedelta(seconds=1e9)),
        ("max_retries", 0, "max_retries", 0),
        ("due_at", DatetimeMS(2**62), "due_at", LATEST),
        ("due_at", DatetimeMS(-(2**62)), "due_at", EARLIEST),
        ("created_at", None, "created_at", T0),
        ("error", {"message": "m", "code": "c", "at": T0}, "error", TaskError(message="m", code="c", at=T0)),
        ("error", "ValueError", "error", None),
        ("error", {"message": "m"}, "error", None),
        ("trace", "me", "source", None),
        ("trace", {"source": 5}, "source", None),
        ("result", math.nan, "crashes", 0),
    ],
)
def test_what_people_and_shells_write_is_read(name: str, value: object, attribute: str, read_as: object) -> None:
    assert getattr(reading(**{name: value}), attribute) == read_as


@given(backoffs())
def test_a_policy_comes_back_as_it_was_stored(backoff: Backoff) -> None:
    assert a_task(backoff_policy=backoff_document(backoff)).backoff == backoff
    assert backoff_document(None) is None


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        ({}, Backoff()),
        ({"base_sec": 1, "factor": 3, "max_sec": 9}, Backoff(base_sec=1, factor=3, max_sec=9)),
        (
            {"strategy": "exponential", "base_sec": 1, "factor": 3.0, "max_sec": Int64(9), "jitter": "full"},
            Backoff(base_sec=1, factor=3, max_sec=9),
        ),
        ({"strategy": "linear", "jitter": None, "jitter_factor": None}, Backoff(strategy="linear")),
        ({"strategy": "fixed", "moon": "full"}, Backoff(strategy="fixed")),
    ],
)
def test_a_policy_of_another_release_is_filled_up_from_the_default(stored: dict[str, Any], expected: Backoff) -> None:
    assert a_task(backoff_policy=stored).backoff == expected


def test_the_log_comes_back_as_it_was_stored_without_the_lines_that_are_none() -> None:
    attempt = Attempt(attempt=0, status="failed", started_at=T0, duration_ms=5, note="why")
    lines = [
        attempt_document(attempt), "no line", None, {}, LINE | {"attempt": math.inf}, LINE | {"attempt": 1e300},
        LINE | {"duration_ms": -1}, LINE | {"started_at": "then"}, LINE | {"note": 7},
    ]  # fmt: skip

    task = a_task(attempt_log=lines)

    assert task.attempt_log[0] == attempt
    assert [line.note for line in task.attempt_log] == ["why", "7"]
    assert a_task(attempt_log="none").attempt_log == ()


@pytest.mark.parametrize(
    ("lease", "held"),
    [
        ({"token": "t", "owner": "A", "expires_at": T0}, Lease(token="t", owner="A", expires_at=T0)),
        ({"token": "t", "owner": "A", "expires_at": DatetimeMS(2**62)}, Lease(token="t", owner="A", expires_at=LATEST)),
        ({"token": "t", "owner": "A"}, None),
        ({"token": 5, "owner": "A", "expires_at": T0}, None),
        ({"token": "t", "owner": "A", "expires_at": "soon"}, None),
        ("mine", None),
        (None, None),
    ],
)
def test_a_lease_is_whole_or_none_also_of_what_is_no_task(lease: object, held: Lease | None) -> None:
    assert a_task(lease=lease).lease == held
    assert reading(lease=lease, attempts="3").lease == held


PAYLOADS: list[dict[str, Any]] = [
    {"user.email": "a", "$gt": "", "a": {"$where": "1"}, "": 1},
    {"$ref": "a", "$id": 1},
    {"x": 1, "$id": {"$ref": "b", "$id": [1]}, "$ref": "a", "$db": "d", "more": {"$ref": "c", "$id": 2}},
    {"schema": {"$id": "https://a.example/s", "$ref": "#/definitions/x", "list": [{"$ref": "y", "$id": None}]}},
    {"id": 1970670598291982290, "half": 0.5, "whole": 1.0, "zero": -0.0, "none": None, "yes": True},
    {"at": datetime(2026, 7, 1, 9, 0, 0, 123000, tzinfo=UTC), "id": ObjectId(), "bytes": b"\xff"},
    {"deep": [[[[[[{"a": [{}]}]]]]]], "emoji": "😀", "nul": "a\x00b"},
]


@pytest.mark.parametrize("payload", PAYLOADS, ids=range(len(PAYLOADS)))
def test_a_payload_is_exactly_what_was_enqueued(payload: dict[str, Any]) -> None:  # F38, F44
    for found in (a_task(payload=payload).payload, decode(raw({"payload": payload}))["payload"]):
        assert found == payload


def not_utf8(**fields: Any) -> RawBSONDocument:
    return RawBSONDocument(bson.encode(document(T0, **fields)).replace(b"?!?", b"\xff\xfe\xfd"))


def test_text_that_is_not_utf8_is_malformed_and_still_shows_lease_and_log() -> None:
    lease = {"token": "t", "owner": "A", "expires_at": T0}

    found = read_task(not_utf8(name="?!?", lease=lease, attempt_log=[LINE]))

    assert isinstance(found, Malformed)
    assert found.problem == "holds text that is not UTF-8"
    assert found.lease is not None
    assert len(found.attempt_log) == 1
    assert decode(not_utf8(name="a?!?"))["name"].startswith("a\ufffd")


@pytest.mark.parametrize(("status", "told"), [("done", "done"), ("Ready", "Ready"), (7, None), (None, None)])
def test_the_status_is_judged_first_and_told_where_it_is_text(status: object, told: str | None) -> None:
    found = reading(status=status, due_at="soon", attempts="many")

    assert isinstance(found, Malformed)
    assert found.status == told
    assert found.problem.split()[0] == ("due_at" if told == "done" else "status")


def test_a_document_without_an_id_is_malformed_too() -> None:
    assert read_task(raw({})) == Malformed(id=None, problem="status is missing", lease=None)


def test_a_time_goes_into_both_fields_of_the_schedule_or_is_now() -> None:
    later = T0 + timedelta(hours=1)

    assert schedule(later, now=T0) == {"due_at": later, "next_retry_at": later}
    assert schedule(None, now=T0) == {"due_at": T0, "next_retry_at": None}


def test_an_error_is_stored_with_its_time() -> None:
    assert error_document(message="m", code="c", at=T0) == {"message": "m", "code": "c", "at": T0}


IDS: tuple[Any, ...] = (
    None, math.nan, math.inf, -0.5, 1.0, 0, False, 1, True, Int64(2**53), "", "1", b"", b"\1" * 12,
    ObjectId(b"\1" * 12), Decimal128("1"), T0, {}, {"a": 1}, {"a": True}, {"a": {"b": [1]}}, [], [1], [1, 2],
)  # fmt: skip
"""Ids of every kind: some that Python takes for one another, some without a hash, one that does not equal itself."""


def test_ids_of_any_kind_have_keys_of_their_own() -> None:
    assert len({id_key(task_id) for task_id in IDS}) == len(IDS)


@pytest.mark.parametrize("task_id", IDS, ids=repr)
def test_the_key_of_an_id_is_the_same_each_time_that_the_id_is_read(task_id: Any) -> None:
    first, second = (a_task(_id=bson.decode(bson.encode({"_id": task_id}))["_id"]) for _ in range(2))

    assert id_key(first.id) == id_key(second.id)
    assert claim_key(first) == claim_key(second)


def test_each_claim_of_a_task_has_a_key_of_its_own() -> None:
    fields = {"_id": {"a": 1}, "status": "processing", "attempts": 1}
    leases = [{"token": token, "owner": "A", "expires_at": T0} for token in ("first", "second")]
    claimed = [reading(**fields, lease=lease) for lease in leases]
    malformed = [reading(**fields, lease=lease, payload="none") for lease in leases]

    assert all(isinstance(document, Malformed) for document in malformed)
    assert claim_key(claimed[0]) != claim_key(claimed[1])
    assert [claim_key(document) for document in malformed] == [claim_key(task) for task in claimed]
