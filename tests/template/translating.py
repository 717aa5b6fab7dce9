"""The template as CloudFormation sees it after SAM's transform, without a network."""

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


def written() -> dict[str, Any]:
    """Return the template as it is written."""
    parsed: dict[str, Any] = yaml_parse((ROOT / "template.yaml").read_text(encoding="utf-8"))
    return parsed


def translated(source: dict[str, Any]) -> dict[str, Any]:
    """Return *source* after the transform, as if its code had been uploaded."""
    uploaded = copy.deepcopy(source)
    for resource in uploaded["Resources"].values():
        for location in {"CodeUri", "ContentUri"} & resource.get("Properties", {}).keys():
            resource["Properties"][location] = "s3://a-bucket-of-code/archive.zip"
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWS_DEFAULT_REGION", "eu-central-1")
        found: dict[str, Any] = transform(uploaded, {}, NoManagedPolicies())
    return found
