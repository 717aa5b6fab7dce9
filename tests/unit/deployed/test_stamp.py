"""The stamp tells whether what is deployed is what `make deployed` was last green with."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools.deployed.stamp import STAMP, compute_stamp, find_problem, read_stamp, write_stamp


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A clone with a stamp that is right."""
    for name in ("template.yaml", "functions/execute/app.py", "layers/core/tidemill/model.py", STAMP, "README.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / ".gitignore").write_text("__pycache__/\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    write_stamp(tmp_path, compute_stamp(tmp_path))
    return tmp_path


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@example.com", *arguments], cwd=folder, check=True)


@pytest.mark.parametrize("name", ["template.yaml", "functions/execute/app.py", "layers/core/tidemill/model.py"])
def test_a_change_of_what_is_deployed_asks_for_a_deployment(repository: Path, name: str) -> None:
    (repository / name).write_text("changed")

    problem = find_problem(repository)

    assert problem is not None
    assert f"{STAMP} is out of date" in problem
    assert "Run `make deployed` on a machine with Python 3.13" in problem


@pytest.mark.parametrize("name", ["README.md", "layers/core/__pycache__/model.pyc", STAMP])
def test_what_is_not_deployed_asks_for_nothing(repository: Path, name: str) -> None:
    text = f"# another comment\n{read_stamp(repository)}\n" if name == STAMP else "changed"
    (repository / name).parent.mkdir(exist_ok=True)
    (repository / name).write_text(text)

    assert find_problem(repository) is None


def test_a_file_that_comes_or_goes_or_is_renamed_asks_for_a_deployment(repository: Path) -> None:
    stamps = [compute_stamp(repository)]
    (repository / "layers/core/tidemill/new.py").write_text("")
    stamps.append(compute_stamp(repository))
    (repository / "layers/core/tidemill/new.py").rename(repository / "layers/core/tidemill/other.py")
    stamps.append(compute_stamp(repository))
    (repository / "layers/core/tidemill/model.py").unlink()
    stamps.append(compute_stamp(repository))

    assert len(set(stamps)) == len(stamps)


def test_committing_changes_nothing(repository: Path) -> None:
    (repository / "functions/execute/app.py").write_text("changed")
    (repository / "functions/new.py").write_text("new")
    before = compute_stamp(repository)

    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "--message", "Change it")

    assert compute_stamp(repository) == before


def test_writing_tells_whether_there_is_something_to_commit(repository: Path) -> None:
    stamp = compute_stamp(repository)

    assert not write_stamp(repository, stamp)
    assert write_stamp(repository, "0" * 64)
    assert read_stamp(repository) == "0" * 64


def test_a_missing_stamp_is_out_of_date(repository: Path) -> None:
    (repository / STAMP).unlink()

    assert read_stamp(repository) is None
    assert find_problem(repository) is not None
