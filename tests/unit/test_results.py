"""What a function returned, made storable."""

from __future__ import annotations

import collections
import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import bson
import pytest
from bson import json_util
from bson.raw_bson import RawBSONDocument
from hypothesis import given
from hypothesis import strategies as st

from tidemill.requests.tasks import NewTask
from tidemill.runner.call import MAX_RESULT_BYTES, make_storable


def breaks(*_: Any) -> Any:
    raise SystemExit("hostile")


class Hostile:
    __repr__ = __str__ = breaks
    __class__ = property(breaks)


class Meta(type):
    __name__ = property(breaks)


class Nameless(metaclass=Meta):
    pass


class HostileDict(dict[str, Any]):
    values = items = __iter__ = breaks


class Liar(dict[str, Any]):
    """Says something else each time it is asked."""

    def __len__(self) -> int:
        return 0

    def items(self) -> Any:
        raise LookupError


def itself() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def bomb() -> list[Any]:
    value: list[Any] = []
    for _ in range(7):
        value = [value] * 10
    return value


def generator() -> Iterator[int]:
    yield 1


UNSTORABLE: dict[str, Callable[[], Any]] = {  # F49
    "set": lambda: {1, 2},
    "object": object,
    "Decimal": lambda: Decimal("1.1"),
    "date": lambda: datetime(2026, 7, 1, tzinfo=UTC).date(),
    "int": lambda: 2**70,
    "dict": lambda: {1: "int key"},
    "float": lambda: float("nan"),
    "generator": generator,
    "str": lambda: "x" * 20_000_000,
    "list": itself,
    "NewTask": lambda: NewTask(name="noop", payload={}),
    "Hostile": Hostile,
    "Nameless": Nameless,
    "HostileDict": lambda: HostileDict(a=1),
    "RawBSONDocument": lambda: RawBSONDocument(bson.encode({"a": "?"}).replace(b"?", b"\xff")),
    "ChainMap": lambda: collections.ChainMap({"a": float("nan")}),
    "ValueError": lambda: ValueError("x"),
}


def told(result: Any) -> Any:
    """*result* as it is read by somebody else: through the database and through strict JSON."""
    stored = bson.decode(bson.encode({"result": result}))["result"]
    plain = json.loads(json_util.dumps(stored, json_options=json_util.RELAXED_JSON_OPTIONS))
    return json.loads(json.dumps(plain, allow_nan=False))


@pytest.mark.parametrize("name", UNSTORABLE)
def test_what_cannot_be_stored_is_described_by_its_type(name: str) -> None:
    description = make_storable(UNSTORABLE[name]())

    assert told(description) == {"not_stored": name, "reason": description["reason"]}
    assert 0 < len(description["reason"]) < 100


@pytest.mark.parametrize(
    "result", [None, True, 0, 0.5, "", "é😀", [], {}, {"a": [1, {"b": None}]}, {"$ref": "a", "$id": 1}, {"": 1}]
)
def test_what_can_be_stored_is_kept_as_it_is(result: object) -> None:
    assert make_storable(result) == result


@pytest.mark.parametrize(
    ("result", "kept"),
    [
        ((1, (2,)), [1, [2]]),
        (b"\xff", b"\xff"),
        (Liar(a=1), {"a": 1}),
        (collections.UserDict(a=1), {"a": 1}),
        (datetime(2026, 7, 1), datetime(2026, 7, 1, tzinfo=UTC)),  # noqa: DTZ001 - functions return such
    ],
)
def test_what_is_kept_is_plain(result: object, kept: object) -> None:
    assert make_storable(result) == kept
    assert type(make_storable(result)) is type(kept)


def test_a_result_that_changes_afterwards_is_kept_as_it_was_returned() -> None:
    result: dict[str, Any] = {"sent": [1]}

    kept = make_storable(result)
    result["sent"].append({1, 2})

    assert kept == {"sent": [1]}


def test_a_result_that_unfolds_without_end_is_described_at_once() -> None:
    assert make_storable(bomb()) == {"not_stored": "list", "reason": "must not be larger than 64 KiB"}


@pytest.mark.parametrize(("size", "fits"), [(MAX_RESULT_BYTES - 18, True), (MAX_RESULT_BYTES - 17, False)])
def test_the_largest_result_is_64_kib(size: int, *, fits: bool) -> None:
    assert isinstance(make_storable("x" * size), str) == fits


RESULTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5) | st.binary()
    | st.datetimes() | st.dates() | st.decimals() | st.uuids() | st.complex_numbers(),
    lambda inner: st.lists(inner, max_size=3)
    | st.tuples(inner)
    | st.dictionaries(st.text(st.characters(), max_size=3) | st.integers(), inner, max_size=3)
    | st.dictionaries(st.sampled_from(["$ref", "$id", "$oid", "$date"]), inner, max_size=2),
    max_leaves=6,
)  # fmt: skip


@given(RESULTS)
def test_whatever_comes_back_it_can_be_stored_and_told(result: object) -> None:
    told(make_storable(result))
