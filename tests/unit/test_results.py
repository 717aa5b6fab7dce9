"""What a function returned, made storable."""

from __future__ import annotations

import collections
import contextlib
import functools
import json
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import bson
import pytest
from bson import json_util
from bson.raw_bson import RawBSONDocument
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, RootModel

from tidemill import Fail, Retry, Snooze
from tidemill.runner.call import MAX_RESULT_BYTES, run_function
from tidemill.runner.results import Raised, Returned


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


def make_storable(value: object) -> Any:
    concluded = run_function(lambda: value)
    assert isinstance(concluded, Returned)
    return concluded.result


def refusal(value: object) -> tuple[str, bool]:
    concluded = run_function(lambda: value)
    assert isinstance(concluded, Raised)
    assert concluded.failure.code == "not_run"
    return concluded.failure.message, concluded.failure.retryable


def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


async def coroutine() -> int:
    return 1


@dataclass
class Order:
    number: int
    at: datetime


class Receipt(BaseModel):
    amount: Decimal
    order: Order


UNSTORABLE: dict[str, Callable[[], Any]] = {  # F49
    "set": lambda: {1, 2},
    "object": object,
    "Decimal": lambda: Decimal("1.1"),
    "date": lambda: datetime(2026, 7, 1, tzinfo=UTC).date(),
    "int": lambda: 2**70,
    "dict": lambda: {1: "int key"},
    "float": lambda: float("nan"),
    "str": lambda: "x" * 20_000_000,
    "list": itself,
    "Hostile": Hostile,
    "Nameless": Nameless,
    "HostileDict": lambda: HostileDict(a=1),
    "RawBSONDocument": lambda: RawBSONDocument(bson.encode({"a": "?"}).replace(b"?", b"\xff")),
    "ChainMap": lambda: collections.ChainMap({"a": float("nan")}),
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


GENERATOR = "the task function returned a generator, whose body has not run: a task function must not yield"
CONTEXT_MANAGER = "the task function returned a context manager, whose body has not run: use it in a with"
FUNCTION = "the task function returned a function and did not call it: a decorator may lack its brackets"
AT = datetime(2026, 7, 1, tzinfo=UTC)
ORDER = {"number": 7, "at": "2026-07-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("result", "kept"),
    [
        (Order(7, AT), ORDER),
        (Receipt(amount=Decimal("1.10"), order=Order(7, AT)), {"amount": "1.10", "order": ORDER}),
        ([Order(7, AT), {"a": Order(7, AT)}], [ORDER, {"a": ORDER}]),
        (RootModel[list[int]]([1]), [1]),
    ],
)
def test_a_model_or_a_dataclass_is_stored_as_its_json(result: object, kept: object) -> None:  # N31
    assert make_storable(result) == kept


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        (Decimal("1.1"), "result: a Decimal cannot be stored; pass str(value)"),
        ({"ids": [1, uuid.UUID(int=1)]}, "result.ids.1: a UUID cannot be stored; pass str(value)"),
        ({"order": Order(7, AT), "at": AT.date()}, "result.at: a date cannot be stored"),
        ({"seen": {1}}, "result.seen: a set cannot be stored; pass list(value)"),
        ({"a": {1: 2}}, "result.a: a key must be text, not an int"),
    ],
)
def test_the_reason_names_the_path_and_the_type(result: object, reason: str) -> None:  # N31
    assert make_storable(result)["reason"].startswith(reason)


@pytest.mark.parametrize(
    ("returned", "reason"),
    [
        (lambda: Retry("x"), "the task function returned Retry instead of raising it: write raise"),
        (lambda: Snooze(timedelta(1)), "the task function returned Snooze instead of raising it: write raise"),
        (lambda: Fail, "the task function returned an exception class instead of raising it: write raise"),
        (lambda: ValueError("x"), "the task function returned ValueError instead of raising it: write raise"),
        (generator, GENERATOR),
        (async_generator, GENERATOR),
        (
            contextlib.contextmanager(generator),
            CONTEXT_MANAGER,
        ),
        (
            contextlib.asynccontextmanager(async_generator),
            CONTEXT_MANAGER,
        ),
        (
            lambda: map(str, [1]),
            "the task function returned a map, which has called nothing yet: return list(map(...))",
        ),
        (
            lambda: coroutine,
            FUNCTION,
        ),
        (
            lambda: functools.partial(coroutine),
            FUNCTION,
        ),
        (Future, "the task function returned a Future and did not wait for it: return its result()"),
    ],
)  # fmt: skip
def test_a_function_whose_body_has_not_run_has_failed(  # N20, N21
    returned: Callable[[], object], reason: str
) -> None:
    assert refusal(returned()) == (reason, False)


@pytest.mark.parametrize(
    "collect",
    [lambda value: [value], lambda value: (1, value), lambda value: {"a": value}, lambda value: {"a": [[(value,)]]}],
)
def test_coroutines_that_are_only_made_have_not_run(collect: Callable[[object], object]) -> None:  # N20
    made = coroutine()
    try:
        message, _ = refusal(collect(made))
    finally:
        made.close()

    assert message == "the task function returned coroutines that were not awaited: await asyncio.gather(*coroutines)"


def test_generators_in_a_result_have_not_run() -> None:  # N20
    message, _ = refusal({"rows": [generator()]})

    assert message == "the task function returned generators, whose bodies have not run: return lists"


def test_exceptions_that_were_gathered_are_a_result() -> None:
    assert make_storable([1, ValueError("x")])["not_stored"] == "list"
