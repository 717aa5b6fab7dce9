"""What a payload, or a result, may hold."""

from __future__ import annotations

import collections
import enum
import json
import math
import re
import time
from datetime import UTC, date, datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import bson
import pydantic
import pytest
from bson import Code, Decimal128, Int64, ObjectId, Regex
from bson.raw_bson import RawBSONDocument

from tidemill import InvalidRequestError
from tidemill.requests.tasks import new_task
from tidemill.requests.validation import MAX_PAYLOAD_BYTES, MAX_PAYLOAD_DEPTH, find_storage_problem

STORABLE = "must contain only what MongoDB can store, under keys that are text without NUL"
NOT_FINITE = "must not contain NaN or Infinity"
TOO_LONG = "must not contain a whole number beyond 64 bits"
TOO_DEEP = f"must not nest deeper than {MAX_PAYLOAD_DEPTH} levels"
HALF_A_PAIR = "must not contain half a surrogate pair"
NAN = math.nan


class Colour(enum.Enum):
    RED = 1


class Model(pydantic.BaseModel):
    a: int = 1


class Number(int):
    pass


class Mine(dict[str, Any]):
    pass


def problem(value: Any) -> str | None:
    return find_storage_problem({"a": value}, max_bytes=MAX_PAYLOAD_BYTES)


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


def itself() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["a"] = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [
        None, True, 0, -(2**63), 2**63 - 1, 0.1, -0.0, 1e308, "é😀\u202e𠮷", "a\x00b", [], {}, (1, (2,)),
        {"$gt": "", "a.b": {"$where": "1"}, "": 1, "$ref": "x", "$id": 1},
        b"\xff", ObjectId(), Decimal128("1.1"), Int64(5), datetime(2026, 7, 1, tzinfo=UTC), re.compile("a"), Number(3),
        Mine(a=1), collections.OrderedDict(a=1), RawBSONDocument(bson.encode({"a": 1})),
    ],
)  # fmt: skip
def test_what_mongodb_can_store_may_be_there(value: object) -> None:  # F38, F39, F41
    assert problem(value) is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (2**63, TOO_LONG), (-(2**63) - 1, TOO_LONG), ([{"n": 10**5000}], TOO_LONG), (Number(2**70), TOO_LONG),
        (NAN, NOT_FINITE), ([1, [NAN]], NOT_FINITE), ((1, (math.inf,)), NOT_FINITE), ({"x": -math.inf}, NOT_FINITE),
        ([[], {"a": [{}, [NAN]]}], NOT_FINITE),
        (collections.ChainMap({"a": NAN}), NOT_FINITE), (MappingProxyType({"a": [NAN]}), NOT_FINITE),
        (collections.UserDict(a=NAN), NOT_FINITE), (RawBSONDocument(bson.encode({"a": NAN})), NOT_FINITE),
        ("cut \ud83c", HALF_A_PAIR), ({"\ud83c": 1}, HALF_A_PAIR),
        ({"a\x00b": 1}, STORABLE), ({1: 2}, STORABLE), ({None: 1}, STORABLE), ({b"a": 1}, STORABLE),
        ({1, 2}, STORABLE), (object(), STORABLE), (Decimal("1.1"), STORABLE), (date(2026, 7, 1), STORABLE),
        (1j, STORABLE), (range(3), STORABLE), (Colour.RED, STORABLE), (Model(), STORABLE), (int, STORABLE),
        (bytearray(b"x"), STORABLE), (memoryview(b"x"), STORABLE), (ValueError("x"), STORABLE), (..., STORABLE),
        (re.compile(b"\xff"), STORABLE), (Regex("a\x00b"), STORABLE),
        (RawBSONDocument(bson.encode({"a": "?"}).replace(b"?", b"\xff")), STORABLE), (Code("x", itself()), STORABLE),
        (itself(), TOO_DEEP), (nested(MAX_PAYLOAD_DEPTH), TOO_DEEP), (nested(100_000), TOO_DEEP),
        ("x" * MAX_PAYLOAD_BYTES, "must not be larger than 256 KiB"),
    ],
)  # fmt: skip
def test_what_it_cannot_store_or_json_cannot_tell_is_named(value: object, expected: str) -> None:  # F39 to F43, F49
    assert problem(value) == expected


def test_nesting_is_counted_in_every_kind_of_mapping() -> None:
    chain: Any = {}
    for _ in range(200):
        chain = collections.ChainMap({"a": chain})

    assert problem(chain) == TOO_DEEP
    assert problem(nested(MAX_PAYLOAD_DEPTH - 1)) is None


def test_a_mapping_that_holds_itself_is_refused() -> None:
    loop: Any = collections.UserDict()
    loop["a"] = loop

    assert problem(loop) in (TOO_DEEP, "must not contain itself")


def test_a_structure_that_unfolds_without_end_is_refused_at_once() -> None:
    bomb: list[Any] = []
    for _ in range(7):
        bomb = [bomb] * 10
    started = time.thread_time()

    assert problem(bomb) == "must not be larger than 256 KiB"
    assert time.thread_time() - started < 1


@pytest.mark.parametrize(("size", "fits"), [(MAX_PAYLOAD_BYTES - 13, True), (MAX_PAYLOAD_BYTES - 12, False)])
def test_the_size_that_counts_is_the_stored_one(size: int, *, fits: bool) -> None:  # F43
    value = {"a": "x" * size}

    assert (len(bson.encode(value)) <= MAX_PAYLOAD_BYTES) == fits
    assert (find_storage_problem(value, max_bytes=MAX_PAYLOAD_BYTES) is None) == fits


@pytest.mark.parametrize("payload", [None, [], [1, 2], "x", 1, True, MappingProxyType({})])
def test_a_payload_is_an_object(payload: object) -> None:  # F22
    with pytest.raises(InvalidRequestError, match="payload: Input should be a valid dictionary"):
        new_task(name="noop", payload=payload)


def test_a_payload_is_kept_as_it_is() -> None:  # F44
    payload = json.loads('{"id": 1970670598291982290, "amount": 0.1, "v": 1.0, "z": -0.0}')

    kept = new_task(name="noop", payload=payload).payload

    assert json.dumps(kept) == json.dumps(payload)


def test_a_payload_that_cannot_be_stored_is_refused_in_words() -> None:
    with pytest.raises(InvalidRequestError, match=f"^payload: {NOT_FINITE}$"):
        new_task(name="noop", payload={"a": [{"b": NAN}]})
