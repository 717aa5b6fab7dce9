"""The HTTP side of `tidemill dev`: events, refusals, responses and pages, with a stand-in for the handler."""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from http.client import HTTPConnection
from importlib import resources
from typing import Any

import pytest
from aws_lambda_powertools.event_handler.openapi import swagger_ui
from samtranslator.yaml_helper import yaml_parse
from werkzeug.test import Client, TestResponse

from demo import ROOT
from demo.functions import Event, event
from tidemill.dev import responses
from tidemill.dev.event import key_id
from tidemill.dev.gateway import Gateway
from tidemill.dev.server import HEADERS_AS_SENT, MAX_BODY_BYTES, listen, serve

KEY = {"x-api-key": "secret-of-orders"}
DOCUMENT: Mapping[str, Any] = {
    "info": {"title": "</script><b>"},
    "paths": {
        "/tasks/{task_id}": {"get": {}, "delete": {}},
        "/tasks": {"post": {}},
        "/tasks/batch": {"post": {}},
    },
}
BUNDLE = (resources.files(swagger_ui) / "swagger-ui-bundle.min.js").read_text(encoding="utf-8")


@dataclass(kw_only=True)
class Front:
    """The gateway in front of a handler that notes its events and returns, or raises, what it is told to."""

    returned: Any = field(default_factory=lambda: {"statusCode": 200, "body": "{}"})
    events: list[Event] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    @property
    def gateway(self) -> Gateway:
        return Gateway(self._handle, DOCUMENT, say=self.said.append)

    @property
    def client(self) -> Client:
        return Client(self.gateway)

    def _handle(self, given: Event, _: object) -> Any:
        self.events.append(given)
        if isinstance(self.returned, Exception):
            raise self.returned
        return self.returned


def event_of(path: str = "/v1/tasks", *, method: str = "POST", **request: Any) -> Event:
    front = Front()
    got = front.client.open(path, method=method, **{"headers": KEY} | request)
    assert got.status_code == 200, got.text
    [made] = front.events
    return made


def code(got: TestResponse) -> str:
    body = json.loads(got.text)
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"code", "message", "details"}
    return str(body["error"]["code"])


def test_a_request_arrives_as_a_real_event() -> None:
    real = event("enqueue_noop")
    sent = {name: value for name, value in real["headers"].items() if not name.startswith("X-")}

    made = event_of(
        data=real["body"].encode(),
        environ_overrides={HEADERS_AS_SENT: list(sent.items()), "REMOTE_ADDR": "203.0.113.10"},
    )

    for found, own in ((made, real), (made["requestContext"], real["requestContext"])):
        assert found.keys() == own.keys()
    for name in ("requestTime", "requestTimeEpoch", "requestId"):
        assert type(made["requestContext"][name]) is type(real["requestContext"].pop(name))
        del made["requestContext"][name]
    trace = made["headers"].pop("X-Amzn-Trace-Id")
    assert len(trace) == len(real["headers"].pop("X-Amzn-Trace-Id"))
    assert made["multiValueHeaders"].pop("X-Amzn-Trace-Id") == [trace]
    del real["multiValueHeaders"]["X-Amzn-Trace-Id"]
    key = made["requestContext"]["identity"]["apiKey"]
    real["requestContext"]["identity"]["apiKeyId"] = key_id(key)
    assert made == real


def test_two_requests_have_ids_of_their_own() -> None:
    assert event_of()["requestContext"]["requestId"] != event_of()["requestContext"]["requestId"]


def test_the_id_of_a_key_is_not_the_key_and_differs_from_key_to_key() -> None:
    made = event_of()

    assert made["requestContext"]["identity"]["apiKeyId"] == key_id("secret-of-orders") != key_id("secret-of-eu")
    assert "secret" not in key_id("secret-of-orders")


