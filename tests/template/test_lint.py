"""cfn-lint finds nothing in the template, before and after the transform."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cfnlint.api import lint_file
from cfnlint.config import ManualArgs

WHAT_SAM_WRITES = ["W3005"]  # a DependsOn that a Ref implies, on the API key and its plan


def test_the_source_is_clean(root: Path) -> None:
    assert lint_file(root / "template.yaml") == []


def test_the_translated_template_is_clean_and_has_no_circle(template: dict[str, Any], tmp_path: Path) -> None:
    translated = tmp_path / "translated.json"
    translated.write_text(json.dumps(template))

    assert lint_file(translated, config=ManualArgs(ignore_checks=WHAT_SAM_WRITES)) == []


def test_a_circle_would_be_found(template: dict[str, Any], tmp_path: Path) -> None:
    circular = json.loads(json.dumps(template))
    circular["Resources"]["ReclaimFunctionRole"]["DependsOn"] = "ExecuteFunction"
    path = tmp_path / "circular.json"
    path.write_text(json.dumps(circular))

    assert "E3004" in {match.rule.id for match in lint_file(path)}
