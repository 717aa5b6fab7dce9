"""What the Serverless Application Repository is told, within its limits."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import tidemill


@pytest.fixture
def told(source: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = source["Metadata"]["AWS::ServerlessRepo::Application"]
    return found


def test_the_version_and_the_licence_are_those_of_the_package(told: dict[str, Any], root: Path) -> None:
    project = tomllib.loads((root / "layers/core/pyproject.toml").read_text())["project"]

    assert (told["SemanticVersion"], told["SpdxLicenseId"]) == (tidemill.__version__, project["license"])
    assert re.fullmatch(r"\d+\.\d+\.\d+", told["SemanticVersion"])


def test_its_files_are_there(told: dict[str, Any], root: Path) -> None:
    for file in (told["LicenseUrl"], told["ReadmeUrl"]):
        assert 0 < (root / file).stat().st_size < 5_000_000


def test_its_words_are_within_the_limits(told: dict[str, Any]) -> None:
    assert re.fullmatch(r"[a-zA-Z0-9-]{1,140}", told["Name"])
    assert re.fullmatch(r"[a-z0-9](([a-z0-9]|-(?!-))*[a-z0-9])?", told["Author"])
    assert 1 <= len(told["Description"]) <= 256
    assert 1 <= len(told["Labels"]) <= 10
    assert all(re.fullmatch(r"[a-zA-Z0-9+\-_:/@]{1,127}", label) for label in told["Labels"])
