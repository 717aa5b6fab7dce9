"""The secret that says where MongoDB is: its ARN, its key, and that nothing of it is in the template."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.cloudformation.intrinsics import Stack
from tests.template.deployment import Deploy
from tests.template.reading import texts

FUNCTIONS = ["EnqueueFunction", "ExecuteFunction", "ReclaimFunction", "ArchiveFunction", "OperateFunction"]
KEYS = "arn:aws:kms:eu-central-1:123456789012:key/"
ID = "1234abcd-12ab-34cd-56ef-1234567890ab"
each_function = pytest.mark.parametrize("name", FUNCTIONS)


@pytest.mark.parametrize("value", ["", KEYS + ID, KEYS + "mrk-" + "1234abcd" * 4, KEYS.replace("aws", "aws-cn") + ID])
def test_a_key_is_named_by_its_arn_or_is_the_one_aws_manages(parameters: dict[str, Any], value: str) -> None:
    assert re.fullmatch(parameters["MongoSecretKeyArn"]["AllowedPattern"], value)


@pytest.mark.parametrize("value", [ID, "*", KEYS, KEYS + "*", KEYS.replace("key/", "alias/mine"), "alias/mine"])
def test_anything_else_is_no_key(parameters: dict[str, Any], value: str) -> None:
    assert not re.fullmatch(parameters["MongoSecretKeyArn"]["AllowedPattern"], value)


def statements(stack: Stack, role: str) -> list[dict[str, Any]]:
    """Return what a role may do from the moment it exists: not what policies that are made later add."""
    policies = stack.of_type("AWS::IAM::Role")[role].get("Policies", [])
    return [statement for policy in policies for statement in policy["PolicyDocument"]["Statement"]]


@each_function
def test_a_function_may_read_the_secret_before_it_exists(deploy: Deploy, resources: dict[str, Any], name: str) -> None:
    stack = deploy()
    role, _ = resources[name]["Properties"]["Role"]["Fn::GetAtt"]

    assert [one for one in statements(stack, role) if one["Action"] == "secretsmanager:GetSecretValue"] == [
        {
            "Effect": "Allow",
            "Action": "secretsmanager:GetSecretValue",
            "Resource": stack.resolved({"Ref": "MongoSecretArn"}),
        }
    ]


@each_function
def test_a_key_may_be_used_through_secrets_manager_only_and_before_the_function_exists(
    deploy: Deploy, resources: dict[str, Any], name: str
) -> None:
    stack = deploy(MongoSecretKeyArn=KEYS + ID)
    role, _ = resources[name]["Properties"]["Role"]["Fn::GetAtt"]

    assert [one for one in statements(stack, role) if one["Action"] == "kms:Decrypt"] == [
        {
            "Effect": "Allow",
            "Action": "kms:Decrypt",
            "Resource": KEYS + ID,
            "Condition": {"StringEquals": {"kms:ViaService": "secretsmanager.eu-central-1.amazonaws.com"}},
        }
    ]


def test_without_a_key_nobody_may_decrypt(deploy: Deploy) -> None:
    stack = deploy()
    allowed = [stack.of_type("AWS::IAM::Policy"), stack.of_type("AWS::IAM::Role")]

    assert [text for text in texts(allowed) if "kms" in text] == []


def test_no_other_statement_has_a_condition(deploy: Deploy) -> None:
    stack = deploy(MongoSecretKeyArn=KEYS + ID)
    policies = stack.of_type("AWS::IAM::Policy").values()
    later = [statement for policy in policies for statement in policy["PolicyDocument"]["Statement"]]
    at_once = [one for role in stack.of_type("AWS::IAM::Role") for one in statements(stack, role)]

    assert {one["Action"] for one in [*later, *at_once] if "Condition" in one} == {"kms:Decrypt"}


def test_no_secret_is_resolved_into_the_template(source: dict[str, Any]) -> None:
    assert [text for text in texts(source) if "{{resolve:" in text] == []


def test_a_function_is_told_the_address_of_the_secret_and_no_more(deploy: Deploy) -> None:
    stack = deploy()
    told = [function["Environment"]["Variables"] for function in stack.of_type("AWS::Lambda::Function").values()]
    secret = stack.resolved({"Ref": "MongoSecretArn"})

    assert {environment["MONGODB_SECRET_ARN"] for environment in told} == {secret}
    assert {environment["MONGODB_URI"] for environment in told} == {""}
