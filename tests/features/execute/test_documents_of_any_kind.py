"""Documents with a value of any kind in any field: they stop nobody, and each comes to an end in one place."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import product
from types import MappingProxyType
from typing import Any, Final

import bson
import pytest
from bson import Code, DBRef, Decimal128, MaxKey, MinKey, ObjectId, Timestamp
from bson.raw_bson import RawBSONDocument
from pymongo.database import Database

from tests.builders import add, document, stored
from tests.features.conftest import Bench
from tests.features.dead_letters.graveyard import Graveyard, opened
from tests.fixtures import ManualClock
from tidemill.store.connection import Tasks
from tools.chaos.invariants import broken

pytestmark = pytest.mark.slow

HOUR = timedelta(hours=1)
LEASE = {"token": "t", "owner": "B", "expires_at": None}
FIELDS: Final = ("trace", "settled_by", "cancel_requested_at", "idempotency_key", "reason", "finished_at")


UNTRIED: Final = {
    ("idempotency_key", "text"),  # its index keeps a second symbol of the same text out
    ("queue", "not UTF-8"),  # what no driver can ask for, no claim and no sweep can
}


IDS: Final[tuple[Any, ...]] = (
    None, float("nan"), float("inf"), -0.5, 0, False, 1, True, 2**53, "", "x", b"", Decimal128("2"), Timestamp(1, 1),
    datetime(2031, 7, 1, tzinfo=UTC), Code("x"), DBRef("a", 1), MinKey(), MaxKey(), {}, {"a": {"b": [1]}},
)  # fmt: skip
"""Some that Python takes for one another, some that it cannot hash, and one that does not equal itself."""


def text(value: str) -> bytes:
    encoded = value.encode() + b"\0"
    return struct.pack("<i", len(encoded)) + encoded


KINDS: Final[Mapping[str, tuple[int, bytes]]] = MappingProxyType({
    "double": (1, struct.pack("<d", 0.5)),
    "not a number": (1, struct.pack("<d", float("nan"))),
    "infinity": (1, struct.pack("<d", float("inf"))),
    "text": (2, text("x")),
    "no text": (2, text("")),
    "not UTF-8": (2, struct.pack("<i", 2) + b"\xff\0"),
    "object": (3, bson.encode({"$gt": ""})),
    "array": (4, bson.encode({"0": "default"})),
    "empty array": (4, bson.encode({})),
    "binary": (5, struct.pack("<i", 1) + b"\0x"),
    "undefined": (6, b""),
    "id": (7, b"\1" * 12),
    "bool": (8, b"\1"),
    "time": (9, struct.pack("<q", 2**41)),
    "null": (10, b""),
    "pattern": (11, b"default\0\0"),
    "pointer": (12, text("x") + b"\1" * 12),
    "code": (13, text("noop")),
    "symbol": (14, text("noop")),
    "code with scope": (15, struct.pack("<i", 4 + len(text("x")) + 5) + text("x") + bson.encode({})),
    "int": (16, struct.pack("<i", -1)),
    "timestamp": (17, b"\1" * 8),
    "long": (18, struct.pack("<q", 2**62)),
    "decimal": (19, b"\1" * 16),
    "least": (255, b""),
    "greatest": (127, b""),
})  # fmt: skip
"""Every kind of value that BSON has, those too that no driver writes any more: its number and its bytes."""


def spoilt(whole: Mapping[str, Any], field: str, kind: str) -> RawBSONDocument:
    """*whole* with a value of *kind* as its *field*."""
    number, value = KINDS[kind]
    elements = bson.encode({name: one for name, one in whole.items() if name != field})[4:-1]
    elements += bytes([number]) + field.encode() + b"\0" + value
    return RawBSONDocument(struct.pack("<i", len(elements) + 5) + elements + b"\0")


@pytest.mark.parametrize("status", ["pending", "processing", "failed"])
def test_a_value_of_any_kind_in_any_field_stops_nobody_and_comes_to_an_end(  # F25
    db: Database[Any], tasks: Tasks, clock: ManualClock, status: str
) -> None:
    now = clock.now()
    bench = Bench(db=db, clock=clock)
    graveyard = Graveyard(db=db, clock=clock, s3=None, put=None)
    held = {"lease": LEASE | {"expires_at": now}, "attempts": 1} if status == "processing" else {}
    whole = document(now, status=status, **held)
    fields = sorted({*whole, *held, *FIELDS} - {"_id", "status"})
    odd = {ObjectId(): one for one in product(fields, KINDS) if one not in UNTRIED}
    add(tasks, [spoilt(whole | {"_id": own}, *one) for own, one in odd.items()])
    good = add(tasks, [document(now, payload={"n": n}) for n in range(50)])

    for _ in range(4):
        bench.execute()
        bench.reclaim()
        graveyard.archive()
        clock.move(HOUR)

    assert set(range(50)) <= set(bench.ran)
    assert {stored(tasks, one)["status"] for one in good} == {"done"}
    told = broken(db, accepted=[*odd, *good], now=clock.now(), at_rest=True, edited=list(odd))
    assert [f"{kind}: {one}" for one in told for own, kind in odd.items() if str(own) in one] == []
    assert told == []


@pytest.mark.parametrize("status", ["pending", "processing"])
def test_an_id_of_any_kind_is_run_retried_moved_and_redriven(  # F25
    bench: Bench, tasks: Tasks, clock: ManualClock, status: str
) -> None:
    bench.task("broken")(lambda _payload, _ctx: 1 / 0)
    held = {"lease": LEASE | {"expires_at": clock.now()}, "attempts": 1} if status == "processing" else {}
    common = {"name": "broken", "status": status, "max_retries": 1, **held}
    add(tasks, [document(clock.now(), _id=own, payload={"n": n}, **common) for n, own in enumerate(IDS)])

    with opened(bench.db, clock) as graveyard:
        for _ in range(4):
            bench.reclaim()
            bench.execute()
            graveyard.archive()
            clock.move(HOUR)
        assert sorted(bench.ran) == sorted([*range(len(IDS))] * 2)
        assert (tasks.count_documents({}), len(graveyard.objects())) == (0, len(IDS))
        replace(graveyard, registered=frozenset({"broken"})).redrive_all()

    assert bench.execute()["retried"] == len(IDS)
