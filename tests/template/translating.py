"""The template of this repository, as it is written and as CloudFormation sees it after SAM's transform."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from samtranslator.yaml_helper import yaml_parse

from tests.cloudformation.translating import translated

ROOT = Path(__file__).parents[2]


def written() -> dict[str, Any]:
    """Return the template as it is written."""
    parsed: dict[str, Any] = yaml_parse((ROOT / "template.yaml").read_text(encoding="utf-8"))
    return parsed


def deployed(source: dict[str, Any]) -> dict[str, Any]:
    """Return *source* as it is deployed, after the transform."""
    return translated(source, location="s3://a-bucket-of-code")
