"""What failures for one reason have in common."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.fingerprint import MAX_FOLDED, fingerprint, folded

TEXT = st.text(max_size=300)


def of(message: str, *, name: str = "noop", code: str = "ValueError") -> str:
    return fingerprint(name=name, code=code, message=message)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("user 17 is gone", "user 4711 is gone"),
        ("took 1.5 s", "took 22.75 s"),
        ("KeyError: 'a'", "KeyError: 'another key'"),
        ('no "x" here', 'no "y z" here'),
        ("no `x` here", "no `y` here"),
        ("GET https://a.example/x?y=1 failed", "GET https://b.example:8443/ failed"),
        ("no answer from 10.0.0.1:27017", "no answer from 192.168.100.200:1"),
        ("mail to ann@example.org bounced", "mail to b.c+d@mail.example.com bounced"),
        ("id 6b0a1851d84ec58354cafa33", "id 6b0a1851d84ec58354cafa34"),
        ("id 2f1c4a3e-9b1d-4c7a-8f00-0123456789ab", "id 00000000-0000-0000-0000-000000000000"),
        ("at 0x7f00dead", "at 0x1"),
        ("a\n  b", "a b"),
        ("  a ", "a"),
    ],
)
def test_what_differs_from_case_to_case_is_folded_out(one: str, other: str) -> None:
    assert of(one) == of(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("connection refused", "connection reset"),
        ("user 17 is gone", "order 17 is gone"),
        ("deadbeef", "feedface"),
        ("", "x"),
    ],
)
def test_what_tells_reasons_apart_is_kept(one: str, other: str) -> None:
    assert of(one) != of(other)


def test_name_and_code_are_part_of_the_reason() -> None:
    same = [of("x", name="a", code="b"), of("x", name="b", code="a"), of("x", name="a"), of("x", code="b")]

    assert len(set(same)) == 4


def test_a_fingerprint_is_the_same_in_every_release_and_process() -> None:
    assert of("user 17: 'no'") == "5f41974541352b7a"


@given(TEXT, TEXT, TEXT)
def test_it_is_16_digits_of_any_text_and_always_the_same(name: str, code: str, message: str) -> None:  # F41
    first = fingerprint(name=name, code=code, message=message)

    assert re.fullmatch("[0-9a-f]{16}", first)
    assert fingerprint(name=name, code=code, message=message) == first


@given(st.text(st.characters(), max_size=3000))
def test_folded_text_is_one_short_line(message: str) -> None:
    text = folded(message)

    assert len(text) <= MAX_FOLDED
    assert "\n" not in text


@pytest.mark.parametrize(
    "piece", ["a", "f", "1", "a@", "a.", "a@a.", "'", '"', "`", "a://", "0x", "1.1.", "-", "a-", " ", "\n", "é"]
)
def test_no_message_makes_folding_slow(piece: str) -> None:  # F72
    started = time.perf_counter()

    folded(piece * 20_000)

    assert time.perf_counter() - started < 0.5
