"""The secret that says where MongoDB is: its ARN, its key, and that nothing of it is in the template."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.template.deployment import Deploy

FUNCTIONS = ["EnqueueFunction", "ExecuteFunction", "ReclaimFunction", "ArchiveFunction", "OperateFunction"]
KEYS = "arn:aws:kms:eu-central-1:123456789012:key/"
ID = "1234abcd-12ab-34cd-56ef-1234567890ab"


def texts(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list):
        for inner in value:
            yield from texts(inner)
    else:
        yield str(value)


@pytest.mark.parametrize("value", ["", KEYS + ID, KEYS + "mrk-" + "1234abcd" * 4, KEYS.replace("aws", "aws-cn") + ID])
def test_a_key_is_named_by_its_arn_or_is_the_one_aws_manages(parameters: dict[str, Any], value: str) -> None:
    assert re.fullmatch(parameters["MongoSecretKeyArn"]["AllowedPattern"], value)


@pytest.mark.parametrize("value", [ID, "*", KEYS, KEYS + "*", KEYS.replace("key/", "alias/mine"), "alias/mine"])
def test_anything_else_is_no_key(parameters: dict[str, Any], value: str) -> None:
    assert not re.fullmatch(parameters["MongoSecretKeyArn"]["AllowedPattern"], value)


def test_a_key_may_be_used_through_secrets_manager_only(deploy: Deploy) -> None:
    stack = deploy(MongoSecretKeyArn=KEYS + ID)
    [policy] = [one for name, one in stack.of_type("AWS::IAM::Policy").items() if name == "DecryptSecret"]

    assert policy["Roles"] == [stack.name_of(f"{name}Role") for name in FUNCTIONS]
    assert policy["PolicyDocument"]["Statement"] == [
        {
            "Effect": "Allow",
            "Action": "kms:Decrypt",
            "Resource": KEYS + ID,
            "Condition": {"StringEquals": {"kms:ViaService": "secretsmanager.eu-central-1.amazonaws.com"}},
        }
    ]


def test_without_a_key_nobody_may_decrypt(deploy: Deploy) -> None:
    policies = deploy().of_type("AWS::IAM::Policy")

    assert "DecryptSecret" not in policies
    assert [text for text in texts(policies) if "kms" in text] == []


def test_no_other_statement_has_a_condition(resources: dict[str, Any]) -> None:
    policies = {name: r["Properties"] for name, r in resources.items() if r["Type"] == "AWS::IAM::Policy"}
    limited = [n for n, p in policies.items() if any("Condition" in s for s in p["PolicyDocument"]["Statement"])]

    assert limited == ["DecryptSecret"]


def test_no_secret_is_resolved_into_the_template(source: dict[str, Any]) -> None:
    assert [text for text in texts(source) if "{{resolve:" in text] == []


def test_a_function_is_told_the_address_of_the_secret_and_no_more(deploy: Deploy) -> None:
    stack = deploy()
    told = [function["Environment"]["Variables"] for function in stack.of_type("AWS::Lambda::Function").values()]
    secret = stack.resolved({"Ref": "MongoSecretArn"})

    assert {environment["MONGODB_SECRET_ARN"] for environment in told} == {secret}
    assert {environment["MONGODB_URI"] for environment in told} == {""}
