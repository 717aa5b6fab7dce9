"""Bodies: JSON objects that can be stored, and a 4xx for everything else."""

from __future__ import annotations

import base64
import gzip
import json
import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tidemill.http.events import MAX_BODY_BYTES, parse_json_object, read_body
from tidemill.http.models import HttpError

EMPTY = "the body is empty"
NOT_JSON = "the body is not valid JSON"
NO_OBJECT = "the body must be a JSON object"
NOT_BASE64 = "the body is not UTF-8 text in base64"
TOO_LONG = "the body holds a whole number beyond 64 bits"
NOT_FINITE = "the body holds NaN or Infinity, which are not JSON"
TOO_DEEP = "the body is nested too deeply"


def json_object(event: dict[str, Any]) -> dict[str, Any]:
    return parse_json_object(read_body(event))


def encoded(raw: bytes) -> dict[str, Any]:
    return {"body": base64.b64encode(raw).decode(), "isBase64Encoded": True}


def refused(event: dict[str, Any]) -> HttpError:
    with pytest.raises(HttpError) as caught:
        json_object(event)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    return caught.value


def told(event: dict[str, Any]) -> str:
    error = refused(event)
    assert error.status == 400
    return str(error)


@pytest.mark.parametrize(
    ("body", "value"),
    [
        ("{}", {}),
        (' {"a": [1, {"b": null}]}\r\n', {"a": [1, {"b": None}]}),
        ('{"max": 9223372036854775807, "min": -9223372036854775808}', {"max": 2**63 - 1, "min": -(2**63)}),
        ('{"a": 0.1, "b": 1.0, "c": -0.0, "d": 1e-400}', {"a": 0.1, "b": 1.0, "c": -0.0, "d": 0.0}),
        (r'{"a": "\ud83d\ude00 \u0000"}', {"a": "😀 \x00"}),
        ('{"": 1, "$gt": "", "a.b": {"$ref": "x"}}', {"": 1, "$gt": "", "a.b": {"$ref": "x"}}),
        ('{"a": {"x": 1}, "b": {"x": 1}}', {"a": {"x": 1}, "b": {"x": 1}}),
    ],
)
def test_an_object_is_read_as_it_is(body: str, value: dict[str, Any]) -> None:  # F38, F44
    assert json.dumps(json_object({"body": body})) == json.dumps(value)
    assert json_object(encoded(body.encode())) == value


@pytest.mark.parametrize("body", [None, "", " ", "\r\n", 5, {}, [], True, b"{}"])
def test_no_body_is_an_empty_one(body: object) -> None:  # F63
    assert told({"body": body}) == EMPTY
    assert told({"body": body, "isBase64Encoded": True}) == EMPTY


def test_an_event_without_a_body_has_an_empty_one() -> None:  # F63
    assert told({}) == EMPTY


@pytest.mark.parametrize("body", ["null", "[]", '"x"', "1", "true", "0.5", "[{}]"])
def test_a_body_that_is_no_object_is_refused(body: str) -> None:  # F63
    assert told({"body": body}) == NO_OBJECT


@pytest.mark.parametrize(
    "body",
    ["{bad", "{'a': 1}", '{"a": 1,}', '{"a": 00}', '{"a": +1}', '{"a": .5}', '{"a": 0x1}', '{"a": "\t"}', "{}x",
     "\x00{}", '{"a": "\\x"}', "{}{}", '{"a"}', "<xml/>", '{"a": tru}', "{\u00a0}", '{"a": 1} // b'],
)  # fmt: skip
def test_what_is_not_json_is_refused(body: str) -> None:  # F63
    assert told({"body": body}) == NOT_JSON


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("9223372036854775808", TOO_LONG),
        ("-9223372036854775809", TOO_LONG),
        ("1" * 5000, TOO_LONG),
        ("1e400", "the body holds a number that is too large"),
        ("-1.0e999", "the body holds a number that is too large"),
        ("NaN", NOT_FINITE),
        ("Infinity", NOT_FINITE),
        ("-Infinity", NOT_FINITE),
        ('{"b": 1, "b": 2}', "the body has a name twice in one object"),
        ('{"b": 1, "\\u0062": 1}', "the body has a name twice in one object"),
    ],
)
def test_what_json_or_mongodb_could_not_tell_again_is_refused(value: str, message: str) -> None:  # F39, F42, F46
    assert told({"body": f'{{"a": {value}}}'}) == message


@pytest.mark.parametrize("body", ["[" * 1_000_000, '{"a":' * 500_000, '{"a":' + "[" * 100_000 + "]" * 100_000 + "}"])
def test_nesting_without_end_is_refused(body: str) -> None:
    assert told({"body": body}) == TOO_DEEP


@pytest.mark.parametrize(
    "event",
    [
        {"body": "***", "isBase64Encoded": True},
        {"body": "e30", "isBase64Encoded": True},
        {"body": "e30=\n", "isBase64Encoded": True},
        {"body": "é", "isBase64Encoded": True},
        {"body": "{}", "isBase64Encoded": True},
        encoded(b'{"a": "\xff"}'),
        encoded(gzip.compress(b"{}")),
        encoded("{}".encode("utf-16")),
    ],
)
def test_base64_that_holds_no_text_is_refused(event: dict[str, Any]) -> None:  # F62
    assert told(event) == NOT_BASE64
    assert refused(event).code == "invalid_body"


@pytest.mark.parametrize("event", [{"body": "\ufeff{}"}, encoded("\ufeff{}".encode())])
def test_a_byte_order_mark_is_refused_in_words(event: dict[str, Any]) -> None:  # F62
    assert told(event) == "the body starts with a byte order mark"


def test_the_size_that_counts_is_that_of_the_text() -> None:  # F43, F62
    fits = '{"a":"' + "é" * ((MAX_BODY_BYTES - 8) // 2) + '"}'
    assert len(fits.encode()) == MAX_BODY_BYTES

    assert json_object({"body": fits})
    assert json_object(encoded(fits.encode()))
    for event in ({"body": fits + " "}, encoded(fits.encode() + b" ")):
        error = refused(event)
        assert (error.status, error.code) == (413, "too_large")


TEXTS = st.text(st.characters()) | st.text('{}[]",:0123456789.eE+-nulltruefalse \\ud83c\ufeff')


@given(
    st.none() | st.integers() | TEXTS | st.binary().map(lambda raw: base64.b64encode(raw).decode()),
    st.sampled_from([True, False, None, "true", 0]),
)
@example('{"a": "\ud83c"}', None)
def test_no_body_at_all_raises_anything_but_an_answer(body: object, flag: object) -> None:
    try:
        value = json_object({"body": body, "isBase64Encoded": flag})
    except HttpError as error:
        assert error.status in (400, 413)  # noqa: PT017 - most bodies are no objects
    else:
        assert isinstance(value, dict)


FINITE = st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | FINITE | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), JSON, max_size=4))
def test_every_object_that_can_be_stored_comes_through(value: dict[str, Any]) -> None:
    read = json_object({"body": json.dumps(value)})

    assert read == value
    assert all(math.copysign(1, read[name]) == math.copysign(1, one) for name, one in value.items() if one == 0)
