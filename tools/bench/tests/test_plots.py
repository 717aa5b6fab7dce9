from __future__ import annotations

import json
import re
from pathlib import Path

from tools.bench import plots
from tools.bench.found import whole


def words(svg: Path) -> list[str]:
    """What is written in it: letters are shapes, and a comment before them says which."""
    return re.findall("<!-- (.+) -->", svg.read_text(encoding="utf-8"))


def test_the_json_alone_makes_three_plots_and_always_the_same_bytes(tmp_path: Path) -> None:
    source, again = tmp_path / "bench.json", tmp_path / "again"
    again.mkdir()
    source.write_text(json.dumps(whole()), encoding="utf-8")

    plots.main([str(source)])
    plots.main([str(source), str(again)])

    drawn = sorted(tmp_path.glob("*.svg"))
    assert [one.name for one in drawn] == ["backlog.svg", "claimers.svg", "recent.svg"]
    assert [one.read_bytes() for one in drawn] == [(again / one.name).read_bytes() for one in drawn]


def test_a_plot_names_what_it_shows_its_units_and_its_lines(tmp_path: Path) -> None:
    plots.draw(whole(), tmp_path)

    assert {
        "Claim time against backlog", "pending tasks", "1 k", "1 M", "a claim of 100, ms",
        "pending alone", "beside 1 M finished", "1.5 times the smallest",
    } <= set(words(tmp_path / "backlog.svg"))  # fmt: skip
    assert {"claimers on one queue", "tasks a second, all together", "1", "2", "4", "one claimer"} <= set(
        words(tmp_path / "claimers.svg")
    )
    assert {"tasks claimed in the minute before", "300 k"} <= set(words(tmp_path / "recent.svg"))


def test_what_was_not_measured_is_not_drawn(tmp_path: Path) -> None:
    found = whole()
    del found["sections"][0]["series"]["recent"]
    failed = {"name": "growth", "seconds": 1.0, "failed": "ValueError: no"}

    drawn = plots.draw(found | {"sections": [failed, *found["sections"]]}, tmp_path)

    assert [one.name for one in drawn] == ["claimers.svg", "backlog.svg"]
