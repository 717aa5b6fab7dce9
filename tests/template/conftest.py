"""The template as written, as CloudFormation sees it after SAM's transform, and as a stack with chosen parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.template.deployment import Deploy, deployer
from tests.template.translating import ROOT, deployed, written


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def source() -> dict[str, Any]:
    """The template as it is written."""
    return written()


@pytest.fixture(scope="session")
def template(source: dict[str, Any]) -> dict[str, Any]:
    """The template after the transform."""
    return deployed(source)


@pytest.fixture(scope="session")
def parameters(template: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = template["Parameters"]
    return found


@pytest.fixture(scope="session")
def resources(template: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = template["Resources"]
    return found


@pytest.fixture(scope="session")
def deploy(template: dict[str, Any]) -> Deploy:
    return deployer(template)
