from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from tools.bench import table
from tools.bench.figures import Target
from tools.bench.found import figure, section, whole


def on_screen(found: dict[str, Any]) -> str:
    console = Console(file=io.StringIO(), width=200, record=True)
    console.print(table.on_screen(found))
    return console.export_text()


def test_a_figure_stands_beside_its_spread_its_target_and_the_absolute_numbers() -> None:
    met = figure(1.234, least=1.1, most=1.3, absolute="5 ms; bare 6 ms")
    found = whole() | {"sections": [section("floor", met)]}

    assert "| claim of 100 | 1.23 times | 1.1 to 1.3 | ≥ 1 | met | 5 ms; bare 6 ms |" in table.markdown(found)
    [line] = [line for line in on_screen(found).splitlines() if "claim of 100" in line]
    assert line.split() == [
        "claim",
        "of",
        "100",
        "1.23",
        "times",
        "1.1",
        "to",
        "1.3",
        "≥",
        "1",
        "met",
        "5",
        "ms;",
        "bare",
        "6",
        "ms",
    ]


def test_a_missed_target_is_said_plainly_and_counted() -> None:
    reported_only = figure(0.1, target=None)
    found = whole() | {"sections": [section("floor", figure(1), figure(0.98), reported_only)]}

    assert "| claim of 100 | 0.98 times | | ≥ 1 | **missed** | |" in table.markdown(found)
    assert "| claim of 100 | 0.1 times | | | | |" in table.markdown(found)
    for text in (table.markdown(found), on_screen(found)):
        assert text.count("missed") == 1
        assert "1 of 2 targets are met." in text


def test_without_targets_there_is_no_verdict() -> None:
    found = whole() | {"sections": [section("floor", figure(1, target=None))]}

    assert "targets" not in table.markdown(found) + on_screen(found)


def test_a_section_that_failed_says_why() -> None:
    failed = {"name": "growth", "seconds": 1.0, "failed": "ValueError: [red]"}
    found = whole() | {"sections": [section("floor", figure(1)), failed]}

    assert "FAILED: ValueError: [red]" in on_screen(found)
    assert "Floor, 60 s" in on_screen(found)


def test_the_machine_and_the_day_are_named() -> None:
    told = table.run_on(whole())

    assert told == (
        "Measured on 2031-07-01 in 540 s, at full scale: A processor, 2 cores, 23.5 GB; An OS, Python 3.11.7, "
        "pymongo 4.20.1, MongoDB 6.0.5 on the same machine."
    )
    checked_out = whole()["machine"] | {"commit": "abc+"}
    assert table.run_on(whole() | {"machine": checked_out}).endswith("same machine, commit abc+.")


def test_what_would_end_a_cell_does_not() -> None:
    found = whole() | {"sections": [section("floor", figure(1, absolute="a | b"))]}

    assert table.markdown(found).splitlines()[-3].endswith("| a \\| b |")


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (0, "0"),
        (0.06123, "0.0612"),
        (1, "1"),
        (12.345, "12.3"),
        (99.97, "100"),
        (999.6, "1,000"),
        (1234567, "1,234,567"),
    ],
)
def test_numbers_have_three_digits_or_are_whole(value: float, told: str) -> None:
    assert table.number(value) == told


def test_a_target_with_both_bounds_is_written_out() -> None:
    assert "| ≥ 2 and ≤ 3 | met |" in table.markdown(
        whole() | {"sections": [section("counts", figure(3, target=Target(at_least=2, at_most=3)))]}
    )
