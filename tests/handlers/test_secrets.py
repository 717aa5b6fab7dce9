"""MongoDB's URI as a secret: in which forms it is taken, and what is said where it cannot be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws

from tests.handlers.conftest import Deployed
from tidemill import SettingsError
from tidemill.testing import Mongod

SAID = (
    r"^the secret in MONGODB_SECRET_ARN cannot be read \(AccessDeniedException\): "
    r"may this role read it, and decrypt it with its KMS key\?$"
)
NOOP = {"name": "noop", "payload": {}}


@pytest.fixture
def secrets(bare: Deployed, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Secrets Manager, and functions that read the secret ``tidemill`` there."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    with mock_aws():
        bare.set(MONGODB_SECRET_ARN="tidemill", MONGODB_DATABASE="secrets")
        yield boto3.client("secretsmanager")


@pytest.mark.parametrize("form", ["{}", " {}\n", '{{"uri": "{}", "note": 1}}', '{{"uri": " {} "}}'])
def test_the_uri_may_be_a_secret(bare: Deployed, secrets: Any, mongod: Mongod, form: str) -> None:
    secrets.create_secret(Name="tidemill", SecretString=form.format(mongod.uri))

    assert bare.invoke("archive")["moved"] == 0


@pytest.mark.parametrize(
    "text",
    [
        "S3cr3t",
        '"mongodb://u:S3cr3t@h"',
        '{"url": "mongodb://u:S3cr3t@h"}',
        '{"uri": "S3cr3t"}',
        '{"uri": "mongodb://u:S3cr3t@h:abc"}',
        "7",
    ],
)
def test_a_secret_that_is_no_uri_is_named_without_its_text(bare: Deployed, secrets: Any, text: str) -> None:
    secrets.create_secret(Name="tidemill", SecretString=text)

    with pytest.raises(SettingsError, match="MONGODB_SECRET_ARN") as failure:
        bare.invoke("archive")

    assert "S3cr3t" not in str(failure.value)
    assert "MONGODB_URI" not in str(failure.value)


def test_a_binary_secret_is_named(bare: Deployed, secrets: Any) -> None:
    secrets.create_secret(Name="tidemill", SecretBinary=b"mongodb://127.0.0.1/")

    with pytest.raises(SettingsError, match="MONGODB_SECRET_ARN"):
        bare.invoke("archive")


@pytest.mark.usefixtures("secrets")
def test_a_secret_that_is_not_there_is_named(bare: Deployed) -> None:
    assert bare.post(NOOP).code == "misconfigured"
    assert "MONGODB_SECRET_ARN" in bare.log()[-1]["reason"]


@pytest.mark.usefixtures("secrets")
def test_a_secret_that_may_not_be_read_is_named_and_read_again(bare: Deployed, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def denied(*_: Any, **__: Any) -> None:
        asked.append(1)
        raise ClientError({"Error": {"Code": "AccessDeniedException", "Message": "arn S3cr3t"}}, "GetSecretValue")

    monkeypatch.setattr("botocore.client.BaseClient._make_api_call", denied)

    for _ in range(2):
        with pytest.raises(SettingsError, match=SAID):
            bare.invoke("archive")
    assert len(asked) == 2


def test_without_region_or_credentials_the_secret_is_named(bare: Deployed, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_DEFAULT_REGION", "AWS_REGION", "AWS_PROFILE", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/nonexistent")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    bare.set(MONGODB_SECRET_ARN="arn:aws:secretsmanager:eu-central-1:123456789012:secret:x")

    for region in (None, "eu-central-1"):
        bare.set(AWS_DEFAULT_REGION=region)
        with pytest.raises(SettingsError, match="MONGODB_SECRET_ARN"):
            bare.invoke("archive")


def test_a_uri_wins_over_a_secret(bare: Deployed, secrets: Any, mongod: Mongod) -> None:
    secrets.create_secret(Name="tidemill", SecretString="garbage")
    bare.set(MONGODB_URI=mongod.uri)

    assert bare.invoke("archive")["moved"] == 0


def test_a_secret_is_read_once(bare: Deployed, secrets: Any, mongod: Mongod) -> None:
    secrets.create_secret(Name="tidemill", SecretString=mongod.uri)
    bare.invoke("archive")
    secrets.put_secret_value(SecretId="tidemill", SecretString="garbage")

    assert bare.invoke("archive")["moved"] == 0
