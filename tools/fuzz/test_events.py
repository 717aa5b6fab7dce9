"""Events of API Gateway with parts that are missing, or anything at all: the answer is never a failure."""

from __future__ import annotations

import base64
import copy
import json
from collections import Counter
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from tests.handlers.calls import request
from tidemill.testing import FakeContext
from tools.fuzz.front import CALLER, Front, as_text
from tools.fuzz.running import fuzz, seconds

TEXT = st.text(st.characters(codec=None), max_size=40)  # half surrogates, too: JSON has them
JSON: SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=10,
)
MISSING = object()

TASK = {"name": "noop", "payload": {}}
FIELDS = (
    "name", "payload", "queue", "priority", "delay_sec", "not_before", "expires_at", "retry", "max_retries",
    "timeout_sec", "idempotency_key", "tasks",
)  # fmt: skip
HEADERS = (
    "Idempotency-Key", "idempotency-KEY", "Content-Type", "Content-Encoding", "x-correlation-id", "traceparent",
    "x-api-key", "Accept", "Cookie",
)  # fmt: skip
ROUTES = (
    ("POST", "/tasks"),
    ("POST", "/tasks/batch"),
    ("GET", "/tasks/{id}"),
    ("DELETE", "/tasks/{id}"),
    ("GET", "/queues/default"),
)
PATHS = (
    "/tasks", "/tasks/", "/tasks/batch", "/tasks/{id}", "/tasks/{id}/", "/tasks/%00", "/tasks/a%2Fb", "//tasks", "",
    "/", "/v1/tasks", "/tasks?a=b", "/openapi.json", "/swagger",
)  # fmt: skip
METHODS = ("POST", "GET", "DELETE", "PUT", "PATCH", "HEAD", "OPTIONS", "post")
PARTS = (
    "resource", "headers", "multiValueHeaders", "queryStringParameters", "multiValueQueryStringParameters",
    "pathParameters", "stageVariables", "body", "isBase64Encoded", "version", "rawPath", "cookies", "raw",
)  # fmt: skip


@st.composite
def bodies(draw: DrawFn) -> str:
    """The text of a body: a task or a batch with anything in it, or any text."""
    task = TASK | draw(st.just({}) | st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=3))
    value = draw(st.sampled_from([task, {"tasks": [TASK, task]}, {"tasks": task}, [task]]) | JSON)
    return draw(st.just(json.dumps(value)) | st.just(json.dumps(value, ensure_ascii=False)) | TEXT)


@st.composite
def headers(draw: DrawFn) -> dict[str, Any]:
    """Headers, some of them known ones, with anything for a value."""
    return draw(st.dictionaries(st.sampled_from(HEADERS) | TEXT, JSON | TEXT | st.lists(TEXT), max_size=4))


@st.composite
def events(draw: DrawFn, ids: list[str]) -> dict[str, Any]:
    """An event that is HTTP's, for it has a method, a path and a context; the rest may be anything or missing."""
    route = st.sampled_from(ROUTES)
    method, path = draw(route | route | st.tuples(st.sampled_from(METHODS) | TEXT, st.sampled_from(PATHS) | TEXT))
    path = path.replace("{id}", draw(st.sampled_from(ids)))
    body = draw(bodies())
    event = copy.deepcopy(request(method, path, body=body, caller=CALLER))
    event["headers"] |= draw(st.just({}) | headers())
    event["multiValueHeaders"] |= draw(st.just({}) | headers())
    if draw(st.sampled_from([False, False, True])):
        encoded = draw(st.just(base64.b64encode(body.encode("utf-8", "surrogatepass")).decode()) | TEXT)
        event |= {"body": encoded, "isBase64Encoded": True}
    for holder, names in ((event, PARTS), (event["requestContext"], tuple(event["requestContext"]))):
        for name, value in draw(st.dictionaries(st.sampled_from(names), st.just(MISSING) | JSON, max_size=2)).items():
            holder[name] = value
            if value is MISSING:
                del holder[name]
    return event


def test_no_event_is_answered_with_a_failure(front: Front) -> None:
    seen: Counter[int] = Counter()
    front.also = ["invalid_event"]

    def body(event: dict[str, Any]) -> None:
        status, text = as_text(front.handler(event, FakeContext()))
        seen[status] += 1
        front.check(status, text)

    fuzz(body, events(front.ids), examples=60, share=1 / 5)

    print(seen)
    assert seen.keys() >= ({200, 202, 400, 404, 415, 422} if seconds() else {200, 404})
