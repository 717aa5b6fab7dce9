"""The template as written, and as CloudFormation sees it after SAM's transform; both without a network."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from samtranslator.translator.transform import transform
from samtranslator.yaml_helper import yaml_parse

ROOT = Path(__file__).parents[2]


class NoManagedPolicies:
    """Stands in for the IAM client that would list the managed policies by name; we use none by name."""

    def load(self) -> dict[str, str]:
        return {}


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def source() -> dict[str, Any]:
    """The template as it is written."""
    parsed: dict[str, Any] = yaml_parse((ROOT / "template.yaml").read_text())
    return parsed


@pytest.fixture(scope="session")
def template(source: dict[str, Any]) -> dict[str, Any]:
    """The template after the transform, as if its code had been uploaded."""
    uploaded = copy.deepcopy(source)
    for resource in uploaded["Resources"].values():
        for location in {"CodeUri", "ContentUri"} & resource.get("Properties", {}).keys():
            resource["Properties"][location] = "s3://a-bucket-of-code/archive.zip"
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWS_DEFAULT_REGION", "eu-central-1")
        translated: dict[str, Any] = transform(uploaded, {}, NoManagedPolicies())
    return translated


@pytest.fixture(scope="session")
def parameters(template: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = template["Parameters"]
    return found


@pytest.fixture(scope="session")
def resources(template: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = template["Resources"]
    return found
