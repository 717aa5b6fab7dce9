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

from tasks.deliver_webhook import Webhook
from tests.handlers import calls
from tests.handlers.conftest import Deployed
from tidemill.enqueue.rules import MIN_HTTP_BASE_SEC
from tidemill.http.models import CODES
from tidemill.model import RetryPolicy
from tidemill.policy.retry import PRESETS
from tools.openapi import document

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
    key, *_ = OPERATIONS["enqueue"]["parameters"]

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


@pytest.mark.parametrize("name", OPERATIONS)
def test_each_refusal_names_the_codes_it_may_have(name: str) -> None:
    every = DOCUMENT["components"]["schemas"]["ErrorBody"]["properties"]["code"]["enum"]

    refusals = {status: one for status, one in OPERATIONS[name]["responses"].items() if status >= "4"}
    for status, answer in refusals.items():
        shown = answer["content"][JSON]["example"]["error"]["code"]
        named = set(re.findall(r"`(\w+)`: ", answer["description"]))
        assert named == CODES[int(status.replace("XX", "00"))].keys()
        assert named <= set(every)
        assert shown in named


def test_these_are_the_codes_there_are() -> None:
    package = ROOT / "layers/core/tidemill"
    files = [package / "handlers/enqueue.py", *(package / "http").glob("*.py")]
    raised = {one for file in files for one in re.findall(r'HttpError\((\d+), "(\w+)"', file.read_text())}
    raised -= {("400", "invalid_event")}  # nothing that comes through the REST API is answered with it
    responses = yaml_parse((ROOT / "template.yaml").read_text())["Resources"]["Api"]["Properties"]["GatewayResponses"]
    of_the_gateway = set(re.findall(r'"code": "(\w+)"', json.dumps(responses).replace("\\", "")))

    ours = {(str(status), code) for status, codes in CODES.items() for code in codes}

    assert raised <= ours
    assert of_the_gateway <= {code for _, code in ours}
    assert {code for _, code in ours} == {code for _, code in raised} | of_the_gateway


@pytest.mark.parametrize("name", ["getTask", "cancelTask"])
def test_what_takes_no_key_does_not_speak_of_one(name: str) -> None:
    refusals = {status: one for status, one in OPERATIONS[name]["responses"].items() if status >= "4"}

    assert "key" not in " ".join(one["description"] for status, one in refusals.items() if status not in {"403", "404"})
    assert "stored" not in json.dumps(refusals)
    assert refusals["422"]["content"][JSON]["example"]["error"]["details"][0]["field"] == "query"


@pytest.mark.parametrize("name", ["enqueue", "enqueueBatch"])
def test_the_headers_that_are_kept_are_told_of(name: str) -> None:
    headers = {one["name"] for one in OPERATIONS[name]["parameters"] if one["in"] == "header"}

    assert headers >= {"X-Correlation-Id", "X-Request-Id", "traceparent"}


def test_limits_that_a_schema_cannot_say_are_in_words() -> None:
    schemas = DOCUMENT["components"]["schemas"]
    task = schemas["HttpTask"]["properties"]

    assert f"at least {MIN_HTTP_BASE_SEC:g}" in schemas["RetryOptions"]["properties"]["base_sec"]["description"]
    assert "MAX_TASK_TIMEOUT_SEC" in task["timeout_sec"]["description"]
    assert "http=True" in task["name"]["description"]
    assert "printable" in schemas["HttpBatchTask"]["properties"]["idempotency_key"]["description"]
    assert "printable" in OPERATIONS["enqueue"]["parameters"][0]["description"]
    assert "standalone" in OPERATIONS["enqueueBatch"]["responses"]["409"]["description"]


@pytest.mark.parametrize(("name", "policy"), PRESETS.items())
def test_each_preset_is_told_in_numbers(name: str, policy: RetryPolicy) -> None:
    [row] = [line for line in DOCUMENT["info"]["description"].splitlines() if line.startswith(f"| `{name}` ")]

    told = [cell.strip() for cell in row.strip("|").split("|")]

    assert told[1:3] == [str(policy.max_retries), policy.backoff.strategy]
    assert [float(one) for one in told[3:6]] == [policy.backoff.base_sec, policy.backoff.factor, policy.backoff.max_sec]
    assert told[6] == policy.backoff.jitter


def test_the_payload_of_a_webhook_is_told() -> None:
    for name in Webhook.model_fields:
        assert f"* `{name}`" in DOCUMENT["info"]["description"]
    assert (
        DOCUMENT["components"]["schemas"]["DeliverWebhookPayload"]["properties"].keys() == Webhook.model_fields.keys()
    )


@pytest.mark.parametrize("name", ["getTask", "cancelTask"])
def test_an_id_has_a_pattern(name: str) -> None:
    [parameter] = OPERATIONS[name]["parameters"]
    validator = Draft202012Validator(parameter["schema"])

    assert [one for one in ("68a5f0c2e4b0a1d2c3f4a5b6", "68A5", "x" * 24, "") if validator.is_valid(one)] == [
        "68a5f0c2e4b0a1d2c3f4a5b6"
    ]


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


def test_it_is_written_without_any_setting(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tools.openapi"]
    paths = {"PYTHONPATH": f"{ROOT}:{ROOT / 'layers' / 'core'}:{ROOT / 'layers' / 'tasks'}"}
    run = subprocess.run(command, cwd=tmp_path, env=paths, capture_output=True, text=True, timeout=60, check=True)

    assert json.loads((tmp_path / run.stdout.strip()).read_text()) == DOCUMENT