def test_of_a_repeated_header_all_values_arrive_and_the_last_is_the_single_one() -> None:
    sent = [("x-API-key", "a"), ("Idempotency-Key", "one"), ("Accept", "*/*"), ("Idempotency-Key", "two")]

    made = event_of(environ_overrides={HEADERS_AS_SENT: [*sent, ("X-Api-Key", "b")]})

    assert made["multiValueHeaders"]["Idempotency-Key"] == ["one", "two"]
    assert made["headers"]["Idempotency-Key"] == "two"
    assert made["headers"]["Accept"] == "*/*"
    assert (made["headers"]["x-API-key"], made["headers"]["X-Api-Key"]) == ("a", "b")
    assert made["requestContext"]["identity"]["apiKey"] == "b"


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
    made = event_of(f"/v1/tasks?{query}")

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
    made = event_of(data=sent)

    assert (made["body"], made["isBase64Encoded"]) == (arrives, is_base64)


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        ("/v1/tasks/a%2Fb?c=d%2F", "/tasks/a%2Fb", {"c": "d/"}),
        ("http://127.0.0.1:8000/v1/tasks/1?x", "/tasks/1", {"x": ""}),
        ("//v1/tasks/1", "/tasks/1", None),
        ("/v1/tasks/%C3%B6", "/tasks/%C3%B6", None),
    ],
)
def test_a_path_arrives_as_it_was_sent(target: str, path: str, query: object) -> None:
    made = event_of(method="GET", environ_overrides={"REQUEST_URI": target})

    assert (made["path"], made["queryStringParameters"]) == (path, query)
    assert made["requestContext"]["path"] == f"/v1{path}"
    assert made["pathParameters"] == {"task_id": path.rpartition("/")[2]}


@pytest.mark.parametrize(
    ("method", "path", "found"),
    [
        ("POST", "/v1/tasks", ("/tasks", None)),
        ("POST", "/v1/tasks/batch", ("/tasks/batch", None)),
        ("GET", "/v1/tasks/a%2Fb", ("/tasks/{task_id}", {"task_id": "a%2Fb"})),
        ("DELETE", "/v1/tasks/1", ("/tasks/{task_id}", {"task_id": "1"})),
        *[("GET", path, None) for path in ("/v1/tasks", "/v1/tasks/batch", "/v1/tasks/", "/v1/tasks/1/2", "/v1")],
        *[("POST", path, None) for path in ("/tasks", "/v12/tasks", "/v1/v1/tasks", "/openapi.json")],
        *[(method, "/v1/tasks/1", None) for method in ("PUT", "HEAD", "POST", "delete")],
    ],
)
def test_only_paths_and_methods_of_the_document_reach_the_handler(
    method: str, path: str, found: tuple[str, Any] | None
) -> None:
    front = Front()

    got = front.client.open(path, method=method, headers=KEY, environ_overrides={"REQUEST_METHOD": method})

    assert [(made["resource"], made["pathParameters"]) for made in front.events] == ([found] if found else [])
    assert got.status_code == (200 if found else 404)
    assert found or method == "HEAD" or code(got) == "not_found"


@pytest.mark.parametrize("headers", [{}, {"x-api-key": ""}])
def test_a_request_without_a_key_is_refused(headers: Mapping[str, str]) -> None:
    front = Front()

    got = front.client.post("/v1/tasks", headers=headers)

    assert (got.status, code(got)) == ("403 Forbidden", "forbidden")
    assert got.headers["Content-Type"] == "application/json"
    assert front.events == []


@pytest.mark.parametrize(
    "given",
    [
        {"CONTENT_LENGTH": "-1"},
        {"CONTENT_LENGTH": "ten"},
        {"CONTENT_LENGTH": "1²"},
        {"CONTENT_LENGTH": "3"},  # of which two come
        {"HTTP_TRANSFER_ENCODING": "chunked"},
    ],
)
def test_a_body_of_unknown_length_is_refused(given: Mapping[str, str]) -> None:
    front = Front()

    got = front.client.post("/v1/tasks", headers=KEY, data=b"{}", environ_overrides=given)

    assert (got.status, code(got)) == ("400 Bad Request", "request_refused")
    assert front.events == []


def test_an_answer_has_all_its_headers_and_its_text() -> None:
    headers = {"Location": "/v1/tasks/1", "x-both": "single"}
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
    [
        RuntimeError("no"),
        None,
        {},
        {"statusCode": "x"},
        {"statusCode": 200, "body": "%", "isBase64Encoded": True},
        {"statusCode": 200, "headers": {"X-A": "a\r\nX-B: b"}},
    ],
)
def test_a_handler_that_fails_is_answered_for(returned: object) -> None:
    front = Front(returned=returned)

    got = front.client.post("/v1/tasks", headers=KEY)

    assert (got.status_code, code(got)) == (502, "internal")
    assert got.headers["Retry-After"] == "1"
    assert front.said[0].startswith("the handler failed: ")


