"""The functions run in a VPC where subnets are given, else in none; then nothing of a network is allowed to them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.template.deployment import Deploy

VPC_ACCESS = "arn:aws:iam::aws:policy/service-role/AWSLambdaVPCAccessExecutionRole"
LOGS = "arn:aws:iam::aws:policy/service-role/AWSLambdaBasicExecutionRole"
SUBNETS = "subnet-0123abcd,subnet-0123456789abcdef0"
GROUPS = "sg-0123abcd,sg-0123456789abcdef0"


def breached(template: dict[str, Any], deploy: Deploy, **parameters: str) -> list[str]:
    """Return what the template's rules say against *parameters*."""
    stack = deploy(**parameters)
    applied = [rule for rule in template["Rules"].values() if stack.resolved(rule["RuleCondition"])]
    asserted = [one for rule in applied for one in rule["Assertions"]]
    return [one["AssertDescription"] for one in asserted if not stack.resolved(one["Assert"])]


def test_outside_of_a_vpc_a_function_has_no_network_and_may_make_none(deploy: Deploy) -> None:
    stack = deploy()
    functions = stack.of_type("AWS::Lambda::Function")
    roles = stack.of_type("AWS::IAM::Role").values()

    assert [name for name, function in functions.items() if "VpcConfig" in function] == []
    assert {arn for role in roles for arn in role.get("ManagedPolicyArns", [])} == {LOGS}


def test_in_a_vpc_every_function_is_in_its_subnets_and_may_be_there(deploy: Deploy) -> None:
    stack = deploy(SubnetIds=SUBNETS, SecurityGroupIds=GROUPS)
    functions = stack.of_type("AWS::Lambda::Function")
    managed = {name: role.get("ManagedPolicyArns", []) for name, role in stack.of_type("AWS::IAM::Role").items()}

    for name, function in functions.items():
        assert function["VpcConfig"] == {
            "SubnetIds": ["subnet-0123abcd", "subnet-0123456789abcdef0"],
            "SecurityGroupIds": ["sg-0123abcd", "sg-0123456789abcdef0"],
        }
        assert managed.pop(f"{name}Role") == [LOGS, VPC_ACCESS]
    assert {arn for arns in managed.values() for arn in arns} == set()


@pytest.mark.parametrize(
    ("subnets", "groups", "refused"),
    [
        ("", "", []),
        (SUBNETS, GROUPS, []),
        (SUBNETS, "", ["SubnetIds is given, so SecurityGroupIds must be, too"]),
        ("", GROUPS, ["SecurityGroupIds is given, so SubnetIds must be, too"]),
    ],
)
def test_a_network_is_given_whole_or_not_at_all(
    template: dict[str, Any], deploy: Deploy, subnets: str, groups: str, refused: list[str]
) -> None:
    assert breached(template, deploy, SubnetIds=subnets, SecurityGroupIds=groups) == refused


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SubnetIds", ""),
        ("SubnetIds", SUBNETS),
        ("SubnetIds", ",".join(["subnet-0123abcd"] * 16)),
        ("SecurityGroupIds", ""),
        ("SecurityGroupIds", GROUPS),
        ("SecurityGroupIds", ",".join(["sg-0123abcd"] * 5)),
    ],
)
def test_as_many_ids_as_lambda_takes_are_accepted(parameters: dict[str, Any], name: str, value: str) -> None:
    assert re.fullmatch(parameters[name]["AllowedPattern"], value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SubnetIds", "subnet-"),
        ("SubnetIds", "subnet-0123abcd,"),
        ("SubnetIds", "subnet-0123abcd, subnet-0123abce"),
        ("SubnetIds", "sg-0123abcd"),
        ("SubnetIds", "subnet-0123abcd0"),
        ("SubnetIds", "vpc-0123abcd"),
        ("SubnetIds", ",".join(["subnet-0123abcd"] * 17)),
        ("SecurityGroupIds", "sg-0123ABCD"),
        ("SecurityGroupIds", "default"),
        ("SecurityGroupIds", "subnet-0123abcd"),
        ("SecurityGroupIds", ",".join(["sg-0123abcd"] * 6)),
    ],
)
def test_what_lambda_would_refuse_half_way_through_is_refused_before(
    parameters: dict[str, Any], name: str, value: str
) -> None:
    assert not re.fullmatch(parameters[name]["AllowedPattern"], value)
