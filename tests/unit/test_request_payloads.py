"""What a payload, or a result, may hold."""

from __future__ import annotations

import collections
import enum
import json
import math
import re
import time
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import PurePath
from types import MappingProxyType
from typing import Any
from uuid import UUID

import bson
import pydantic
import pytest
from bson import Code, Decimal128, Int64, ObjectId, Regex
from bson.raw_bson import RawBSONDocument

from tidemill import InvalidRequestError
from tidemill.requests.tasks import new_task
from tidemill.requests.validation import MAX_PAYLOAD_BYTES, MAX_PAYLOAD_DEPTH, UnfitError, encode_payload

STORABLE = "must contain only what MongoDB can store"
NOT_FINITE = "must not be NaN or Infinity"
TOO_LONG = "must not be a whole number beyond 64 bits"
ODD_KEY = "a key must not contain NUL or half a surrogate pair"
TOO_DEEP = f"must not nest deeper than {MAX_PAYLOAD_DEPTH} levels"
HALF_A_PAIR = "must not contain half a surrogate pair"
NAN = math.nan


class Colour(enum.Enum):
    RED = 1


class Model(pydantic.BaseModel):
    a: int = 1


@dataclass
class Point:
    x: int


class Number(int):
    pass


class Mine(dict[str, Any]):
    pass


def problem(value: Any) -> str | None:
    try:
        encode_payload({"a": value}, max_bytes=MAX_PAYLOAD_BYTES)
    except UnfitError as error:
        return str(error)
    return None


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
        (2**63, f"a: {TOO_LONG}"), (-(2**63) - 1, f"a: {TOO_LONG}"), ([{"n": 10**5000}], f"a.0.n: {TOO_LONG}"),
        (Number(2**70), f"a: {TOO_LONG}"),
        (NAN, f"a: {NOT_FINITE}"), ([1, [NAN]], f"a.1.0: {NOT_FINITE}"), ((1, (math.inf,)), f"a.1.0: {NOT_FINITE}"),
        ({"x": -math.inf}, f"a.x: {NOT_FINITE}"), ([[], {"a": [{}, [NAN]]}], f"a.1.a.1.0: {NOT_FINITE}"),
        (collections.ChainMap({"a": NAN}), f"a.a: {NOT_FINITE}"),
        (MappingProxyType({"a": [NAN]}), f"a.a.0: {NOT_FINITE}"), (collections.UserDict(a=NAN), f"a.a: {NOT_FINITE}"),
        (RawBSONDocument(bson.encode({"a": NAN})), f"a.a: {NOT_FINITE}"),
        ("cut \ud83c", f"a: {HALF_A_PAIR}"), ({"\ud83c": 1}, f"a: {ODD_KEY}"), ({"a\x00b": 1}, f"a: {ODD_KEY}"),
        ({1: 2}, "a: a key must be text, not an int"), ([{None: 1}], "a.0: a key must be text, not a NoneType"),
        ({b"a": 1}, "a: a key must be text, not a bytes"),
        ([{1, 2}], "a.0: a set cannot be stored; pass list(value)"), (object(), "a: an object cannot be stored"),
        ({"lines": [{"price": Decimal("1.1")}]}, "a.lines.0.price: a Decimal cannot be stored; pass str(value)"),
        (date(2026, 7, 1), "a: a date cannot be stored; pass value.isoformat(), or a datetime"),
        (UUID(int=1), "a: a UUID cannot be stored; pass str(value)"),
        (PurePath("x"), "a: a PurePosixPath cannot be stored; pass str(value)"),
        (1j, "a: a complex cannot be stored"), (range(3), "a: a range cannot be stored; pass list(value)"),
        (Colour.RED, "a: a Colour cannot be stored; pass value.value"),
        (Model(), 'a: a Model cannot be stored; pass value.model_dump(mode="json")'),
        (Point(1), "a: a Point cannot be stored; pass dataclasses.asdict(value)"), (int, "a: a type cannot be stored"),
        (bytearray(b"x"), "a: a bytearray cannot be stored; pass bytes(value)"),
        (memoryview(b"x"), "a: a memoryview cannot be stored; pass bytes(value)"),
        (ValueError("x"), "a: a ValueError cannot be stored"), (..., "a: an ellipsis cannot be stored"),
        (re.compile(b"\xff"), "a: a Pattern cannot be stored"), (Regex("a\x00b"), "a: a Regex cannot be stored"),
        (Code("x", itself()), "a: a Code cannot be stored"),
        (RawBSONDocument(bson.encode({"a": "?"}).replace(b"?", b"\xff")), STORABLE),
        (itself(), TOO_DEEP), (nested(MAX_PAYLOAD_DEPTH), TOO_DEEP), (nested(100_000), TOO_DEEP),
        ("x" * MAX_PAYLOAD_BYTES, "must not be larger than 256 KiB"),
    ],
)  # fmt: skip
def test_what_it_cannot_store_or_json_cannot_tell_is_named(  # F39 to F43, F49, N04, N34
    value: object, expected: str
) -> None:
    assert problem(value) == expected


def test_what_cannot_be_stored_is_found_in_a_list_that_holds_itself() -> None:
    value: list[Any] = [NAN]
    value.append(value)

    assert problem(value) == f"a.0: {NOT_FINITE}"


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
    assert (problem(value["a"]) is None) == fits


@pytest.mark.parametrize("payload", [None, [], [1, 2], "x", 1, True, MappingProxyType({})])
def test_a_payload_is_an_object(payload: object) -> None:  # F22
    with pytest.raises(InvalidRequestError, match="payload: Input should be a valid dictionary"):
        new_task(name="noop", payload=payload)


def test_a_payload_is_kept_as_it_is() -> None:  # F44
    payload = json.loads('{"id": 1970670598291982290, "amount": 0.1, "v": 1.0, "z": -0.0}')

    kept = new_task(name="noop", payload=payload).payload

    assert json.dumps(kept) == json.dumps(payload)


def test_a_payload_that_cannot_be_stored_is_refused_in_words() -> None:
    with pytest.raises(InvalidRequestError, match=rf"^payload\.a\.0\.b: {NOT_FINITE}$"):
        new_task(name="noop", payload={"a": [{"b": NAN}]})


@pytest.mark.parametrize(
    ("payload", "named"),
    [(Model(), 'a Model; pass value.model_dump(mode="json")'), (Point(1), "a Point; pass dataclasses.asdict(value)")],
)
def test_a_model_as_the_payload_is_named_with_what_to_pass(payload: object, named: str) -> None:  # N03
    with pytest.raises(InvalidRequestError) as caught:
        new_task(name="noop", payload=payload)
    assert str(caught.value) == f"payload: Input should be a valid dictionary, not {named}"


def test_a_function_as_the_name_is_told_to_pass_its_name() -> None:  # N17
    with pytest.raises(InvalidRequestError) as caught:
        new_task(name=problem, payload={})
    expected = "name: Input should be a valid string, not a function; pass the name it is registered as"
    assert str(caught.value) == expected


def test_the_path_of_a_deep_element_is_cut_like_any_field() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        new_task(name="noop", payload={"x" * 5000: Decimal(1)})
    [found] = caught.value.problems
    assert (len(found.field), found.message) == (100, "a Decimal cannot be stored; pass str(value)")
