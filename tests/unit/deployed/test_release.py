"""The release before the working tree is the last commit that would deploy something else."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tools.deployed.release import find_release_before


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@example.com", *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def commit(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", text)
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """An empty repository."""
    folder = tmp_path / "origin"
    folder.mkdir()
    git(folder, "init", "--quiet")
    return folder


def find(folder: Path) -> str | None:
    release = find_release_before(folder)
    return None if release is None else release.commit


def test_it_is_the_parent_of_the_last_commit_that_changed_what_is_deployed(repository: Path) -> None:
    commit(repository, "template.yaml", "first")
    before = commit(repository, "README.md", "words")
    commit(repository, "template.yaml", "second")
    commit(repository, "README.md", "other words")

    assert find(repository) == before


def test_it_is_the_last_commit_where_the_working_tree_deploys_something_else(repository: Path) -> None:
    commit(repository, "template.yaml", "first")
    last = commit(repository, "README.md", "words")
    (repository / "template.yaml").write_text("second")

    assert find(repository) == last


def test_a_first_commit_and_a_shallow_clone_have_none(repository: Path, tmp_path: Path) -> None:
    commit(repository, "template.yaml", "first")
    assert find(repository) is None

    commit(repository, "template.yaml", "second")
    git(tmp_path, "clone", "--quiet", "--depth", "1", repository.as_uri(), "shallow")
    assert find(tmp_path / "shallow") is None
