"""Starting executors, against a server that speaks like Lambda and against none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.handlers import wire
from tests.handlers.calls import sample
from tests.handlers.lambda_api import ARN, lambda_server
from tidemill.aws import lambda_functions
from tidemill.aws.lambda_functions import Starter, strip_qualifier
from tidemill.executor.scaling import LaunchError
from tidemill.requests.events import Source

PATH = "/2015-03-31/functions/executor/invocations"


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "none")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    lambda_functions.lambda_client.cache_clear()
    yield
    lambda_functions.lambda_client.cache_clear()


@pytest.mark.parametrize("source", ["wake", "backlog"])
def test_an_executor_is_started_with_its_sample_event(monkeypatch: pytest.MonkeyPatch, source: Source) -> None:
    with lambda_server() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", server.url)
        Starter("executor", source=source).start()

    [(path, kind, body)] = server.invoked
    assert (path, kind) == (PATH, "Event")
    assert json.loads(body) == sample(source)


def test_a_check_starts_nothing_and_leaves_a_connection_for_the_first_start(monkeypatch: pytest.MonkeyPatch) -> None:
    with lambda_server(204, 202) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", server.url)
        starter = Starter("executor", source="wake")
        starter.check()
        starter.start()

    assert [kind for _, kind, _ in server.invoked] == ["DryRun", "Event"]
    assert len(server.connections) == 1


def test_a_connection_that_was_closed_meanwhile_is_no_reason_to_start_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    with lambda_server(hangs_up=True) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", server.url)
        for _ in range(3):
            Starter("executor", source="wake").start()

    assert len(server.invoked) == len(server.connections) == 3


def test_a_connection_that_breaks_under_the_call_is_opened_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    with lambda_server(202, 0, 202) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", server.url)
        for _ in range(2):
            Starter("executor", source="wake").start()

    assert len(server.invoked) == 3
    assert len(server.connections) == 2


def test_and_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with lambda_server(0) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", server.url)
        with pytest.raises(LaunchError, match="ConnectionClosedError"):
            Starter("executor", source="wake").start()

    assert len(server.invoked) == 2


@pytest.mark.parametrize(("status", "code"), [(429, "TooManyRequestsException"), (403, "Denied"), (500, "Denied")])
def test_what_lambda_refuses_is_tried_once_and_told_by_its_code(
    monkeypatch: pytest.MonkeyPatch, status: int, code: str
) -> None:
    with lambda_server(status) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", server.url)
        with pytest.raises(LaunchError, match=rf"^Lambda refused \({code}\)$"):
            Starter("executor", source="wake").start()

    assert len(server.invoked) == 1


def test_a_server_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with wire.silence() as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", f"http://{address}")
        with pytest.raises(LaunchError, match="ReadTimeoutError"):
            Starter("executor", source="wake").start()


def test_a_port_that_refuses_is_told_without_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    with wire.nobody() as address:
        monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", f"http://{address}")
        with pytest.raises(LaunchError, match=r"^Lambda was not reached \(EndpointConnectionError\)$"):
            Starter("executor", source="wake").start()


def test_without_a_region_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_DEFAULT_REGION", "AWS_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")

    with pytest.raises(LaunchError, match="NoRegionError"):
        Starter("executor", source="wake").start()


def test_the_client_has_little_patience_and_tries_once() -> None:
    config: Any = lambda_functions.lambda_client().meta.config

    assert (config.connect_timeout, config.read_timeout) == (0.1, 0.2)
    assert config.retries["total_max_attempts"] == 1


@pytest.mark.parametrize("given", [ARN, f"{ARN}:$LATEST", f"{ARN}:live", f"{ARN}:7"])
def test_a_qualifier_is_cut_off(given: str) -> None:
    assert strip_qualifier(given) == ARN


@pytest.mark.parametrize(
    "given",
    [None, 7, "", "name", {"$ne": 1}, "arn:aws:lambda:eu-central-1:123456789012:layer:x", "arn:aws:sqs:r:1:function:x",
     "arn:aws:lambda:eu-central-1:123456789012:function:", "arn:aws:lambda:::function:x"],
)  # fmt: skip
def test_what_is_no_function_is_none(given: object) -> None:
    assert strip_qualifier(given) is None
