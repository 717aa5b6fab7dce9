"""cfn-lint finds nothing in the translated template. In the source `make build` looks, by `sam validate --lint`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cfnlint.api import lint, lint_file
from cfnlint.config import ManualArgs
from cfnlint.rules import RulesCollection
from cfnlint.rules.resources.CircularDependency import CircularDependency

WHAT_SAM_WRITES = ["W3005"]  # a DependsOn that a Ref implies, on the API key and its plan


def test_the_translated_template_is_clean_and_has_no_circle(template: dict[str, Any], tmp_path: Path) -> None:
    translated = tmp_path / "translated.json"
    translated.write_text(json.dumps(template))

    assert lint_file(translated, config=ManualArgs(ignore_checks=WHAT_SAM_WRITES)) == []


def test_a_circle_would_be_found(template: dict[str, Any]) -> None:
    circular = json.loads(json.dumps(template))
    circular["Resources"]["ReclaimFunctionRole"]["DependsOn"] = "ExecuteFunction"
    circles = RulesCollection()
    circles.register(CircularDependency())

    assert {match.rule.id for match in lint(json.dumps(circular), rules=circles)} == {"E3004"}
