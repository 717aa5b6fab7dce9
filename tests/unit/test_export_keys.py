"""Keys of exported letters: S3 takes every one of them, and no two letters share one."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import bson
import pytest
from bson import Binary, Code, Decimal128, Int64, MaxKey, MinKey, ObjectId, Timestamp
from bson.datetime_ms import DatetimeMS
from bson.raw_bson import RawBSONDocument
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures import T0
from tests.unit.test_documents_of_any_kind import VALUES
from tidemill.dead_letters.export_format import read_object_key

AN_ID = ObjectId("6b0a99c7baf140d0cc3848ad")
SAFE = re.compile(r"dlq/(\d{4}/\d\d/\d\d|undated)/(?=.{1,200}$)(%[0-9A-F]{2}|[A-Za-z0-9._~-])+\.json\.gz")
IDS = [
    AN_ID, str(AN_ID), str(AN_ID).upper(), 42, "42", '"42"', 42.5, True, "true", None, "null", "", "..", "a~b", "a%7Eb",
    "a-1", "a-", "a--",
    "a/b", "a%2Fb", "a b", "a+b", "é", "e\u0301", "A", "a", "a\x00", {"a": 1}, '{"a": 1}', {"a": "1"},
    {"a": {"$date": "2031-07-01T09:00:00Z"}}, {"a": datetime(2031, 7, 1, 9, tzinfo=UTC)}, DatetimeMS(2**60), b"a",
    Binary(b"a", 5), Decimal128("1.1"), Timestamp(1, 2), Code("a"), Code("a", {"a": 1}), MinKey(), MaxKey(),
    "x" * 300, "x" * 299 + "y", "é" * 300, "a" + "é" * 300, "aa" + "é" * 300,
    {"deep": "x" * 2000}, {"task": "a", "redrives": 0}, {},
]  # fmt: skip


def key(task: Any, redrives: int = 0) -> str:
    return key_of({"_id": {"task": task, "redrives": redrives}, "dead_lettered_at": T0})


def key_of(letter: dict[str, Any]) -> str:
    return read_object_key(RawBSONDocument(bson.encode(letter)))


@pytest.mark.parametrize(
    ("task", "name"),
    [
        (AN_ID, "6b0a99c7baf140d0cc3848ad-0"),
        ("invoice-7", "invoice-7-0"),
        (42, "42-0"),
        (Int64(42), "42-0"),
        ("42", "%2242%22-0"),
        (str(AN_ID), "%226b0a99c7baf140d0cc3848ad%22-0"),
        ("../../x", "..%2F..%2Fx-0"),
        ("/a//b", "%2Fa%2F%2Fb-0"),
        ("a:b c\n", "a%3Ab%20c%0A-0"),
        ("envoi-é", "envoi-%C3%A9-0"),
        ({"a": 1}, "%7B%22a%22%3A%201%7D-0"),
    ],
)
def test_a_key_tells_the_day_the_task_and_how_often_it_had_come_back(task: Any, name: str) -> None:
    assert key(task) == f"dlq/2031/07/01/{name}.json.gz"


@pytest.mark.parametrize("task", IDS, ids=repr)
def test_s3_takes_the_key_of_any_id(task: Any) -> None:
    for redrives in (0, 2**63 - 1):
        assert SAFE.fullmatch(key(task, redrives))
        assert len(key(task, redrives)) <= 1024


def test_no_two_letters_share_a_key() -> None:
    ids = [(task, redrives) for task in IDS for redrives in (0, 1, 10, -1)]

    assert len({key(task, redrives) for task, redrives in ids}) == len(ids)


@given(VALUES, VALUES, st.integers(-2, 20), st.integers(-2, 20))
@settings(max_examples=150)
def test_letters_with_one_key_are_one(one: Any, other: Any, redrives: int, others: int) -> None:
    if key(one, redrives) == key(other, others):
        assert redrives == others
        assert _plain(one) == _plain(other)


@given(st.text("a-~%1{}\"2'", max_size=4), st.text("a-~%1{}\"2'", max_size=4), st.integers(0, 21), st.integers(0, 21))
@settings(max_examples=150)
def test_texts_with_one_key_are_one(one: str, other: str, redrives: int, others: int) -> None:
    assert (key(one, redrives) == key(other, others)) == ((one, redrives) == (other, others))


def test_a_text_that_looks_like_a_key_with_a_digest_has_another() -> None:
    task = "x" * 300
    name = key(task).removeprefix("dlq/2031/07/01/").removesuffix("-0.json.gz")

    assert key(name) != key(task)


def test_a_letter_that_nobody_knows_the_day_of_has_a_key_too() -> None:
    letter = {"_id": {"task": 1, "redrives": 2}}

    assert key_of(letter) == "dlq/undated/1-2.json.gz"
    assert key_of(letter | {"dead_lettered_at": datetime(1, 1, 1, tzinfo=UTC)}) == "dlq/0001/01/01/1-2.json.gz"


@pytest.mark.parametrize("died_at", ["2031", DatetimeMS(2**62), None])
def test_a_letter_with_a_day_that_is_none_is_undated(died_at: Any) -> None:
    assert key_of({"_id": {"task": 1, "redrives": 2}, "dead_lettered_at": died_at}) == "dlq/undated/1-2.json.gz"


def test_letters_whose_ids_people_have_written_share_no_key_either() -> None:
    ids = [
        {"task": "a", "redrives": 0}, {"redrives": 0, "task": "a"}, "a", {"task": "a"}, {"task": "a", "redrives": 0.5},
        {"task": {"task": "a", "redrives": 0}, "redrives": 0}, {"task": "a", "redrives": "0"}, None,
    ]  # fmt: skip
    raws = [bson.encode({"_id": one, "dead_lettered_at": T0}) for one in ids]
    raws += [raws[0].replace(b"a\x00\x10", letter + b"\x00\x10") for letter in (b"\xff", b"\xfe")]
    raws += [raws[2].replace(b"\x02\x00\x00\x00a", b"\x02\x00\x00\x00" + letter) for letter in (b"\xff", b"\xfe")]

    keys = {read_object_key(RawBSONDocument(raw)) for raw in raws}

    assert len(keys) == len(raws)
    assert all(SAFE.fullmatch(one) for one in keys)
    assert key("a") in keys


def _plain(task: Any) -> Any:
    """What MongoDB takes for the same id is the same here."""
    return repr(int(task)) if type(task) in (int, Int64) else bson.encode({"": task})
