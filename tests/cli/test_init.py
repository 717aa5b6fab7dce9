"""`tidemill init`: what it prints, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import CommandLine
from tidemill import __version__
from tidemill.cli.projects import RECORD, compute_hash

REQUIREMENTS = "core/requirements.txt"


@pytest.fixture
def folder(tidemill: CommandLine, tmp_path: Path) -> Path:
    """A project."""
    tidemill.done("init", str(tmp_path / "orders"))
    return tmp_path / "orders"


def age(folder: Path, path: str, text: str) -> None:
    """Let an older version have written *text* at *path* of the project."""
    (folder / path).write_text(text)
    record = json.loads((folder / RECORD).read_text())
    record["version"] = "0.0.9"
    record["files"][path] = compute_hash(text)
    (folder / RECORD).write_text(json.dumps(record))


def test_a_new_project_has_all_files_and_the_installed_version(tidemill: CommandLine, tmp_path: Path) -> None:
    said = tidemill.done("init", str(tmp_path / "orders"))

    written = [path for path in (tmp_path / "orders").rglob("*") if path.is_file() and path.name != RECORD]
    assert said.lines[-1] == (
        f"{len(written)} files written, of tidemill {__version__}; README.md has the next commands"
    )
    assert sorted(f"created   {path.relative_to(tmp_path / 'orders')}" for path in written) == sorted(said.lines[:-1])
    names = {path.relative_to(tmp_path / "orders").as_posix() for path in written}
    assert names > {".gitignore", "README.md", "template.yaml", "tasks/greet.py", "tests/test_greet.py", REQUIREMENTS}
    assert f"tidemill[lambda]=={__version__}\n" in (tmp_path / "orders" / REQUIREMENTS).read_text()
    assert "{{" not in "".join(path.read_text() for path in written)


def test_without_a_folder_it_is_the_current_one(
    tidemill: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    tidemill.done("init")

    assert (tmp_path / "template.yaml").is_file()


def test_a_dry_run_writes_nothing(tidemill: CommandLine, tmp_path: Path) -> None:
    said = tidemill.done("init", str(tmp_path / "orders"), "--dry-run")

    assert said.lines[0] == "created   .gitignore"
    assert said.lines[-1].endswith(f" files would be written, of tidemill {__version__}; nothing was changed")
    assert not (tmp_path / "orders").exists()


def test_a_template_of_another_application_is_kept_and_a_folder_is_suggested(
    tidemill: CommandLine, tmp_path: Path
) -> None:
    (tmp_path / "template.yaml").write_text("Resources: {}\n")

    said = tidemill("init", str(tmp_path))

    assert "kept      template.yaml: it was there before" in said.lines
    assert said.err == (
        f"tidemill: {tmp_path / 'template.yaml'} was there before, so this project has no template of Tidemill; "
        "give it a folder of its own: tidemill init tidemill\n"
    )
    assert (tmp_path / "template.yaml").read_text() == "Resources: {}\n"


def test_an_upgrade_of_an_older_project_says_what_it_did(tidemill: CommandLine, folder: Path) -> None:
    age(folder, REQUIREMENTS, "tidemill[lambda]==0.0.9\n")
    age(folder, "samconfig.toml", "version = 0.0\n")
    (folder / "samconfig.toml").write_text("version = 0.0\nmine = true\n")
    age(folder, "core/Makefile", "all:\n")
    (folder / "core/Makefile").unlink()

    said = tidemill.done("init", str(folder), "--upgrade")

    beside = f"samconfig.toml.tidemill-{__version__}"
    assert said.lines == [
        "left out  core/Makefile: you deleted it",
        f"updated   {REQUIREMENTS}",
        f"offered   {beside}: you changed samconfig.toml: merge the two by hand",
        f"2 files written, of tidemill {__version__}",
    ]
    assert f"tidemill[lambda]=={__version__}\n" in (folder / REQUIREMENTS).read_text()
    assert "mine = true" in (folder / "samconfig.toml").read_text()
    assert (folder / beside).is_file()


def test_a_dry_run_of_an_upgrade_shows_the_difference(tidemill: CommandLine, folder: Path) -> None:
    age(folder, REQUIREMENTS, "tidemill[lambda]==0.0.9\n  old  one\x1b[2J\tx\n")

    said = tidemill.done("init", str(folder), "--upgrade", "--dry-run")

    assert said.lines[:3] == [f"updated   {REQUIREMENTS}", f"--- {REQUIREMENTS}", f"+++ {REQUIREMENTS}"]
    assert {"-tidemill[lambda]==0.0.9", f"+tidemill[lambda]=={__version__}", "-  old  one\\x1b[2J x"} <= set(said.lines)
    assert said.lines[-1] == f"1 file would be written, of tidemill {__version__}; nothing was changed"
    assert (folder / REQUIREMENTS).read_text().startswith("tidemill[lambda]==0.0.9\n")


def test_an_upgrade_to_the_same_version_has_nothing_to_do(tidemill: CommandLine, folder: Path) -> None:
    assert tidemill.done("init", str(folder), "--upgrade").lines == [
        f"this is a project of tidemill {__version__}; nothing to do"
    ]


def test_an_empty_name_is_not_the_current_folder(tidemill: CommandLine) -> None:
    said = tidemill("init", "")

    assert said.status == 2
    assert "tidemill: [DIR]: must name a folder\n" in said.err


def test_what_is_refused_is_said_in_a_sentence(tidemill: CommandLine, folder: Path, tmp_path: Path) -> None:
    assert tidemill.refused("init", str(folder)).endswith("`tidemill init --upgrade` brings it up to date")
    assert tidemill.refused("init", str(tmp_path), "--upgrade").endswith("`tidemill init` writes one")
    assert tidemill.refused("init", str(folder / "README.md")).endswith("is a file; name a folder, which may be new")
