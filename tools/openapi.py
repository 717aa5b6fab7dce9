"""The OpenAPI document of the HTTP API: for `make openapi`, for the page of `make serve`, and for the tests.

The routes of `enqueue` declare their bodies and answers. This module adds what is the same for all routes, the answers
of API Gateway itself, and examples.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, TypeAlias

from aws_lambda_powertools.event_handler import APIGatewayRestResolver

from tasks.deliver_webhook import Webhook
from tidemill.http.openapi import describe_failure
from tools import openapi_examples, openapi_words

Document: TypeAlias = dict[str, Any]

PATH: Final = Path("build", "openapi.json")

_JSON: Final = "application/json"
_ERROR: Final = {"$ref": "#/components/schemas/ErrorAnswer"}
_OF_POWERTOOLS: Final = ("HTTPValidationError", "ValidationError", "ResponseValidationError")
"""Schemas of errors that the functions never answer with: all their errors have one shape."""


def document(app: APIGatewayRestResolver) -> Document:
    """Return the document of *app*, as plain JSON types."""
    text = app.get_openapi_json_schema(
        title="Tidemill", version=version("tidemill"), description=openapi_words.DESCRIPTION
    )
    found: Document = json.loads(text)
    for methods in found["paths"].values():
        for operation in methods.values():
            _complete(operation)
    components = found["components"]
    for name in _OF_POWERTOOLS:
        components["schemas"].pop(name, None)
    webhook = Webhook.model_json_schema(ref_template="#/components/schemas/{model}")
    components["schemas"] |= webhook.pop("$defs", {}) | {"DeliverWebhookPayload": webhook}
    components["securitySchemes"] = openapi_words.SECURITY_SCHEMES
    found["security"] = [{name: []} for name in openapi_words.SECURITY_SCHEMES]
    return found | {"servers": [openapi_words.SERVER], "tags": [openapi_words.TAG]}


def _complete(operation: Document) -> None:
    name, answers = operation["operationId"], operation["responses"]
    operation["tags"] = [openapi_words.TAG["name"]]
    for parameter in operation.get("parameters", []):
        _complete_parameter(parameter)
    if name in openapi_examples.BODIES:
        operation["requestBody"]["content"][_JSON]["examples"] = openapi_examples.BODIES[name]
        operation["parameters"] = [*operation.get("parameters", []), *openapi_words.TRACE_HEADERS]
    answers.pop("500")  # Powertools' own, of an answer that does not fit its model
    answers["5XX"] = {"description": describe_failure(name), "content": {_JSON: {"schema": _ERROR}}}
    for status, answer in answers.items():
        answer["content"][_JSON]["example"] = openapi_examples.example(name, status)
    operation["responses"] = dict(sorted(answers.items()))


def _complete_parameter(parameter: Document) -> None:
    if parameter["in"] == "path":
        is_task = parameter["name"] == "task_id"
        parameter["example"] = openapi_examples.TASK_ID if is_task else "default"
        if is_task:
            parameter["schema"]["pattern"] = openapi_words.ID_PATTERN
        return
    # The name as people write it; without null, since a header has none.
    schema = parameter["schema"]
    [text] = [option for option in schema.pop("anyOf") if option["type"] != "null"]
    parameter |= {"name": schema["title"], "description": openapi_words.KEY, "schema": schema | text}


def main() -> int:
    """Write the document below the working directory, and print where."""
    from tidemill.handlers import enqueue  # noqa: PLC0415 - `make serve` imports it later, with its environment

    PATH.parent.mkdir(exist_ok=True)
    PATH.write_text(json.dumps(document(enqueue.app), indent=2) + "\n", encoding="utf-8")
    print(PATH)
    return 0


if __name__ == "__main__":
    sys.exit(main())
