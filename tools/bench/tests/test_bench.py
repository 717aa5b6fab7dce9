from __future__ import annotations

import importlib
import json
from pathlib import Path

import psutil
import pytest

from tests.waiting import eventually
from tidemill.testing import Mongod
from tidemill.testing.mongod import TEST_URI
from tools.bench.__main__ import SECTIONS, bench, main
from tools.bench.broken import LEFT


def left_behind() -> list[psutil.Process]:
    return [one for one in psutil.process_iter(["cmdline", "status"]) if one.info["cmdline"] == LEFT]


def test_a_section_whose_process_dies_says_so_and_the_others_go_on(
    mongod: Mongod, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(TEST_URI, mongod.uri)

    status = bench(["broken", "not_there", "archive"], "toy", tmp_path)

    told = capfd.readouterr()
    found = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))
    died, missing, good = found["sections"]
    assert status == 1
    assert (died["name"], died["failed"]) == ("broken", "its process ended with 3")
    assert missing["failed"] == "ModuleNotFoundError: No module named 'tools.bench.not_there'"
    assert (good["name"], len(good["figures"]), "failed" in good) == ("archive", 2, False)
    assert found["machine"].keys() >= {"cpu", "cores", "memory_gb", "os", "python", "pymongo", "mongodb", "date"}
    assert "tidemill: measuring archive, 3 of 3" in told.err
    assert eventually(lambda: not left_behind())
    assert "FAILED: its process ended with 3" in told.out
    assert "move 20 failed tasks" in told.out


@pytest.mark.parametrize("arguments", [["--only", "grwth"], ["--fast"], ["--only"]])
def test_a_bad_argument_gets_one_sentence(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)

    told = capsys.readouterr()
    assert (ended.value.code, told.out, told.err.count("\n")) == (2, "", 1)
    assert told.err.startswith("tidemill: ")


def test_every_section_there_is_belongs_to_the_bench() -> None:
    modules = [one.stem for one in Path(__file__).parents[1].glob("[a-z]*.py")]
    measuring = {one for one in modules if hasattr(importlib.import_module(f"tools.bench.{one}"), "measure")}

    assert measuring - {"broken"} == set(SECTIONS)
