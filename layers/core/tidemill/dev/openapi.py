"""The OpenAPI document of the HTTP API.

The routes of `enqueue` declare their bodies and answers. This module adds the parts that all routes share, the answers
of API Gateway itself, and examples.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from aws_lambda_powertools.event_handler import APIGatewayRestResolver

from tidemill import __version__
from tidemill.dev import openapi_examples, openapi_words
from tidemill.http.openapi import describe_failure

Document: TypeAlias = dict[str, Any]

_JSON: Final = "application/json"
_ERROR: Final = {"$ref": "#/components/schemas/ErrorAnswer"}
_OF_POWERTOOLS: Final = ("HTTPValidationError", "ValidationError", "ResponseValidationError")
"""Schemas of errors that the functions never answer with: all their errors have one shape."""


def document(
    app: APIGatewayRestResolver,
    *,
    task: Mapping[str, Any] = openapi_examples.HELLO,
    notes: str = "",
    schemas: Mapping[str, Any] | None = None,
) -> Document:
    """Return the document of *app*, as plain JSON types.

    Args:
        app: The routes.
        task: The task in the examples of requests: its name and its payload.
        notes: Markdown that ends the description.
        schemas: Further schemas, by their names.
    """
    text = app.get_openapi_json_schema(
        title="Tidemill", version=__version__, description=f"{openapi_words.DESCRIPTION}{notes}"
    )
    found: Document = json.loads(text)
    bodies = openapi_examples.build_bodies(task)
    for methods in found["paths"].values():
        for operation in methods.values():
            _complete(operation, bodies)
    components = found["components"]
    for name in _OF_POWERTOOLS:
        components["schemas"].pop(name, None)
    components["schemas"] |= schemas or {}
    components["securitySchemes"] = openapi_words.SECURITY_SCHEMES
    found["security"] = [{name: []} for name in openapi_words.SECURITY_SCHEMES]
    return found | {"servers": [openapi_words.SERVER], "tags": [openapi_words.TAG]}


def _complete(operation: Document, bodies: Mapping[str, Mapping[str, Any]]) -> None:
    name, answers = operation["operationId"], operation["responses"]
    operation["tags"] = [openapi_words.TAG["name"]]
    for parameter in operation.get("parameters", []):
        _complete_parameter(parameter)
    if name in bodies:
        operation["requestBody"]["content"][_JSON]["examples"] = bodies[name]
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
