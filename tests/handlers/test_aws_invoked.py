"""Asking a function through AWS: what it answers, and one sentence for everything that keeps it from answering."""

from __future__ import annotations

import io
import json
from typing import Any

import boto3
import pytest
from botocore.exceptions import BotoCoreError
from botocore.response import StreamingBody
from botocore.stub import Stubber

from tests.handlers import wire
from tests.handlers.lambda_api import ARN, lambda_server, replace_lambda_client
from tidemill.aws.lambda_functions import InvokeError, invoke_function, operator_client

NAME = "tidemill-OperateFunction-Zx4Qw8Er2Ty6"
EVENT = {"op": "queue.list"}
SECRET = "S3cr3t"


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, SECRET)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)  # it keeps the credentials it has found


@pytest.fixture
def lambda_api(monkeypatch: pytest.MonkeyPatch) -> Stubber:
    """What Lambda answers to the one call that is made."""
    client = operator_client(None)
    replace_lambda_client(monkeypatch, lambda: client)
    stubber = Stubber(client)
    stubber.activate()
    return stubber


def answers(lambda_api: Stubber, content: bytes, **more: Any) -> None:
    body = StreamingBody(io.BytesIO(content), len(content))
    asked = {"FunctionName": NAME, "Payload": json.dumps(EVENT).encode()}
    lambda_api.add_response("invoke", {"StatusCode": 200, "Payload": body, **more}, asked)


def sentence(function: str = NAME, **options: Any) -> str:
    with pytest.raises(InvokeError) as refused:
        invoke_function(function, EVENT, **options)
    assert SECRET not in str(refused.value)
    assert refused.value.__suppress_context__ or refused.value.__context__ is None
    return str(refused.value)


@pytest.mark.parametrize("answer", [{"queues": []}, {"error": {"code": "unavailable"}}, [], None, "x"])
def test_what_the_function_returns_is_returned(lambda_api: Stubber, answer: Any) -> None:
    answers(lambda_api, json.dumps(answer).encode())

    assert invoke_function(NAME, EVENT) == answer


@pytest.mark.parametrize("content", [b"", b"\xff", b"{"])
def test_what_is_no_json_is_nothing(lambda_api: Stubber, content: bytes) -> None:
    answers(lambda_api, content)

    assert invoke_function(NAME, EVENT) is None


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        ({"errorType": "Sandbox.Timedout", "errorMessage": SECRET}, "Sandbox.Timedout"),
        ({"errorType": "ImportError", "errorMessage": SECRET, "stackTrace": [SECRET]}, "ImportError"),
        ({"errorMessage": SECRET}, "for no reason it could give"),
        ({"errorType": f"a {SECRET}"}, "for no reason it could give"),
        ([SECRET], "for no reason it could give"),
    ],
)
def test_a_function_that_failed_is_told_by_the_kind_of_its_failure(
    lambda_api: Stubber, content: Any, kind: str
) -> None:
    answers(lambda_api, json.dumps(content).encode(), FunctionError="Unhandled")

    assert sentence() == f"{NAME} failed ({kind}): its log says why"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("ResourceNotFoundException", f"there is no function {NAME} in this account and region"),
        ("AccessDeniedException", f"these AWS credentials may not invoke {NAME} (lambda:InvokeFunction)"),
        ("ExpiredTokenException", "AWS does not take these credentials (ExpiredTokenException): log in again"),
        (
            "UnrecognizedClientException",
            "AWS does not take these credentials (UnrecognizedClientException): log in again",
        ),
        ("TooManyRequestsException", f"AWS did not invoke {NAME} (TooManyRequestsException)"),
    ],
)  # fmt: skip
def test_what_lambda_refuses_is_told_by_its_reason(lambda_api: Stubber, code: str, expected: str) -> None:
    lambda_api.add_client_error("invoke", code, service_message=SECRET)

    assert sentence() == expected


def test_without_a_region_it_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_DEFAULT_REGION", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)

    to_do = "set AWS_DEFAULT_REGION, or give the ARN of the function"
    assert sentence() == f"AWS needs a region (NoRegionError): {to_do}"
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu central")
    assert sentence() == f"AWS needs a region (InvalidRegionError): {to_do}"


def test_an_arn_names_its_region(monkeypatch: pytest.MonkeyPatch) -> None:
    regions: list[str | None] = []

    class StoppedError(BotoCoreError):
        fmt = "stopped"

    def make_client(_: str, *, region_name: str | None, **__: Any) -> None:
        regions.append(region_name)
        raise StoppedError

    with monkeypatch.context() as stopped:
        stopped.setattr(boto3, "client", make_client)
        said = [sentence(function) for function in (ARN, f"{ARN}:live", NAME)]
    assert said == ["AWS was not reached (StoppedError)"] * 3
    assert regions == ["eu-central-1", "eu-central-1", None]
    assert operator_client("us-east-2").meta.region_name == "us-east-2"


def test_without_credentials_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)

    assert sentence() == "there are no AWS credentials (NoCredentialsError): log in, or set AWS_PROFILE"


def test_a_profile_that_is_not_there_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")

    assert sentence() == "there is no such AWS profile: see AWS_PROFILE"


@pytest.mark.parametrize(
    "function", ["", " ", "a b", "operate?", "x" * 200, "arn:aws:lambda:eu-central-1:1:function:x"]
)
def test_what_is_no_name_of_a_function_is_a_sentence(function: str) -> None:
    with wire.nobody() as address, pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWS_ENDPOINT_URL_LAMBDA", f"http://{address}")

        assert sentence(function)


def test_a_port_that_refuses_is_told_without_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    with wire.nobody() as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", f"http://{address}")

        assert sentence() == "AWS was not reached (EndpointConnectionError)"


def test_an_endpoint_that_is_no_url_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", SECRET)

    assert sentence() == "AWS was not reached (ValueError)"


def test_a_function_that_does_not_answer_may_have_done_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with wire.silence() as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", f"http://{address}")

        assert sentence(timeout_sec=0.2) == f"{NAME} did not answer within 0.2 s; it may have done what was asked"


def test_nothing_is_asked_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    with lambda_server(500) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", server.url)

        assert sentence() == f"AWS did not invoke {NAME} (Denied)"
    assert [json.loads(body) for _, _, body in server.invoked] == [EVENT]


def test_the_client_waits_longer_than_the_function_may_take() -> None:
    config: Any = operator_client(None).meta.config

    assert (config.connect_timeout, config.read_timeout) == (2, 20)
    assert config.retries["total_max_attempts"] == 1
