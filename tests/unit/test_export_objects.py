"""An exported letter leads back to the very bytes that it was, and is strict JSON for anybody else."""

from __future__ import annotations

import gzip
import json
from datetime import UTC, datetime
from itertools import count
from typing import Any
from uuid import UUID

import pytest
from bson import Binary, Code, DBRef, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp, json_util
from bson.datetime_ms import DatetimeMS
from bson.raw_bson import RawBSONDocument
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.buried import letter
from tests.fixtures import T0
from tests.unit import make
from tests.unit.test_documents_of_any_kind import VALUES
from tidemill import TidemillError
from tidemill.dead_letters.documents import MAX_DOCUMENT_BYTES
from tidemill.dead_letters.export_format import MAX_OBJECT_BYTES, MAX_READABLE_BYTES, decode_object, encode_object
from tidemill.documents import decode

pytestmark = pytest.mark.slow

AN_ID = ObjectId("6b0a99c7baf140d0cc3848ad")

FAITHFUL = [
    T0, datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999000, tzinfo=UTC), DatetimeMS(2**62),
    DatetimeMS(-(2**62)), b"\x00\xff", Binary(b"abc", 5), Binary.from_uuid(UUID(int=7)), Binary(b"x" * 16, 3),
    Decimal128("1.10"), Decimal128("-0E+3"), Decimal128("NaN"), 7, Int64(7), 2**53 + 1, -(2**63), 1.0, -0.0, 1e300,
    5e-324, float("nan"), float("inf"), float("-inf"), AN_ID, Regex("a.*", "imx"), Code("x"), Code("x", {"a": 1}),
    Timestamp(3, 4), MinKey(), MaxKey(), None, True, "", "a\x00b", "é😀\u2028\x1b", {}, [], {"$gt": ""},
    {"": {"": 1}, "user.email": "a", "a": {"$where": "1"}}, {"$ref": "a", "$id": 3}, [[], [{}], [None, [1.0]]],
]  # fmt: skip
LOOKS_LIKE_JSON_OF_OURS = [
    {"$date": "2031-07-01T09:00:00Z"}, {"$date": "nonsense"}, {"$oid": 5}, {"$numberLong": "7"}, {"$numberDouble": ""},
    {"$binary": {"base64": "?", "subType": "00"}}, {"$id": 3, "$ref": "a"}, {"$minKey": 1}, {"$regex": "a"},
]  # fmt: skip


def letter_of(**payload: Any) -> RawBSONDocument:
    return make.raw(letter(T0, _id=AN_ID, redrives=1, payload=payload))


def replaced(raw: RawBSONDocument, old: bytes, new: bytes) -> RawBSONDocument:
    assert bytes(raw.raw).count(old) == 1
    return RawBSONDocument(bytes(raw.raw).replace(old, new))