def test_the_gateway_refuses_in_the_words_of_the_template() -> None:
    template = yaml_parse((ROOT / "template.yaml").read_text())["Resources"]["Api"]["Properties"]["GatewayResponses"]

    for name, refusal in {
        "INVALID_API_KEY": responses.NO_KEY,
        "MISSING_AUTHENTICATION_TOKEN": responses.NO_ROUTE,
        "REQUEST_TOO_LARGE": responses.TOO_LARGE,
        "DEFAULT_5XX": responses.HANDLER_FAILED,
    }.items():
        assert refusal.json == json.loads(template[name]["ResponseTemplates"]["application/json"])
        assert refusal.status_code == template[name].get("StatusCode", refusal.status_code)


def test_a_request_is_a_line_which_holds_no_key_and_cannot_break_out() -> None:
    front = Front()

    front.client.get("/v1/tasks/1", headers=KEY)
    front.client.post("/", environ_overrides={"REQUEST_URI": "/\x1b[2J\n" + "a" * 200})

    first, second = (line.rsplit("  ", 1)[0] for line in front.said)
    assert first == "GET /v1/tasks/1  200"
    assert second == f"POST /?[2J?{'a' * 109}  404"


def test_the_document_and_its_page_need_no_key() -> None:
    client = Front().client

    page = client.get("/")

    assert json.loads(client.get("/openapi.json").text) == DOCUMENT
    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    assert '"title": "<\\/script><b>"' in page.text
    assert "<title>&lt;/script&gt;&lt;b&gt;</title>" in page.text
    assert 'pathname + "openapi.json"' in page.text
    assert "<script src" not in page.text
    assert BUNDLE in page.text  # character by character: code does not bear what text does
    assert "</script" not in BUNDLE.lower()
    assert client.head("/").data == b""


@pytest.fixture
def front() -> Front:
    return Front()


@pytest.fixture
def port(front: Front, capfd: pytest.CaptureFixture[str]) -> Iterator[int]:
    """The port of a server that writes nothing by itself."""
    with listen(host="127.0.0.1", port=0) as listener, serve(listener, front.gateway):
        yield listener.getsockname()[1]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("size", [MAX_BODY_BYTES, MAX_BODY_BYTES + 1, 5 * MAX_BODY_BYTES])
def test_a_caller_hears_that_a_body_is_larger_than_10_mb(port: int, size: int) -> None:
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("POST", "/v1/tasks", bytes(size), KEY)

    with connection.getresponse() as got:
        assert got.status == (413 if size > MAX_BODY_BYTES else 200)
        assert b"too_large" in got.read() or size == MAX_BODY_BYTES
    connection.close()


def test_bytes_that_are_not_ascii_arrive_as_they_were_sent(front: Front, port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as caller:
        caller.sendall(b"GET /v1/tasks/\xff HTTP/1.1\r\nx-api-key: \xe4\r\n\r\n")
        assert caller.recv(15) == b"HTTP/1.1 200 OK"

    [made] = front.events
    assert (made["path"], made["headers"]["x-api-key"]) == ("/tasks/ÿ", "ä")


SLOW = {
    "nothing": b"",
    "half a line": b"GET /v1/ta",
    "headers without end": b"GET / HTTP/1.1\r\nHost: a\r\nX-A: ",
    "half a body": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4000000\r\n\r\n{",
}


@pytest.mark.parametrize("sent", SLOW.values(), ids=SLOW)
def test_a_caller_that_sends_half_a_request_delays_no_other_caller(port: int, sent: bytes) -> None:
    with ExitStack() as slow:
        for _ in range(40):
            slow.enter_context(socket.create_connection(("127.0.0.1", port))).sendall(sent)
        connection = HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("GET", "/openapi.json")

        assert connection.getresponse().status == 200
        connection.close()


@pytest.mark.parametrize("sent", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\r\n\r\n", b"GET http://[ HTTP/1.1\r\n\r\n"])
def test_a_caller_that_does_not_wait_for_its_answer_is_no_error(port: int, sent: bytes) -> None:
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", port)) as caller:
            caller.sendall(sent)
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # closes with a reset
    connection = HTTPConnection("127.0.0.1", port, timeout=5)
    connection.request("GET", "/openapi.json")
    assert connection.getresponse().status == 200
    connection.close()
