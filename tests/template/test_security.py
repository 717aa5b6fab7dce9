"""Two stacks fit into one account, and no function may do more than it must."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

SECRET_READERS = ["EnqueueFunction", "ExecuteFunction", "ReclaimFunction", "ArchiveFunction", "OperateFunction"]
DEAD_LETTERS = {"Fn::Sub": "${ArchiveBucket.Arn}/dlq/*"}
NAMES = {
    "FunctionName",
    "RoleName",
    "QueueName",
    "LogGroupName",
    "PolicyName",
    "UsagePlanName",
    "GroupName",
    "LayerName",
    "Name",
}


def statements(resources: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every statement, with the role it is for."""
    for name, resource in resources.items():
        properties = resource["Properties"]
        if resource["Type"] == "AWS::IAM::Role":
            for policy in properties.get("Policies", []):
                yield from ((name, statement) for statement in policy["PolicyDocument"]["Statement"])
        if resource["Type"] == "AWS::IAM::Policy":
            for role in properties["Roles"]:
                yield from ((role["Ref"], statement) for statement in properties["PolicyDocument"]["Statement"])


def actions(statement: dict[str, Any]) -> list[str]:
    found: str | list[str] = statement["Action"]
    return [found] if isinstance(found, str) else found


def texts(value: object) -> Iterator[str]:
    """Every string in *value*, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from texts(key)
            yield from texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts(inner)


def test_no_resource_has_a_fixed_name(resources: dict[str, Any]) -> None:
    given = [(name, r["Properties"][key]) for name, r in resources.items() for key in NAMES & r["Properties"].keys()]

    assert [(name, value) for name, value in given if isinstance(value, str)] == []


def test_a_layer_is_named_after_its_stack(resources: dict[str, Any]) -> None:
    layers = [r["Properties"]["LayerName"] for r in resources.values() if r["Type"] == "AWS::Lambda::LayerVersion"]

    assert sorted(name["Fn::Sub"] for name in layers) == ["${AWS::StackName}-core", "${AWS::StackName}-tasks"]


def test_no_statement_holds_for_everything(resources: dict[str, Any]) -> None:
    ours = [(name, statement) for name, statement in statements(resources) if statement["Resource"] != DEAD_LETTERS]
    broad = [(name, text) for name, statement in ours for text in texts(statement) if "*" in text]

    assert broad == []


def test_every_statement_allows_and_names_what(resources: dict[str, Any]) -> None:
    assert all(s.keys() == {"Effect", "Action", "Resource"} for _, s in statements(resources))


def test_a_role_is_for_one_service(resources: dict[str, Any]) -> None:
    roles = [r["Properties"] for r in resources.values() if r["Type"] == "AWS::IAM::Role"]
    trusted = [role["AssumeRolePolicyDocument"]["Statement"] for role in roles]

    assert all(len(statement) == 1 for statement in trusted)
    assert {s["Principal"]["Service"][0] for [s] in trusted} == {"lambda.amazonaws.com", "scheduler.amazonaws.com"}


def test_the_only_managed_policy_is_the_one_for_logs(resources: dict[str, Any]) -> None:
    roles = [r["Properties"] for r in resources.values() if r["Type"] == "AWS::IAM::Role"]
    managed = {arn.rpartition("/")[2] for role in roles for arn in role.get("ManagedPolicyArns", [])}

    assert managed == {"AWSLambdaBasicExecutionRole"}


@pytest.mark.parametrize("name", SECRET_READERS)
def test_a_function_reads_the_one_secret(resources: dict[str, Any], name: str) -> None:
    [statement] = [
        statement
        for role, statement in statements(resources)
        if role == f"{name}Role" and "secretsmanager:GetSecretValue" in statement["Action"]
    ]

    assert statement["Action"] == ["secretsmanager:GetSecretValue"]
    assert statement["Resource"] == {"Fn::Sub": ["${secretArn}", {"secretArn": {"Ref": "MongoSecretArn"}}]}


def test_these_are_all_who_may_start_an_executor(resources: dict[str, Any]) -> None:
    executor = {"Fn::GetAtt": ["ExecuteFunction", "Arn"]}

    assert sorted(role for role, statement in statements(resources) if statement["Resource"] == executor) == [
        "EnqueueFunctionRole",
        "ExecuteFunctionRole",
        "ExecuteFunctionTickRole",
        "ReclaimFunctionRole",
    ]
    assert {tuple(actions(s)) for _, s in statements(resources) if s["Resource"] == executor} == {
        ("lambda:InvokeFunction",)
    }


def test_no_resource_lets_others_start_an_executor(resources: dict[str, Any]) -> None:
    invoked = [r["Properties"]["FunctionName"] for r in resources.values() if r["Type"] == "AWS::Lambda::Permission"]

    assert {name["Ref"] for name in invoked} == {"EnqueueFunction"}


@pytest.mark.parametrize("name", SECRET_READERS)
def test_a_function_may_do_no_more_than_its_work_takes(resources: dict[str, Any], name: str) -> None:
    allowed = {action for role, s in statements(resources) if role == f"{name}Role" for action in actions(s)}

    assert allowed - {"secretsmanager:GetSecretValue"} == {
        "EnqueueFunction": {"lambda:InvokeFunction", "sqs:SendMessage"},
        "ExecuteFunction": {"lambda:InvokeFunction"},
        "ReclaimFunction": {"lambda:InvokeFunction"},
        "ArchiveFunction": {"s3:PutObject"},
        "OperateFunction": {"s3:PutObject"},
    }.get(name)


def test_nobody_may_write_more_than_dead_letters_or_read_them(resources: dict[str, Any]) -> None:
    found = [(role, actions(s), s["Resource"]) for role, s in statements(resources) if "s3:" in str(s["Action"])]

    assert sorted(found, key=str) == [
        (f"{name}Role", ["s3:PutObject"], DEAD_LETTERS) for name in ("ArchiveFunction", "OperateFunction")
    ]


def test_the_archive_is_private_encrypted_over_tls_only_and_outlives_its_stack(resources: dict[str, Any]) -> None:
    bucket, policy = resources["ArchiveBucket"], resources["ArchiveBucketPolicy"]
    [statement] = policy["Properties"]["PolicyDocument"]["Statement"]

    assert (bucket["DeletionPolicy"], bucket["UpdateReplacePolicy"]) == ("RetainExceptOnCreate", "Retain")
    assert (policy["DeletionPolicy"], policy["UpdateReplacePolicy"]) == ("RetainExceptOnCreate", "Retain")
    assert set(bucket["Properties"]["PublicAccessBlockConfiguration"].values()) == {True}
    assert bucket["Properties"]["VersioningConfiguration"] == {"Status": "Enabled"}
    assert "ServerSideEncryptionConfiguration" in bucket["Properties"]["BucketEncryption"]
    assert (statement["Effect"], statement["Principal"], statement["Action"]) == ("Deny", "*", "s3:*")
    assert statement["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}


def test_a_role_does_not_name_the_function_it_is_of_nor_one_that_waits_for_it(resources: dict[str, Any]) -> None:
    """A circle, which the transform does not see: `SummonFromExecute` and `SummonFromReclaim` are there for that."""
    for name in ("ExecuteFunctionRole", "ReclaimFunctionRole"):
        assert "ExecuteFunction" not in set(texts(resources[name]))


def test_reclaim_refers_to_no_other_function(resources: dict[str, Any]) -> None:
    own = {name: r for name, r in resources.items() if name.startswith("Reclaim")}
    others = {"EnqueueFunction", "ExecuteFunction", "ArchiveFunction"}

    assert [name for name, resource in own.items() if others & set(texts(resource))] == []
