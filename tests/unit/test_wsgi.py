"""HTTP to API Gateway's event and back, as `make serve` translates: without a socket, a handler or a database."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import resources
from typing import Any

import pytest
from aws_lambda_powertools.event_handler.openapi import swagger_ui
from samtranslator.yaml_helper import yaml_parse
from werkzeug.test import Client

from demo import ROOT
from demo.functions import Event, event
from demo.serve import answer
from demo.serve.event import gateway_event, key_id
from demo.serve.gateway import Gateway
from demo.serve.http import MAX_BODY_BYTES, RAW_HEADERS, RAW_TARGET, HttpRequest, received
from demo.serve.routes import Route, Routes

KEY = {"x-api-key": "secret-of-orders"}
DOCUMENT: Mapping[str, Any] = {
    "info": {"title": "</script><b>"},
    "paths": {
        "/tasks/{task_id}": {"get": {}, "delete": {}},
        "/tasks": {"post": {}},
        "/tasks/batch": {"post": {}},
    },
}
ROUTE = Route(resource="/tasks", parameters={})
BUNDLE = (resources.files(swagger_ui) / "swagger-ui-bundle.min.js").read_text(encoding="utf-8")
NOW = datetime(2026, 7, 1, 9, 0, tzinfo=UTC)
REQUEST_ID = "7b0e9d52-6c1f-4a38-b2d7-5e4f3a2b1c0d"


@dataclass(kw_only=True)
class Front:
    """The gateway in front of a handler that notes its events and answers what it is told to."""

    returned: Any = field(default_factory=lambda: {"statusCode": 200, "body": "{}"})
    events: list[Event] = field(default_factory=list)
    wakes: int = 0
    said: list[str] = field(default_factory=list)

    def handler(self, given: Event, _: object) -> Any:
        self.events.append(given)
        if isinstance(self.returned, Exception):
            raise self.returned
        return self.returned

    def wake(self) -> None:
        self.wakes += 1

    @property
    def client(self) -> Client:
        return Client(Gateway(self.handler, DOCUMENT, accepted=self.wake, say=self.said.append))

    @property
    def event(self) -> Event:
        [one] = self.events
        return one


def translated(**request: Any) -> Event:
    given = HttpRequest(**{"method": "POST", "path": "/tasks"} | request)
    return gateway_event(given, ROUTE, api_key="secret-of-orders", request_id=REQUEST_ID, now=NOW)


def environ(**changes: Any) -> dict[str, Any]:
    usual = {"REQUEST_METHOD": "POST", "PATH_INFO": "/v1/tasks", "QUERY_STRING": "", "wsgi.input": io.BytesIO()}
    return usual | changes


def code(text: str) -> str:
    body = json.loads(text)
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"code", "message", "details"}
    return str(body["error"]["code"])


def test_an_event_has_the_fields_of_a_real_one() -> None:
    real = event("enqueue_noop")

    made = translated(headers=[("User-Agent", "orders/1.4")], address="203.0.113.10", body=b"{}")

    assert made.keys() == real.keys()
    assert made["requestContext"].keys() == real["requestContext"].keys()
    assert made["requestContext"]["identity"].keys() == real["requestContext"]["identity"].keys()
    assert {type(value) for value in made["requestContext"].values()} == {str, int, dict}
    for name in ("path", "stage", "protocol", "resourcePath", "httpMethod"):
        assert made["requestContext"][name] == real["requestContext"][name]
    assert made["requestContext"]["requestTime"] == "01/Jul/2026:09:00:00 +0000"
    assert made["headers"].keys() >= {"X-Amzn-Trace-Id", "X-Forwarded-For", "X-Forwarded-Port", "X-Forwarded-Proto"}


def test_of_a_repeated_header_all_values_arrive_and_the_last_is_the_single_one() -> None:
    made = translated(headers=[("Idempotency-Key", "one"), ("Accept", "*/*"), ("Idempotency-Key", "two")])

    assert made["multiValueHeaders"]["Idempotency-Key"] == ["one", "two"]
    assert made["headers"]["Idempotency-Key"] == "two"
    assert made["headers"]["Accept"] == "*/*"


@pytest.mark.parametrize(
    ("query", "single", "many"),
    [
        ("", None, None),
        ("a=1", {"a": "1"}, {"a": ["1"]}),
        ("a=1&b=2&a=3", {"a": "3", "b": "2"}, {"a": ["1", "3"], "b": ["2"]}),
        ("a=&b", {"a": "", "b": ""}, {"a": [""], "b": [""]}),
        ("a%20b=c%26d+e", {"a b": "c&d e"}, {"a b": ["c&d e"]}),
        ("a=%ff", {"a": "\ufffd"}, {"a": ["\ufffd"]}),
    ],
)
def test_query_strings_arrive_decoded(query: str, single: object, many: object) -> None:
    made = translated(query=query)

    assert made["queryStringParameters"] == single
    assert made["multiValueQueryStringParameters"] == many


@pytest.mark.parametrize(
    ("sent", "arrives", "is_base64"),
    [
        (b"", None, False),
        (b'{"a": 1}', '{"a": 1}', False),
        ("\ufeffä\x00".encode(), "\ufeffä\x00", False),
        (b"\xff\xfe", base64.b64encode(b"\xff\xfe").decode(), True),
    ],
)
def test_a_body_arrives_as_text_or_else_in_base64(sent: bytes, arrives: str | None, *, is_base64: bool) -> None:
    made = translated(body=sent)

    assert (made["body"], made["isBase64Encoded"]) == (arrives, is_base64)


def test_the_id_of_a_key_is_not_the_key_and_differs_from_key_to_key() -> None:
    made = translated()

    assert made["requestContext"]["identity"]["apiKeyId"] == key_id("secret-of-orders") != key_id("secret-of-eu")
    assert "secret" not in key_id("secret-of-orders")


@pytest.mark.parametrize(
    ("given", "path", "query"),
    [
        ({RAW_TARGET: "/v1/tasks/a%2Fb?c=d%2F"}, "/v1/tasks/a%2Fb", "c=d%2F"),
        ({RAW_TARGET: "http://127.0.0.1:8000/v1/tasks?x"}, "/v1/tasks", "x"),
        ({RAW_TARGET: "//evil/v1/tasks"}, "/evil/v1/tasks", ""),
        ({"PATH_INFO": "/v1/tasks/ö".encode().decode("latin-1"), "QUERY_STRING": "a=b"}, "/v1/tasks/%C3%B6", "a=b"),
    ],
)
def test_a_path_is_taken_as_it_was_sent(given: Mapping[str, Any], path: str, query: str) -> None:
    found = received(environ(**given))

    assert (found.path, found.query) == (path, query)


def test_headers_are_taken_as_they_were_sent_where_the_server_says_so() -> None:
    sent = [("x-API-key", "a"), ("X-Api-Key", "b")]

    assert received(environ(**{RAW_HEADERS: sent, "HTTP_X_API_KEY": "a,b"})).headers == tuple(sent)
    assert received(environ(HTTP_X_API_KEY="a,b", CONTENT_TYPE="text/plain")).headers == (
        ("X-Api-Key", "a,b"),
        ("Content-Type", "text/plain"),
    )


@pytest.mark.parametrize(
    ("method", "path", "found"),
    [
        ("POST", "/tasks", ("/tasks", {})),
        ("POST", "/tasks/batch", ("/tasks/batch", {})),
        ("GET", "/tasks/a%2Fb", ("/tasks/{task_id}", {"task_id": "a%2Fb"})),
        ("DELETE", "/tasks/1", ("/tasks/{task_id}", {"task_id": "1"})),
        ("GET", "/tasks", None),
        ("GET", "/tasks/batch", None),
        ("GET", "/tasks/", None),
        ("GET", "/tasks/1/2", None),
        ("PUT", "/tasks/1", None),
        ("GET", "/tasks/1\n", ("/tasks/{task_id}", {"task_id": "1\n"})),
        ("GET", "", None),
    ],
)
def test_what_is_in_the_document_is_let_through(method: str, path: str, found: tuple[str, Any] | None) -> None:
    route = Routes(DOCUMENT).find(method, path)

    assert (None if route is None else (route.resource, route.parameters)) == found


def test_the_handler_is_called_with_the_path_below_the_stage() -> None:
    front = Front()

    got = front.client.get("/v1/tasks/a%2Fb?c=d", headers=KEY)

    assert got.status_code == 200
    assert front.event["path"] == "/tasks/a%2Fb"
    assert front.event["requestContext"]["path"] == "/v1/tasks/a%2Fb"
    assert front.event["pathParameters"] == {"task_id": "a%2Fb"}
    assert front.event["resource"] == "/tasks/{task_id}"
    assert front.event["queryStringParameters"] == {"c": "d"}


@pytest.mark.parametrize(
    ("method", "path", "headers", "status", "reason"),
    [
        ("POST", "/v1/tasks", {}, 403, "forbidden"),
        ("POST", "/v1/tasks", {"x-api-key": ""}, 403, "forbidden"),
        ("PUT", "/v1/tasks", KEY, 404, "not_found"),
        ("POST", "/tasks", KEY, 404, "not_found"),
        ("POST", "/v12/tasks", KEY, 404, "not_found"),
        ("GET", "/v1/nothing", {}, 404, "not_found"),
        ("POST", "/openapi.json", KEY, 404, "not_found"),
    ],
)
def test_what_the_gateway_refuses_never_reaches_the_handler(
    method: str, path: str, headers: Mapping[str, str], status: int, reason: str
) -> None:
    front = Front()

    got = front.client.open(path, method=method, headers=headers)

    assert (got.status_code, code(got.text)) == (status, reason)
    assert got.headers["Content-Type"] == "application/json"
    assert front.events == []


def test_a_body_is_at_most_10_mb_and_what_is_larger_is_read_all_the_same() -> None:
    front = Front()
    body = io.BytesIO(bytes(MAX_BODY_BYTES + 1))

    got = front.client.post("/v1/tasks", headers=KEY, input_stream=body, content_length=MAX_BODY_BYTES + 1)

    assert (got.status_code, code(got.text)) == (413, "too_large")
    assert body.read() == b""
    assert front.events == []


@pytest.mark.parametrize(
    "given",
    [
        {"CONTENT_LENGTH": "-1"},
        {"CONTENT_LENGTH": "ten"},
        {"CONTENT_LENGTH": "1²"},
        {"HTTP_TRANSFER_ENCODING": "chunked"},
    ],
)
def test_a_body_of_unknown_length_is_refused(given: Mapping[str, str]) -> None:
    front = Front()
    statuses: list[str] = []

    [body] = Gateway(front.handler, DOCUMENT)(environ(**given), lambda status, _: statuses.append(status))

    assert (statuses, code(body.decode())) == (["400 Bad Request"], "request_refused")


def test_an_answer_has_all_its_headers_and_its_text() -> None:
    headers = {"Location": "/v1/tasks/1", "X-Both": "single"}
    many = {"X-Both": ["one", "two"], "X-Ok": ["three"]}
    front = Front(returned={"statusCode": 202, "headers": headers, "multiValueHeaders": many, "body": '"ä"'})

    got = front.client.post("/v1/tasks", headers=KEY, data=b"{}")

    assert got.status == "202 Accepted"
    assert got.text == '"ä"'
    assert got.headers["Location"] == "/v1/tasks/1"
    assert got.headers.getlist("X-Both") == ["one", "two"]
    assert got.headers["Content-Length"] == "4"


def test_a_body_in_base64_is_answered_as_bytes() -> None:
    front = Front(returned={"statusCode": 200, "isBase64Encoded": True, "body": base64.b64encode(b"\xff").decode()})

    assert front.client.get("/v1/tasks/1", headers=KEY).data == b"\xff"


@pytest.mark.parametrize(
    "returned",
    [RuntimeError("no"), None, {}, {"statusCode": "x"}, {"statusCode": 200, "body": "%", "isBase64Encoded": True}],
)
def test_a_handler_that_fails_is_answered_for(returned: object) -> None:
    front = Front(returned=returned)

    got = front.client.post("/v1/tasks", headers=KEY)

    assert (got.status_code, code(got.text)) == (502, "internal")
    assert got.headers["Retry-After"] == "1"


def test_the_gateway_says_what_the_template_has_it_say() -> None:
    responses = yaml_parse((ROOT / "template.yaml").read_text())["Resources"]["Api"]["Properties"]["GatewayResponses"]

    for name, said in {
        "INVALID_API_KEY": answer.no_key(),
        "MISSING_AUTHENTICATION_TOKEN": answer.no_route(),
        "REQUEST_TOO_LARGE": answer.too_large(),
        "DEFAULT_5XX": answer.broken(),
    }.items():
        assert json.loads(said.body) == json.loads(responses[name]["ResponseTemplates"]["application/json"])
        assert said.status == responses[name].get("StatusCode", said.status)


@pytest.mark.parametrize(("status", "wakes"), [(202, 1), (200, 0), (422, 0)])
def test_only_a_new_task_wakes_an_executor(status: int, wakes: int) -> None:
    front = Front(returned={"statusCode": status, "body": "{}"})

    front.client.post("/v1/tasks", headers=KEY)

    assert front.wakes == wakes


def test_a_request_is_a_line_which_holds_no_key_and_cannot_break_out() -> None:
    front = Front()

    front.client.get("/v1/tasks/1", headers=KEY)
    [*Gateway(front.handler, DOCUMENT, say=front.said.append)(environ(**{RAW_TARGET: "/\x1b[2J\n"}), lambda *_: None)]

    assert [line.rsplit("  ", 1)[0] for line in front.said] == ["GET /v1/tasks/1  200", "POST /?[2J?  404"]


def test_the_document_and_its_page_need_no_key() -> None:
    front = Front()

    page = front.client.get("/")

    assert json.loads(front.client.get("/openapi.json").text) == DOCUMENT
    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    assert '"title": "<\\/script><b>"' in page.text
    assert "<title>&lt;/script&gt;&lt;b&gt;</title>" in page.text
    assert 'pathname + "openapi.json"' in page.text
    assert "<script src" not in page.text
    assert BUNDLE in page.text  # character by character: code does not bear what text does
    assert "</script" not in BUNDLE.lower()
    assert front.client.head("/").data == b""
