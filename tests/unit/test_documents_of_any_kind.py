"""No document stops a batch, whatever stands in it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import bson
import pytest
from bson import Binary, Code, DBRef, Decimal128, Int64, MaxKey, MinKey, ObjectId, Regex, Timestamp
from bson.datetime_ms import DatetimeMS
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import document
from tests.fixtures import T0
from tests.unit.make import raw
from tidemill import Malformed, Task
from tidemill.documents import decode, missing_fields, read_task
from tidemill.http.models import build_task_answer
from tidemill.model import Failed, Failure, Run
from tidemill.policy.retry import DEFAULT, decide_after_loss, resolve_policy
from tidemill.store.settle import Settlement, outcome_updates

pytestmark = pytest.mark.slow

NAMES = [*document(T0), "lease", "settled_by", "cancel_requested_at", "idempotency_key"]
KEYS = st.sampled_from(
    ["a", "$ref", "$id", "$db", "token", "owner", "expires_at", "message", "code", "at", "source", "attempt", "status",
     "started_at", "duration_ms", "note", "base_sec", "factor", "max_sec", "strategy", "jitter", ""]
)  # fmt: skip
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-(2**63), 2**63 - 1).map(Int64),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=20),
    st.sampled_from(["pending", "processing", "fresh", "retry", "default", "exponential", "full"]),
    st.datetimes().map(lambda moment: moment.replace(tzinfo=UTC)),
    st.integers(-(2**63), 2**63 - 1).map(DatetimeMS),
    st.sampled_from(
        [ObjectId(), Decimal128("NaN"), Decimal128("3"), Regex("a", "i"), Code("x"), Code("x", {"a": 1}), MinKey(),
         MaxKey(), Timestamp(1, 2), DBRef("a", 1), Binary(b"abc", 3), Binary(b"x", 4), Binary(b"x" * 16, 4),
         Binary(b"", 128)]
    ),
)  # fmt: skip
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5), max_leaves=8
)
LINES = st.fixed_dictionaries(dict.fromkeys(["attempt", "status", "started_at", "duration_ms", "note"], SCALARS))
ANYTHING = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=3)
THOROUGH = settings(max_examples=200)
FAILED = Failed(failure=Failure(message="ValueError: no", code="ValueError"), reason="exhausted")


@given(ANYTHING)
@THOROUGH
def test_reading_a_document_of_any_kind_gives_a_task_or_a_reason(fields: dict[str, Any]) -> None:
    found = read_task(raw(fields))

    assert isinstance(found, Task | Malformed)
    assert found.id == decode(raw(fields)).get("_id") or found.id != found.id


@given(ANYTHING, st.lists(LINES, max_size=3))
@THOROUGH
def test_what_was_read_can_be_settled_whatever_it_was(fields: dict[str, Any], lines: list[dict[str, Any]]) -> None:
    found = read_task(raw(document(T0, attempt_log=lines) | fields))
    run = Run(started_at=T0, duration=T0 - T0, status="failed")

    for where, update in outcome_updates(Settlement(task=found, outcome=FAILED, run=run), now=T0):
        bson.encode({"where": where, "update": update})
    if isinstance(found, Task):
        policy = resolve_policy(found, registered=None, deployment=DEFAULT)
        decide_after_loss(found, policy, now=T0, draw=0.5)


@given(ANYTHING)
@THOROUGH
def test_a_task_of_any_kind_can_be_told(fields: dict[str, Any]) -> None:
    found = read_task(raw(document(T0) | fields))

    assert isinstance(found, Malformed) or json.dumps(build_task_answer(found).model_dump(), allow_nan=False)


@given(ANYTHING, st.sampled_from([None, "noop"]))
@THOROUGH
def test_a_stray_of_any_kind_is_adopted_or_refused(fields: dict[str, Any], adopt_as: str | None) -> None:
    stray = {"_id": 1, "payload": {}, "status": "pending", "attempts": 0, "next_retry_at": None} | fields

    verdict = missing_fields(raw(stray), now=datetime(2026, 7, 1, tzinfo=UTC), adopt_as=adopt_as)

    if not isinstance(verdict, Malformed):
        adopted = decode(raw(stray)) | verdict
        assert isinstance(read_task(raw(adopted)), Task)
        assert all(stray.get(name) is None for name in verdict), "something that was there was replaced"
