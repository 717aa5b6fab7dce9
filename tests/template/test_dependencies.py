"""What is installed is what was pinned: every version, and every file by its hash."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.machine import ROOT

LOCKS = sorted([*ROOT.glob("requirements/*.txt"), *ROOT.glob("layers/*/requirements.txt")])
INSTALLING = [ROOT / "Makefile", ROOT / ".ci/run", *ROOT.glob("requirements/*.sh"), *ROOT.glob("layers/*/Makefile")]
PINNED = re.compile(
    r"[a-z0-9-]+(\[[a-z0-9,-]+\])?==[0-9][0-9A-Za-z.+-]*( ; [^\\\n]+)?( \\\n    --hash=sha256:[0-9a-f]{64})+"
)
HASHED = "--require-hashes"
OUR_OWN = "--no-build-isolation --no-deps -e layers/core"
"""The package of this repository: it takes nothing from anywhere."""


def entries(lock: Path) -> Iterator[str]:
    """Each requirement with the lines that go on from it, comments left out."""
    lines = [line for line in lock.read_text().splitlines() if line.strip() and not line.lstrip().startswith("#")]
    yield from re.split(r"\n(?=\S)", "\n".join(lines)) if lines else ()


def installs(path: Path) -> Iterator[str]:
    """Each command that installs something, on one line."""
    text = path.read_text().replace("\\\n", " ")
    yield from (line for line in text.splitlines() if re.search(r"pip[\w.]* (install|download|sync)", line))


def test_every_lock_is_looked_at() -> None:
    assert {path.relative_to(ROOT).as_posix() for path in LOCKS} >= {
        "layers/core/requirements.txt",
        "layers/tasks/requirements.txt",
        "requirements/demo.txt",
        "requirements/deployed-source.txt",
        "requirements/deployed.txt",
        "requirements/dev.txt",
        "requirements/lock.txt",
        "requirements/runtime.txt",
        "requirements/sam.txt",
    }


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.relative_to(ROOT).as_posix())
def test_every_requirement_is_pinned_with_hashes_and_names_no_host(lock: Path) -> None:
    loose = [entry for entry in entries(lock) if not PINNED.fullmatch(entry)]

    assert loose == []
    assert not re.search(r"https?://|git\+|--(extra-)?index-url|--find-links|--trusted-host", lock.read_text())


def test_no_package_is_installed_but_by_its_hash() -> None:
    commands = [(path.name, line) for path in INSTALLING for line in installs(path)]
    loose = [(name, line) for name, line in commands if HASHED not in line and OUR_OWN not in line]

    assert len(commands) >= 5
    assert loose == []


@pytest.mark.parametrize(
    "entry", ["rich", "rich>=13", "rich==13.0", "rich @ https://a.example/rich.whl", "-r other.txt", "--no-index"]
)
def test_what_is_not_pinned_would_be_found(entry: str) -> None:
    assert not PINNED.fullmatch(entry)
