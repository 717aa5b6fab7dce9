"""Requests made from the OpenAPI document, allowed ones and others: every answer is as the document says."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Set
from dataclasses import dataclass
from typing import Any

import pytest
import schemathesis
from bson import ObjectId
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tools.fuzz.front import HEADERS, PAYLOADS, Front
from tools.fuzz.running import fuzz, seconds

CHECKS = [
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]

OPTIONS = ("not_before", "expires_at", "retry", "timeout_sec", "delay_sec", "idempotency_key")


@dataclass(frozen=True, kw_only=True)
class Fuzzed:
    """An operation, how many examples a bounded run has of it, and the statuses that a long one must have seen."""

    method: str
    path: str
    examples: int
    sees: frozenset[int]


OPERATIONS = [
    Fuzzed(method="POST", path="/tasks", examples=24, sees=frozenset({202, 400, 422})),
    Fuzzed(method="POST", path="/tasks/batch", examples=12, sees=frozenset({202, 400, 422})),
    Fuzzed(method="GET", path="/tasks/{task_id}", examples=8, sees=frozenset({200, 404})),
    Fuzzed(method="DELETE", path="/tasks/{task_id}", examples=8, sees=frozenset({200, 404})),
    Fuzzed(method="GET", path="/queues/{queue}", examples=4, sees=frozenset({200, 404})),
]


@pytest.mark.parametrize("fuzzed", OPERATIONS, ids=lambda one: f"{one.method}-{one.path}")
def test_every_answer_is_as_the_document_says(fuzzed: Fuzzed, front: Front, api: dict[str, Any]) -> None:
    schema = schemathesis.openapi.from_dict(api | {"security": []})  # keys are the gateway's, not the handler's
    schema.app = front.gateway
    operation = schema[fuzzed.path][fuzzed.method]
    allowed = operation.as_strategy(GenerationMode.POSITIVE)
    known = st.builds(
        _about_what_there_is,
        allowed,
        name=st.sampled_from(list(PAYLOADS)),
        task_id=st.sampled_from(front.ids),
        without=st.sets(st.sampled_from(OPTIONS)),
    )
    seen: Counter[int] = Counter()

    def body(case: Case[Any]) -> None:
        response = case.call(headers=HEADERS)
        seen[response.status_code] += 1
        case.validate_response(response, checks=CHECKS)
        front.check(response.status_code, response.text)

    refused = operation.as_strategy(GenerationMode.NEGATIVE)
    fuzz(body, known | known | allowed | refused, examples=fuzzed.examples, share=1 / 5)

    print(seen)
    assert seen.keys() >= (fuzzed.sees if seconds() else {min(fuzzed.sees)})


def _about_what_there_is(case: Case[Any], *, name: str, task_id: str, without: Set[str]) -> Case[Any]:
    """Have *case* ask for what is not just possible but there, and for less: hardly any name is one of a function."""
    if case.path_parameters:
        case.path_parameters = {"task_id": task_id} if "task_id" in case.path_parameters else {"queue": "default"}
    body: Any = copy.deepcopy(case.body)  # which may be drawn again
    if isinstance(body, dict):
        tasks = body["tasks"][:3] if "tasks" in body else [body]
        for task in tasks:
            task.update({"name": name, "queue": "default"} | ({"payload": PAYLOADS[name]} if PAYLOADS[name] else {}))
            for option in without & task.keys():
                del task[option]
            if "idempotency_key" in task:  # those that are drawn are few, so that nearly all would be taken
                task["idempotency_key"] = str(ObjectId())
        case.body = body | ({"tasks": tasks} if "tasks" in body else {})
    return case
