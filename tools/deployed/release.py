"""The release before the working tree: the last commit that deploys something else, and its build."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.deployed.processes import run_command
from tools.deployed.stamp import DEPLOYED

BUILD_WITHIN_SEC: Final = 300.0
BUILT: Final = "build/built"
"""In the sources of a release: what was built of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A commit."""

    commit: str

    @property
    def short(self) -> str:
        """Return the commit as people write it."""
        return self.commit[:7]


def find_release_before(root: Path) -> Release | None:
    """Return the last commit whose template, functions or layers are others than those of the working tree.

    That is HEAD where they have been changed since; else the parent of the last commit that changed them. ``None``
    where a shallow clone does not have it.
    """
    if _ask_git(root, "status", "--porcelain", "--", *DEPLOYED):
        return Release(commit=_ask_git(root, "rev-parse", "HEAD"))
    last = _ask_git(root, "log", "-1", "--format=%H", "--", *DEPLOYED)
    parent = _ask_git(root, "rev-parse", "--verify", "--quiet", f"{last}^", is_checked=False)
    return Release(commit=parent) if parent else None


def build_release(release: Release, root: Path, *, architecture: str, python_version: str) -> Path:
    """Build a release as its own Makefile does, and return the folder; what was built for it before is taken.

    The sources stay around the build: its template refers to the licence and the README.
    """
    folder = root / "build/deployed" / f"{release.commit}-{architecture}-{python_version}"
    if folder.exists():
        return folder / BUILT
    sources = folder.with_suffix(".sources")
    shutil.rmtree(sources, ignore_errors=True)
    sources.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", release.commit], cwd=root, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(sources, filter="data")
    sam = root / "build/sam-venv"
    command: list[str | Path] = [
        "make",
        "--silent",
        "build",
        f"ARCH={architecture}",
        f"PYTHON_VERSION={python_version}",
    ]
    # With the SAM that is there, whatever the release pins.
    command += [f"BUILD={BUILT}", f"SAM_VENV={sam}", "--old-file", sam / ".ready"]
    run_command(
        command,
        env={name: value for name, value in os.environ.items() if name not in {"MAKEFLAGS", "MAKELEVEL", "MFLAGS"}},
        cwd=sources,
        timeout_sec=BUILD_WITHIN_SEC,
    )
    sources.rename(folder)
    return folder / BUILT


def _ask_git(root: Path, *arguments: str, is_checked: bool = True) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, check=is_checked, capture_output=True, text=True)
    return done.stdout.strip()
