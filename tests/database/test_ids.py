"""Ids as people read and type them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import bson
import pytest
from bson import Binary, Code, Decimal128, Int64, MaxKey, ObjectId
from hypothesis import given
from hypothesis import strategies as st

from tidemill.documents import LENIENT_OPTIONS
from tidemill.store import tasks

AN_ID = ObjectId("6b0a99c7baf140d0cc3848ad")


def stored(value: Any) -> Any:
    """The id as it comes back from a document."""
    return bson.decode(bson.encode({"_id": value}), LENIENT_OPTIONS)["_id"]


@pytest.mark.parametrize("value", [42, -7, 2**62, -(2**63), 2**63 - 1, 0, 1.5, 1e300, -0.0, AN_ID], ids=repr)
def test_an_object_id_or_a_number_is_parsed_as_it_is_shown(value: Any) -> None:
    text = tasks.format_id(stored(value))

    assert tasks.parse_id(text) == (text, value)
    assert type(tasks.parse_id(text)[1]) is type(value)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_stands_for_itself_first(text: str) -> None:
    assert tasks.format_id(text) == text
    assert tasks.parse_id(text)[0] == text


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (Int64(5), "5"),
        (True, "true"),
        (None, "null"),
        ({"a": 1, "b": {"c": [1, AN_ID]}}, '{"a": 1, "b": {"c": [1, {"$oid": "6b0a99c7baf140d0cc3848ad"}]}}'),
        (datetime(2031, 7, 1, 9, tzinfo=UTC), '{"$date": "2031-07-01T09:00:00Z"}'),
        (Binary.from_uuid(UUID(int=7)), '{"$uuid": "00000000-0000-0000-0000-000000000007"}'),
        (Binary(b"x", 3), '{"$binary": {"base64": "eA==", "subType": "03"}}'),
        (Decimal128("1.10"), '{"$numberDecimal": "1.10"}'),
        (float("nan"), '{"$numberDouble": "NaN"}'),
        (Code("x"), '{"$code": "x"}'),
        (MaxKey(), '{"$maxKey": 1}'),
    ],
    ids=repr,
)
def test_an_id_of_another_type_is_shown_as_extended_json(value: Any, shown: str) -> None:
    assert tasks.format_id(stored(value)) == shown


@pytest.mark.parametrize(
    "text",
    [
        "042",
        "9223372036854775808",
        "9" * 5000,
        "[1]",
        "[" * 50_000,
        "true",
        "null",
        '"42"',
        "{}",
        '{"$oid": "x"}',
        "x" * 24,
    ],
)
def test_anything_else_stands_for_nothing_but_text(text: str) -> None:
    assert tasks.parse_id(text) == (text,)


@pytest.mark.parametrize(
    "pasted",
    [
        "ObjectId('{}')", 'ObjectId("{}")', "ObjectId({})", "objectid('{}')", "'{}'", '"{}"', " {} ", "{}\n",
        '{{"$oid": "{}"}}', '{{ "$oid":"{}" }}', " ObjectId( '{}' ) ",
    ],
)  # fmt: skip
def test_an_object_id_is_taken_as_shells_and_json_show_it(pasted: str) -> None:  # N37b
    text = pasted.format(AN_ID)

    assert tasks.parse_id(text) == (text, str(AN_ID), AN_ID)


def test_24_hex_digits_are_an_object_id_in_either_case() -> None:
    assert tasks.parse_id(str(AN_ID).upper()) == (str(AN_ID).upper(), AN_ID)
