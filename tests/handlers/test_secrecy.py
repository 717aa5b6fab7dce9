"""Payloads, keys, connection strings and secrets reach no log and no answer, whatever fails and at any level."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from aws_lambda_powertools import Logger
from moto import mock_aws

from tests.handlers.calls import FUNCTIONS, app, request
from tests.handlers.conftest import Deployed
from tidemill import SettingsError, UnavailableError
from tidemill.aws.lambda_functions import get_owner
from tidemill.bootstrap import deployment
from tidemill.testing import FakeContext, Mongod

PASSWORD = "S3cr3t"
CARD = "4111111111111111"
PAYLOAD = {"card_number": CARD, "password": PASSWORD, "email": "x@example.org"}
HEADERS = {"Idempotency-Key": f"key-{CARD}", "Authorization": f"Bearer {PASSWORD}"}
SECRETS = (PASSWORD, CARD, "x@example.org", "example-value-of-the-api-key")
MALFORMED = [
    f"mongodb://user:{PASSWORD}@ss@h/db",
    f"mongodb://user:{PASSWORD}@127.0.0.1:abc/db",
    f"mongodb://user:{PASSWORD}%zz@127.0.0.1/db",
    f"mongodb://user:a?{PASSWORD}@127.0.0.1/db",
    f"mongodb://user:a/{PASSWORD}@127.0.0.1/db",
    f"mongodb+srv://user:{PASSWORD}@h.example:27017/db",
    f"mongodb+srv://user:{PASSWORD}@localhost/db",
    f"mongodb://user:{PASSWORD}@127.0.0.1/{PASSWORD} x.y",
    f"mongodb://user:{PASSWORD}@127.0.0.1/?tls=true&tlsCAFile=/{PASSWORD}",
    f"mongodb://user:{PASSWORD}@h1,h2/?directConnection=true",
    f"mongodb://user:{PASSWORD}@127.0.0.1/?loadBalanced=true&replicaSet={PASSWORD}",
    f"user:{PASSWORD}@127.0.0.1",
    f"postgres://user:{PASSWORD}@127.0.0.1/db",
    PASSWORD,
    "mongodb://",
]
ODD = [f"nope={PASSWORD}", f"connectTimeoutMS={PASSWORD}", f"authMechanism={PASSWORD}", f"readPreference={PASSWORD}"]


@pytest.fixture
def everything() -> Iterator[io.StringIO]:
    """What any logger says at any level."""
    root, heard = logging.getLogger(), io.StringIO()
    handler, level = logging.StreamHandler(heard), root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield heard
    root.setLevel(level)
    root.removeHandler(handler)


@pytest.fixture
def talkative() -> Iterator[None]:
    """Loggers of the functions that say all they can."""
    loggers = [app(function).logger for function in FUNCTIONS]
    levels = [logger.log_level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.DEBUG)
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


def assert_silent(*texts: str) -> None:
    for text in texts:
        assert [secret for secret in SECRETS if secret in text] == []


@pytest.mark.parametrize("uri", MALFORMED)
def test_a_malformed_uri_is_refused_by_every_function_without_its_text(
    bare: Deployed, capfd: pytest.CaptureFixture[str], uri: str
) -> None:  # F80
    bare.set(MONGODB_URI=uri)

    answer = bare.post({"name": "noop", "payload": {}})
    messages = []
    for function in ("execute", "reclaim", "archive"):
        with pytest.raises((SettingsError, UnavailableError), match="MONGODB_URI") as failure:
            bare.invoke(function)
        messages.append(str(failure.value))
        assert failure.value.__suppress_context__ or failure.value.__context__ is None

    assert (answer.status, answer.code) == (503, "unavailable" if "localhost" in uri else "misconfigured")
    assert "MONGODB_URI" in bare.log()[-1]["reason"]
    assert_silent(answer.text, bare.stdout.getvalue(), *messages, *capfd.readouterr(), repr(deployment().settings))
    assert bare.clients == []


@pytest.mark.parametrize("option", ODD)
def test_what_the_driver_warns_of_an_option_holds_no_value(bare: Deployed, option: str) -> None:
    bare.set(MONGODB_URI=f"mongodb://user:{PASSWORD}@127.0.0.1:1/?{option}")

    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        deployment().connect("enqueue")

    assert_silent(*(str(one.message) for one in heard))


BODIES: dict[str, dict[str, Any]] = {
    "accepted": {"name": "noop", "payload": PAYLOAD},
    "unknown": {"name": "unknown", "payload": PAYLOAD},
    "invalid": {"name": "noop", "payload": PAYLOAD, "priority": CARD, CARD: 1},
    "refused": {"name": "deliver_webhook", "payload": PAYLOAD},
    "fails": {"name": "deliver_webhook", "payload": {"url": f"https://u:{PASSWORD}@h/", "body": PAYLOAD}},
}


@pytest.mark.usefixtures("talkative")
@pytest.mark.parametrize("name", BODIES)
def test_no_log_has_a_payload_a_key_or_a_uri_at_any_level(
    deployed: Deployed,
    everything: io.StringIO,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    *,
    name: str,
) -> None:  # F81
    for variable in ("POWERTOOLS_LOGGER_LOG_EVENT", "POWERTOOLS_DEV", "POWERTOOLS_DEBUG"):
        monkeypatch.setenv(variable, "true")
    assert {app(function).logger.log_level for function in FUNCTIONS} == {logging.DEBUG}

    answer = deployed.http(request(body=BODIES[name], headers=HEADERS))
    for function in ("execute", "archive", "reclaim"):
        deployed.invoke(function)

    assert answer.status == (202 if name in {"accepted", "fails"} else 422)
    assert_silent(deployed.stdout.getvalue(), everything.getvalue(), *capfd.readouterr())
    assert deployed.clients[0].address is not None
    assert str(deployed.clients[0].address[1]) not in deployed.stdout.getvalue()
    if name == "invalid":
        assert PASSWORD not in answer.text
    else:
        assert_silent(answer.text)


def test_no_log_has_the_secret_at_any_level(
    bare: Deployed, mongod: Mongod, everything: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    with mock_aws():
        uri = f"{mongod.uri}&appName={PASSWORD}"
        arn = boto3.client("secretsmanager").create_secret(Name="x", SecretString=uri)["ARN"]
        everything.truncate(0)
        bare.set(MONGODB_SECRET_ARN=arn, MONGODB_DATABASE="x")
        bare.invoke("archive")

    assert_silent(everything.getvalue())


def test_a_driver_may_be_quieter_than_that(bare: Deployed, mongod: Mongod) -> None:
    driver = logging.getLogger("pymongo")
    before = driver.level
    driver.setLevel(logging.ERROR)

    bare.set(MONGODB_URI=mongod.uri)
    deployment().database("enqueue")

    assert driver.level == logging.ERROR
    driver.setLevel(before)


def test_every_line_has_the_id_of_its_own_invocation(deployed: Deployed) -> None:  # F82
    first, second = FakeContext(), FakeContext()
    deployed.http(request(body=BODIES["accepted"]), first)
    for function in ("execute", "reclaim", "archive"):
        deployed.invoke(function, None, first)
    deployed.http({"rawPath": "/"}, second)
    deployed.http(request(body=BODIES["accepted"]), second)
    app("enqueue").lambda_handler(request(body=BODIES["accepted"]), None)

    ids = [line.get("request_id") for line in deployed.log()]
    assert ids == [first.aws_request_id] * 5 + [second.aws_request_id] * 2 + [get_owner(None)]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_no_line_has_a_key_that_other_code_left_behind(deployed: Deployed, function: str) -> None:  # F82
    Logger(service=f"tidemill-{function}").append_keys(task_id="foreign", correlation_id="foreign")

    if function == "enqueue":
        deployed.post({"name": "noop", "payload": {}})
    else:
        deployed.invoke(function)

    [line] = deployed.log()
    assert "foreign" not in json.dumps(line)
    assert {"level", "location", "message", "timestamp", "service", "request_id"} <= line.keys()


def test_an_accepted_task_is_logged_by_its_ids_and_name(deployed: Deployed) -> None:
    answer = deployed.post(BODIES["accepted"], key="a")

    [line] = deployed.log()
    standard = {"level", "location", "message", "timestamp", "service", "request_id"}
    assert line.keys() == standard | {"count", "new", "task_ids", "task_names", "source", "correlation_id"}
    assert (line["message"], line["task_ids"], line["task_names"]) == ("accepted", [answer.id], ["noop"])
