from __future__ import annotations

import importlib
import json
import pkgutil
from pathlib import Path
from typing import Any

import pytest

from tests.alone import found_alone
from tidemill.testing import Mongod
from tidemill.testing.mongod import TEST_URI
from tools.chaos import bent, publishing, summary
from tools.chaos.__main__ import SECTIONS, chaos, main
from tools.chaos.found import Found, total
from tools.pages import CHAOS, make_marks, read_section

BEGIN, END = make_marks(publishing.COMMAND)
MARKED = f"before\n{BEGIN}\nold\n{END}\nafter\n"


def survived(**change: Any) -> dict[str, Any]:
    """What a whole run found that survived, but for *change*."""
    on = dict.fromkeys(("cores", "os", "python", "pymongo", "mongodb", "date", "commit"), "?")
    one = Found(accepted=2, done=1, dead=1).as_json()
    sections = [{"name": name, "seconds": 1.0} | one for name in SECTIONS]
    return {"machine": on, "scale": "full", "seed": 7, "seconds": 6.0, "sections": sections} | change


def test_a_broken_promise_is_told_and_is_the_exit_status(
    mongod: Mongod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(TEST_URI, mongod.uri)

    status = chaos(["bent", "not_there"], "quick", 7, tmp_path)

    told = capfd.readouterr()
    bent, missing = json.loads((tmp_path / "chaos.json").read_text(encoding="utf-8"))["sections"]
    assert status == 1
    assert (bent["lost"], bent["broken"], bent["notes"]) == (1, ["task 7 is nowhere"], ["1 s, seed 7"])
    assert missing["failed"] == "ModuleNotFoundError: No module named 'tools.chaos.not_there'"
    assert "tidemill: attacking by bent, 1 of 2, for 1 s, seed 7" in told.err
    assert "BROKEN by bent: task 7 is nowhere" in told.out
    assert "bent: ran again: 1 killed while it ran" in told.out
    assert "3 faults injected; 2 tasks accepted: 1 done, 0 cancelled, 0 dead, 0 alive, 1 lost." in told.out
    assert "NOT SURVIVED: 1 broken, 1 sections failed." in told.out


def test_a_section_that_gets_stuck_is_ended(mongod: Mongod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TEST_URI, mongod.uri)

    found = found_alone("stuck", bent.never, within_sec=0.0)

    assert found["failed"] == "it did not end within 0.0 s"


def test_only_a_run_in_which_nothing_was_lost_or_broken_or_failed_was_survived() -> None:
    assert summary.survived(survived())
    for fault in ({"lost": 1}, {"broken": ["x"]}, {"failed": "ValueError: x"}):
        sections = survived()["sections"]
        assert not summary.survived(survived(sections=[*sections[:-1], sections[-1] | fault]))


def test_what_sections_found_adds_up() -> None:
    one, other = Found(accepted=1, done=1, notes=["a"]), Found(accepted=2, dead=2, notes=["b"])
    one.faults["kills"], other.faults["kills"] = 1, 2

    whole = total([one, other])

    assert (whole.accepted, whole.done, whole.dead, whole.faults["kills"], whole.notes) == (3, 1, 2, 3, ["a", "b"])


@pytest.mark.parametrize("arguments", [["--only", "modle"], ["--fast"], ["--seed", "x"]])
def test_a_bad_argument_gets_one_sentence(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)

    told = capsys.readouterr()
    assert (ended.value.code, told.out, told.err.count("\n")) == (2, "", 1)
    assert told.err.startswith("tidemill: ")


def test_every_section_there_is_belongs_to_the_chaos() -> None:
    names = {one.name for one in pkgutil.iter_modules([str(Path(__file__).parents[1])])}
    modules = {one: importlib.import_module(f"tools.chaos.{one}") for one in names if not one.startswith("_")}

    assert {one for one, module in modules.items() if hasattr(module, "survive")} - {"bent"} == set(SECTIONS)


def test_the_page_has_what_was_published() -> None:
    told = read_section(CHAOS.read_text(encoding="utf-8"), command=publishing.COMMAND)

    assert told == publishing.published(), "run: make survival"


def test_publishing_keeps_what_was_found_and_the_rest_of_the_page(tmp_path: Path) -> None:
    page, folder = tmp_path / "chaos.md", tmp_path / "published"
    page.write_text(MARKED, encoding="utf-8")

    publishing.publish(survived(), to=folder, page=page)

    assert page.read_text(encoding="utf-8") == MARKED.replace("old", summary.markdown(survived()))
    assert json.loads((folder / "chaos.json").read_text(encoding="utf-8")) == survived()


@pytest.mark.parametrize(
    "change",
    [
        {"scale": "quick"},
        {"sections": survived()["sections"][1:]},
        {"sections": [*survived()["sections"][:-1], {"name": "security", "seconds": 1.0, "failed": "x"}]},
    ],
)
def test_what_is_not_the_whole_or_was_not_survived_is_not_published(tmp_path: Path, change: dict[str, Any]) -> None:
    page, folder = tmp_path / "chaos.md", tmp_path / "published"
    page.write_text(MARKED, encoding="utf-8")

    with pytest.raises(ValueError, match=r"run `make chaos` without ARGS|mend it first"):
        publishing.publish(survived(**change), to=folder, page=page)

    assert (page.read_text(encoding="utf-8"), folder.exists()) == (MARKED, False)


def test_the_counts_of_the_rules_are_for_a_terminal_only() -> None:
    sections = survived()["sections"]
    notes = ["rules: claim 316", "really done: claimed 5171", "cut short: claim 37", "184 examples"]
    found = survived(sections=[sections[0] | {"notes": notes}, *sections[1:]])

    assert [line for line in summary.markdown(found).splitlines() if line.startswith("- ")] == ["- model: 184 examples"]
