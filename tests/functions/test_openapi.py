"""The OpenAPI document: it validates, says of each operation what a caller has to know, and its examples work."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate
from samtranslator.yaml_helper import yaml_parse

from demo import openapi_words
from demo.openapi import document
from tests.functions import calls
from tests.functions.conftest import Deployed

ROOT = Path(__file__).parents[2]
DOCUMENT = document(calls.app("enqueue").app)
OPERATIONS = {
    operation["operationId"]: operation for methods in DOCUMENT["paths"].values() for operation in methods.values()
}
JSON = "application/json"
EXAMPLES = [
    (name, example["value"])
    for name, operation in OPERATIONS.items()
    if "requestBody" in operation
    for example in operation["requestBody"]["content"][JSON]["examples"].values()
]


ANSWERS = [
    pytest.param(status, answer, id=f"{name}-{status}")
    for name, operation in OPERATIONS.items()
    for status, answer in operation["responses"].items()
]


def schema(reference: dict[str, Any]) -> Draft202012Validator:
    """What checks against a schema of the document."""
    return Draft202012Validator(reference | {"components": DOCUMENT["components"]})


def test_it_is_a_valid_document() -> None:
    validate(DOCUMENT)


def test_it_has_the_routes_of_the_template() -> None:
    resources = yaml_parse((ROOT / "template.yaml").read_text())["Resources"]
    events = [one["Properties"] for one in resources["EnqueueFunction"]["Properties"]["Events"].values()]
    deployed = {(one["Method"].lower(), re.sub(r"\{\w+\}", "{}", one["Path"])) for one in events if "Path" in one}

    shown = {(method, path) for path, methods in DOCUMENT["paths"].items() for method in methods}

    assert {(method, re.sub(r"\{\w+\}", "{}", path)) for method, path in shown} == deployed


@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operation_is_described(name: str) -> None:
    operation = OPERATIONS[name]

    assert operation["summary"] != operation["description"]
    assert operation["tags"] == ["Tasks"]
    assert all(one["description"] for one in operation.get("parameters", []))
    assert operation["responses"].keys() >= {"200", "403", "429", "503", "5XX"}


def test_a_key_is_asked_for_as_a_header() -> None:
    [key] = OPERATIONS["enqueue"]["parameters"]

    assert (key["name"], key["in"], key["required"]) == ("Idempotency-Key", "header", False)
    assert key["schema"]["type"] == "string"
    assert DOCUMENT["security"] == [{"ApiKey": []}]
    assert DOCUMENT["components"]["securitySchemes"]["ApiKey"]["name"] == "x-api-key"


@pytest.mark.parametrize(("status", "answer"), ANSWERS)
def test_each_answer_has_an_example_of_its_shape(status: str, answer: dict[str, Any]) -> None:
    content = answer["content"][JSON]

    assert answer["description"]
    assert list(schema(content["schema"]).iter_errors(content["example"])) == []
    assert content["schema"]["$ref"].endswith("/ErrorAnswer") != status.startswith("2")
    assert ("Retry-After" in answer.get("headers", {})) == (status in {"429", "503"})


def test_no_shape_of_errors_is_left_that_is_never_answered() -> None:
    text = json.dumps(DOCUMENT)

    assert "ValidationError" not in text
    assert text.count("#/components/schemas/ErrorAnswer") > 20


@pytest.mark.parametrize(("name", "body"), EXAMPLES)
def test_each_example_of_a_body_fits_its_schema_and_is_taken(
    name: str, body: dict[str, Any], deployed: Deployed
) -> None:
    path = next(path for path, methods in DOCUMENT["paths"].items() if OPERATIONS[name] in methods.values())
    content = OPERATIONS[name]["requestBody"]["content"][JSON]

    assert list(schema(content["schema"]).iter_errors(body)) == []
    assert deployed.post(body, path=path).status == 202


def test_the_examples_of_bodies_are_all_shown() -> None:
    assert openapi_words.BODIES.keys() == {name for name, _ in EXAMPLES}


def test_it_is_written_without_any_setting(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "demo.openapi"]
    run = subprocess.run(
        command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=60, check=True
    )

    assert json.loads((tmp_path / run.stdout.strip()).read_text()) == DOCUMENT
