"""Notes and faults of a release. tests/end_to_end/test_project.py uses the distribution."""

from __future__ import annotations

import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from tests.machine import ROOT
from tidemill import __version__
from tools.release import MAX_WHEEL_BYTES, ReleaseError, check_wheel, read_notes

CHANGELOG = """\
# Changelog

## 0.2.0, 2026-12-01

- New.

### Upgrade

- Nothing.

## 0.1.0

- First.
"""


def test_the_notes_are_the_section_of_the_version() -> None:
    assert read_notes(CHANGELOG, "0.2.0") == "- New.\n\n### Upgrade\n\n- Nothing.\n"
    assert read_notes(CHANGELOG, "0.1.0") == "- First.\n"


def test_a_version_without_notes_is_refused() -> None:
    with pytest.raises(
        ReleaseError, match=r"^CHANGELOG.md has no section for 0.3.0; write one, with the heading ## 0.3.0$"
    ):
        read_notes(CHANGELOG, "0.3.0")


def test_this_version_has_notes() -> None:
    assert read_notes((ROOT / "CHANGELOG.md").read_text(), __version__)


def pack(folder: Path, *names: str, size: int = 0) -> Path:
    path = folder / "package.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for name in names:
            wheel.writestr(name, b"x" * size)
    return path


@pytest.mark.parametrize(
    "name",
    ["tidemill/test_client.py", "tests/conftest.py", "tidemill/__pycache__/client.cpython-313.pyc", "tidemill/.env"],
)
def test_a_wheel_has_no_tests_and_no_caches(tmp_path: Path, name: str) -> None:
    with pytest.raises(ReleaseError, match="does not belong into the wheel"):
        check_wheel(pack(tmp_path, "tidemill/client.py", name))


def test_the_test_of_a_project_belongs_into_the_wheel(tmp_path: Path) -> None:
    check_wheel(pack(tmp_path, "tidemill/cli/project/tests/test_greet.py", "tidemill/testing/mongod.py"))


def test_a_large_wheel_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match=f"more than {MAX_WHEEL_BYTES}; look for large files"):
        check_wheel(pack(tmp_path, "tidemill/data", size=MAX_WHEEL_BYTES))


def test_it_publishes_nothing() -> None:
    command = ["make", "--dry-run", "--always-make", "--directory", str(ROOT), "release"]
    plan = subprocess.run(command, capture_output=True, text=True, check=True, env={"PATH": os.environ["PATH"]}).stdout

    assert "tools.release" in plan
    assert [word for word in ("upload", "git push", "git tag") if word in plan] == []
