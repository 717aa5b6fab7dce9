"""What tells one request from another under the same key."""

from __future__ import annotations

import json
import re
import unicodedata
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import pytest
from bson import Code, DBRef, Decimal128, MinKey, ObjectId, Timestamp
from bson.datetime_ms import DatetimeMS
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures import T0
from tests.ids import shown
from tidemill import PRESETS, Backoff
from tidemill.requests.tasks import new_task

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "$oid", ""]), inner),
    max_leaves=6,
)  # fmt: skip
DEFAULTS = asdict(Backoff())
OBJECTS = st.dictionaries(st.sampled_from(["a", "b", "$numberInt", "_id"]), JSON, max_size=3)


def of(payload: dict[str, Any] | None = None, **fields: Any) -> str:
    return new_task(**({"name": "noop", "payload": payload or {}} | fields)).hash()


def numbers(preset: str) -> dict[str, Any]:
    policy = PRESETS[preset]
    return {"max_retries": policy.max_retries} | asdict(policy.backoff)


def backwards(value: Any) -> Any:
    """The same meaning with every object the other way round."""
    if isinstance(value, dict):
        return {name: backwards(one) for name, one in reversed(value.items())}
    return [backwards(one) for one in value] if isinstance(value, list) else value


@given(OBJECTS)
def test_the_order_of_names_does_not_matter(payload: dict[str, Any]) -> None:  # F74
    assert of(backwards(payload)) == of(payload)


@given(OBJECTS, OBJECTS)
def test_other_json_is_another_request(one: dict[str, Any], other: dict[str, Any]) -> None:  # F75
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)

    assert (of(one) == of(other)) == same


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": [1, 2]}, {"a": [2, 1]}),
        ({"a": 1}, {"a": 1.0}),
        ({"a": 1}, {"a": True}),
        ({"a": 1}, {"a": "1"}),
        ({"a": 1}, {"a": {"$numberInt": "1"}}),
        ({"a": None}, {}),
        ({"a": {}}, {"a": []}),
        ({"a": 0.0}, {"a": -0.0}),
        ({"a": unicodedata.normalize("NFC", "é")}, {"a": unicodedata.normalize("NFD", "é")}),
    ],
)
def test_what_differs_in_meaning_or_type_is_another_request(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert of(one) != of(other)


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "other"},
        {"queue": "eu"},
        {"priority": 1},
        {"delay_sec": 5},
        {"not_before": T0},
        {"expires_at": T0},
        {"retry": {"factor": 2}},
        {"retry": "default"},
        {"retry": "standard"},
        {"retry": {"jitter": "none"}},
        {"max_retries": 0},
        {"timeout_sec": 5},
    ],
    ids=str,
)
def test_every_option_but_the_key_is_part_of_the_request(fields: dict[str, Any]) -> None:  # F75
    assert of(**fields) != of()
    assert of(**fields) == of(**fields)


def test_the_key_is_no_part_of_the_request() -> None:
    assert of(idempotency_key="a") == of(idempotency_key="b") == of()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"delay_sec": 5}, {"delay_sec": 5.0}),
        ({"queue": "default", "priority": 0}, {}),
        ({"not_before": "2026-07-01T09:00:00Z"}, {"not_before": "2026-07-01T11:00:00.000+02:00"}),
        ({"payload": {"a": (1, 2)}}, {"payload": {"a": [1, 2]}}),
        *((({"retry": name}, {"retry": numbers(name)})) for name in PRESETS),
        *((({"retry": name}, {"retry": PRESETS[name]})) for name in PRESETS),
        ({"retry": {"base_sec": 1}}, {"retry": {"base_sec": 1.0, "factor": 2, "max_retries": None}}),
        *(({"retry": {name: value}}, {"retry": DEFAULTS}) for name, value in DEFAULTS.items()),
        ({"retry": {}}, {}),
        ({"retry": {"max_retries": 3}}, {"max_retries": 3}),
        ({"retry": {"base_sec": 1, "max_retries": 3}}, {"retry": {"base_sec": 1}, "max_retries": 3}),
        ({"delay_sec": 0}, {}),
        ({"retry": {"base_sec": 1, "jitter": "none"}}, {"retry": {"jitter": "none", "base_sec": 1}}),
        ({"retry": None, "max_retries": None, "timeout_sec": None, "delay_sec": None, "expires_at": None}, {}),
    ],
)
def test_what_means_the_same_is_the_same_request(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert of(**one) == of(**other)


def test_every_preset_is_a_request_of_its_own() -> None:
    assert len({of(retry=name) for name in PRESETS}) == len(PRESETS)


@pytest.mark.parametrize(
    "option",
    [{"strategy": "linear"}, {"base_sec": 6}, {"factor": 3}, {"max_sec": 60}, {"jitter": "none"}, {"jitter_factor": 1},
     {"max_retries": 0}],
    ids=str,
)  # fmt: skip
def test_every_number_of_a_policy_is_part_of_the_request(option: dict[str, Any]) -> None:  # F75
    assert of(retry=option) != of(retry={})


def test_a_hash_outlives_a_release() -> None:
    of_this_release = of({"a": 1}, retry={"base_sec": 1, "factor": 3, "max_sec": 9, "max_retries": 3})

    assert of_this_release == "4d84102c0112ed208dffe37c94cce1123366919b55750492b7fff884cad589e3"


@pytest.mark.parametrize(
    "value",
    [
        b"\xff", datetime(1, 1, 1, tzinfo=UTC), DatetimeMS(2**62), Code("x", {"a": 1}), DBRef("a", 1), re.compile("x"),
        Timestamp(1, 1), MinKey(), Decimal128("NaN"), ObjectId("0" * 24),
    ],
    ids=shown,
)  # fmt: skip
def test_whatever_mongodb_stores_has_a_hash(value: object) -> None:
    assert of({"a": value}) == of({"a": value}) != of({"a": "other"})
