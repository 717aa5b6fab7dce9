"""Ids as people read and type them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import bson
import pytest
from bson import Binary, Code, Decimal128, Int64, MaxKey, MinKey, ObjectId, Timestamp
from bson.datetime_ms import DatetimeMS
from hypothesis import given
from hypothesis import strategies as st

from tidemill.documents import LENIENT_OPTIONS
from tidemill.store import tasks

AN_ID = ObjectId("6b0a99c7baf140d0cc3848ad")


def stored(value: Any) -> Any:
    """The id as it comes back from a document."""
    return bson.decode(bson.encode({"_id": value}), LENIENT_OPTIONS)["_id"]


@pytest.mark.parametrize(
    "value",
    [
        42, -7, 2**62, 0, 1.5, 1e300, -0.0, float("nan"), float("inf"), True, None, {}, AN_ID, str(AN_ID), "", "42",
        "true", '"42"', "a\x00b", "é\x1b[31m", '{"a": 1}', {"a": 1, "b": {"c": [1, "x", AN_ID]}}, {"$gt": ""},
        {"$ref": "a", "$id": 3}, datetime(2031, 7, 1, 9, 0, 1, 5000, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC),
        DatetimeMS(10**17), Binary(b"abc"), Binary(b"abc", 5), Binary(b"x" * 16, 3), Binary.from_uuid(UUID(int=7)),
        Decimal128("1.10"), Decimal128("NaN"), Timestamp(3, 4), Code("x", {"a": 1}), MinKey(), MaxKey(),
    ],
    ids=repr,
)  # fmt: skip
def test_as_it_is_shown_and_exactly_an_id_is_meant(value: Any) -> None:
    task_id = stored(value)

    for text in (tasks.format_id(task_id), tasks.id_as_json(task_id)):
        assert bson.encode({"_id": task_id}) in [bson.encode({"_id": one}) for one in tasks.parse_id(text)]


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_stands_for_itself_first(text: str) -> None:
    assert tasks.format_id(text) == text
    assert tasks.parse_id(text)[0] == text
    assert text in tasks.parse_id(tasks.id_as_json(text))


@pytest.mark.parametrize(
    ("text", "others"),
    [
        ("42", [42]),
        ("042", []),
        ("9223372036854775807", [Int64(2**63 - 1)]),
        ("9223372036854775808", []),
        ("9" * 5000, []),
        (str(AN_ID).upper(), [AN_ID]),
        ("[1]", []),
        ("[" * 5000, []),
        ('{"a":' * 300 + "1" + "}" * 300, []),
        ('{"$oid": "x"}', []),
        ('{"$date": "x"}', []),
        ('{"$date": {"$numberLong": "9999999999999999999999"}}', []),
        ('{"$numberDecimal": "x"}', []),
        ('{"$binary": 3}', []),
        ('{"$timestamp": {"t": -1, "i": 1}}', []),
        ('{"a\\u0000": 1}', []),
        ('"\\ud800"', []),
    ],
)
def test_what_can_be_no_id_is_nothing_but_text(text: str, others: list[Any]) -> None:
    assert list(tasks.parse_id(text)) == [text, *others]
