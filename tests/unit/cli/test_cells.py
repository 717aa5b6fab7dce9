"""Text is as wide as the cells it takes, not as its characters are many."""

from __future__ import annotations

import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from tidemill.cli.output import measure_width, pad, shorten, wrap

TEXTS = st.text(alphabet="ab -é名前ｱ한😀\u0301")


@given(TEXTS)
def test_a_text_is_as_wide_as_rich_takes_it_to_be(text: str) -> None:
    assert measure_width(text) == cell_len(text)


@given(TEXTS, st.integers(min_value=12, max_value=40))
def test_what_is_shortened_fits_and_what_fits_stays(text: str, limit: int) -> None:
    short = shorten(text, limit)

    assert measure_width(short) <= limit
    assert (short == text) == (measure_width(text) <= limit)


@given(TEXTS, st.integers(min_value=8, max_value=40))
def test_wrapped_lines_fit_and_lose_nothing(text: str, limit: int) -> None:
    lines = wrap(text, limit=limit, first="- ", rest="  ").split("\n")

    assert max(map(measure_width, lines)) <= limit
    assert "".join(line[2:] for line in lines).replace(" ", "") == text.replace(" ", "")


@given(st.text(alphabet="abc  -"), st.integers(min_value=8, max_value=40))
def test_where_each_character_takes_a_cell_lines_are_those_of_the_standard_library(text: str, limit: int) -> None:
    plain = f"a {' '.join(text.split())}".strip()
    expected = textwrap.fill(plain, limit, initial_indent="> ", subsequent_indent="  ", break_on_hyphens=False)

    assert wrap(plain, limit=limit, first="> ", rest="  ").splitlines() == [
        line.rstrip() for line in expected.splitlines()
    ]


@pytest.mark.parametrize(("text", "filled"), [("", "   |"), ("ab", "ab |"), ("名", "名 |"), ("abcd", "abcd|")])
def test_what_is_padded_takes_as_many_cells(text: str, filled: str) -> None:
    assert pad(text, 3) + "|" == filled
