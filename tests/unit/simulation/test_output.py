"""What the simulations print."""

from __future__ import annotations

import json
from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from typing import Any

import pytest

from tidemill.cli import main

pytestmark = pytest.mark.slow

SIMULATIONS = ["retry-priority", "starvation"]


def printed(*arguments: str) -> str:
    with redirect_stdout(StringIO()) as out:
        assert main(["simulate", *arguments]) == 0
    return out.getvalue()


text = cache(printed)
"""What was printed once, since a simulation takes its time."""


def data(simulation: str) -> Any:
    return json.loads(text(simulation, "--json"))


@pytest.mark.parametrize("simulation", SIMULATIONS)
def test_the_text_fits_a_code_block_and_any_terminal(simulation: str) -> None:
    said = text(simulation)

    assert said.isascii()
    assert said.endswith("\n")
    assert all(len(line) <= 100 and line == line.rstrip() for line in said.splitlines())


@pytest.mark.parametrize("simulation", SIMULATIONS)
def test_the_text_is_the_same_every_time_whatever_the_terminal(
    simulation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = text(simulation)
    for name, value in {"COLUMNS": "40", "FORCE_COLOR": "1", "TERM": "xterm-256color"}.items():
        monkeypatch.setenv(name, value)

    assert printed(simulation) == before


def test_both_timelines_the_time_saved_and_the_estimate_are_told() -> None:
    lines = text("retry-priority").splitlines()

    assert " 182 s - 212 s  A-q1 retry       | 182 s - 212 s  B-q3" in lines
    assert "  32 s -  62 s  A-q2             |  32 s -  62 s  A-q1 retry" in lines
    assert "Time saved by priority: 150 s." in lines
    assert " Tidemill does not wait | at 180 s      | at 60 s    | 120 s | 4 x 30 s / 1 = 120 s" in lines


def test_starvation_ends_with_what_the_data_say() -> None:
    found = data("starvation")
    pool, fresh, contrast = text("starvation").splitlines()[-3:]

    assert pool.endswith(f"was empty after {found['weighted']['pool_empty_after_sec']:.1f} s.")
    assert f"never fell below {found['weighted']['least_fresh_per_sec']:.1f}/s" in fresh
    assert contrast.endswith(f"falls to {found['retries_first']['least_fresh_per_sec']:.1f}/s.")


def test_json_gives_spans_in_seconds() -> None:
    waiting = data("retry-priority")["waiting"]

    assert (waiting["time_saved_sec"], waiting["estimate_sec"], waiting["ahead"]) == (150, 150, 5)
    assert [step["starts_sec"] for step in waiting["without"]["steps"]] == [0, 32, 62, 92, 122, 152, 182]


def test_json_gives_every_interval() -> None:
    intervals = data("starvation")["weighted"]["intervals"]

    assert [one["ends_sec"] for one in intervals] == [10.0 * n for n in range(1, 23)]
