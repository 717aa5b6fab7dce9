from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tools.bench import plots, publishing
from tools.bench.found import whole
from tools.pages import BENCHMARKS, make_marks, read_section

BEGIN, END = make_marks(publishing.COMMAND)
MARKED = f"before\n{BEGIN}\nold\n{END}\nafter\n"


def test_the_page_has_what_was_published() -> None:
    page = BENCHMARKS.read_text(encoding="utf-8")
    found = json.loads((publishing.PUBLISHED / publishing.FOUND).read_text(encoding="utf-8"))

    assert read_section(page, command=publishing.COMMAND) == publishing.rendered(found), "run: make figures"


@pytest.mark.parametrize("name", plots.PLOTS)
def test_the_page_shows_a_plot_that_is_there(name: str) -> None:
    assert f"({name}.svg)" in BENCHMARKS.read_text(encoding="utf-8")
    assert (BENCHMARKS.parent / f"{name}.svg").is_file()


def test_publishing_keeps_what_was_found_its_plots_and_the_rest_of_the_page(tmp_path: Path) -> None:
    page, folder = tmp_path / "benchmarks.md", tmp_path / "published"
    page.write_text(MARKED, encoding="utf-8")

    publishing.publish(whole(), to=folder, page=page)

    assert page.read_text(encoding="utf-8") == MARKED.replace("old", publishing.rendered(whole()))
    assert json.loads((folder / "bench.json").read_text(encoding="utf-8")) == whole()
    assert sorted(plot.name for plot in tmp_path.glob("*.svg")) == ["backlog.svg", "claimers.svg", "recent.svg"]


@pytest.mark.parametrize(
    "change",
    [
        {"scale": "quick"},
        {"sections": whole()["sections"][1:]},
        {"sections": [*whole()["sections"][:-1], {"name": "archive", "seconds": 1.0, "failed": "ValueError: no"}]},
    ],
)
def test_what_is_not_the_whole_is_not_published(tmp_path: Path, change: dict[str, Any]) -> None:
    page, folder = tmp_path / "benchmarks.md", tmp_path / "published"
    page.write_text(MARKED, encoding="utf-8")

    with pytest.raises(ValueError, match="run `make bench` without ARGS"):
        publishing.publish(whole() | change, to=folder, page=page)

    assert (page.read_text(encoding="utf-8"), folder.exists()) == (MARKED, False)


@pytest.mark.parametrize("text", [BEGIN, END, MARKED + MARKED])
def test_a_page_without_its_two_marks_is_left_alone(tmp_path: Path, text: str) -> None:
    page, folder = tmp_path / "benchmarks.md", tmp_path / "published"
    page.write_text(text, encoding="utf-8")

    with pytest.raises(ValueError, match="must have one"):
        publishing.publish(whole(), to=folder, page=page)

    assert (page.read_text(encoding="utf-8"), folder.exists()) == (text, False)