def strictly(body: bytes) -> dict[str, Any]:
    """Read an object as somebody who takes nothing but what the standards say."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len(dict(pairs)) == len(pairs)
        return dict(pairs)

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    text = gzip.decompress(body).decode("utf-8")
    read: dict[str, Any] = json.loads(text, object_pairs_hook=unique, parse_constant=refuse)
    return read


@pytest.mark.parametrize("value", FAITHFUL, ids=repr)
def test_a_letter_is_restored_bit_for_bit_from_its_extended_json(value: Any) -> None:
    raw = letter_of(value=value, among=[value, {"deep": value}])

    body = encode_object(raw)

    assert decode_object(body).raw == raw.raw
    assert list(strictly(body)) == ["format", "schema_version", "dead_letter"]
    assert strictly(body)["schema_version"] == 1


@pytest.mark.parametrize("value", LOOKS_LIKE_JSON_OF_OURS, ids=repr)
def test_a_payload_that_looks_like_extended_json_is_restored_as_what_it_is(value: Any) -> None:
    raw = letter_of(value=value)

    body = encode_object(raw)

    assert decode_object(body).raw == raw.raw
    assert strictly(body)["bson"]["$binary"]["subType"] == "00"
    assert strictly(body)["dead_letter"]["name"] == "noop"


@pytest.mark.parametrize(
    ("payload", "old", "new"),
    [
        ({"text": "xxxx"}, b"xxxx", b"xx\xffx"),
        ({"xxxx": 1}, b"xxxx", b"\xff\xff\xed\xa0"),
        ({"aa": 1, "ab": 2}, b"ab\x00", b"aa\x00"),
        ({"text": "xxxx"}, b"\x02text\x00", b"\x0etext\x00"),
        ({"gone": None}, b"\x0agone\x00", b"\x06gone\x00"),
        ({"n": b"payload!"}, b"payload!", b"\x00" * 8),
        ({"list": ["a", "b"]}, b"\x021\x00", b"\x027\x00"),
        ({"n": float("nan")}, b"\x00\x00\x00\x00\x00\x00\xf8\x7f", b"\x01\x00\x00\x00\x00\x00\xf8\xff"),
        ({"p": Regex("a", "im")}, b"im\x00", b"mi\x00"),
    ],
    ids=["text", "name", "twice", "symbol", "undefined", "bytes", "array index", "nan bits", "flags"],
)
def test_what_no_driver_would_write_is_restored_bit_for_bit(payload: dict[str, Any], old: bytes, new: bytes) -> None:
    raw = replaced(letter_of(**payload), old, new)

    body = encode_object(raw)

    assert decode_object(body).raw == raw.raw
    assert strictly(body)["format"] == "tidemill.dead_letter"


def test_numbers_and_dates_are_canonical_so_that_others_can_read_them_too() -> None:
    told = strictly(encode_object(letter_of(whole=1, real=1.0, big=2**53 + 1, at=T0)))["dead_letter"]

    assert told["payload"] == {
        "whole": {"$numberInt": "1"},
        "real": {"$numberDouble": "1.0"},
        "big": {"$numberLong": "9007199254740993"},
        "at": {"$date": {"$numberLong": str(int(T0.timestamp() * 1000))}},
    }
    assert told["_id"] == {"task": {"$oid": str(AN_ID)}, "redrives": {"$numberInt": "1"}}


@pytest.mark.parametrize("value", FAITHFUL, ids=repr)
def test_what_is_written_is_what_the_driver_would_write(value: Any) -> None:
    raw = letter_of(value=value)

    told = strictly(encode_object(raw))["dead_letter"]["payload"]

    assert told == json.loads(json_util.dumps(decode(raw)["payload"], json_options=json_util.CANONICAL_JSON_OPTIONS))


def test_the_same_letter_has_the_same_object_each_time() -> None:
    raw = letter_of(a=1, b=[1.0, "é"])

    assert encode_object(raw) == encode_object(RawBSONDocument(bytes(raw.raw)))
    assert encode_object(raw)[4:8] == b"\x00" * 4, "it says when it was made"
    assert encode_object(raw)[9] == 0xFF, "it says on what system it was made"


@pytest.mark.parametrize(
    ("size", "is_readable"), [(MAX_READABLE_BYTES, True), (MAX_READABLE_BYTES + 1, False), (MAX_DOCUMENT_BYTES, False)]
)
def test_of_a_letter_as_large_as_none_of_ours_there_are_the_bytes_alone(size: int, is_readable: bool) -> None:  # noqa: FBT001
    room = size - len(letter_of(text="").raw)
    raw = letter_of(text="x" * (room - 4) + "😀")
    assert len(raw.raw) == size

    body = encode_object(raw)

    told = strictly(body)
    assert (told["dead_letter"] is not None, "bson" in told) == (is_readable, not is_readable)
    assert decode_object(body).raw == raw.raw


def test_an_object_that_somebody_has_unpacked_is_restored_too() -> None:
    raw = letter_of(a=1)

    assert decode_object(gzip.decompress(encode_object(raw))).raw == raw.raw


@given(
    st.dictionaries(
        st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=5), VALUES, max_size=4
    )
)
@settings(max_examples=100)
def test_any_letter_is_restored_bit_for_bit(payload: dict[str, Any]) -> None:
    raw = letter_of(payload=payload)

    body = encode_object(raw)

    assert decode_object(body).raw == raw.raw
    assert strictly(body)["schema_version"] == 1
    assert encode_object(raw) == body


def packed(**changed: Any) -> bytes:
    told = {"format": "tidemill.dead_letter", "schema_version": 1, "dead_letter": {"_id": 1}} | changed
    return gzip.compress(json.dumps(told).encode(), mtime=0)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "not JSON"),
        (b"\x1f\x8b", "cannot be unpacked"),
        (encode_object(letter_of(a=1))[:-9], "cannot be unpacked"),
        (encode_object(letter_of(a=1))[:30] + b"\x00" * 9 + encode_object(letter_of(a=1))[39:], "cannot be unpacked"),
        (gzip.compress(b"\xff\xfe"), "cannot be unpacked"),
        (b"[" * 100_000, "not JSON"),
        (gzip.compress(b"[]"), "its format is not tidemill.dead_letter"),
        (packed(format="other"), "its format is not tidemill.dead_letter"),
        (packed(schema_version=2), "another schema than 1"),
        (packed(schema_version=None), "another schema than 1"),
        (packed(dead_letter=None), "damaged"),
        (packed(dead_letter={}), "damaged"),
        (packed(dead_letter=[{"_id": 1}]), "damaged"),
        (packed(dead_letter={"_id": {"$oid": "x"}}), "damaged"),
        (packed(dead_letter={"_id": 2**70}), "damaged"),
        (packed(bson=None), "damaged"),
        (packed(bson={"$binary": {"base64": "AAAA"}}), "damaged"),
        (packed(bson={"$binary": {"base64": "?"}}), "damaged"),
    ],
    ids=count(),
)
def test_what_is_no_object_of_ours_is_refused_with_a_sentence(body: bytes, why: str) -> None:
    with pytest.raises(TidemillError, match=why):
        decode_object(body)


def test_what_unpacks_to_more_than_any_letter_has_is_refused() -> None:
    spaces = gzip.compress(b" " * 2**20) * (MAX_OBJECT_BYTES // 2**20)

    with pytest.raises(TidemillError, match="cannot be unpacked"):
        decode_object(spaces + encode_object(letter_of(a=1)))


def test_a_reference_is_restored_as_the_object_that_it_is() -> None:
    raw = letter_of(a=DBRef("c", AN_ID, "d", more=1))

    assert decode_object(encode_object(raw)).raw == raw.raw
