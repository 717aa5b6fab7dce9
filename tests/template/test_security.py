"""Two stacks fit into one account, and no function may do more than it must."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.cloudformation.intrinsics import ACCOUNT
from tests.template.deployment import Deploy
from tests.template.reading import texts

LAMBDA = "lambda:InvokeFunction"
DEAD_LETTERS = {"Fn::Sub": "${ArchiveBucket.Arn}/dlq/*"}
EXECUTOR = {"Fn::GetAtt": ["ExecuteFunction", "Arn"]}
SECRET = ("secretsmanager:GetSecretValue", {"Ref": "MongoSecretArn"})
KEY = ("kms:Decrypt", {"Ref": "MongoSecretKeyArn"})
SUMMON = (LAMBDA, EXECUTOR)
RETRIES = {"Fn::GetAtt": ["EnqueueRetries", "Arn"]}
EXPORT = ("s3:PutObject", DEAD_LETTERS)
ALLOWED: dict[str, list[tuple[str, object]]] = {
    "EnqueueFunctionRole": [
        SECRET,
        KEY,
        SUMMON,
        *(
            (f"sqs:{verb}", RETRIES)
            for verb in ("SendMessage", "ReceiveMessage", "DeleteMessage", "GetQueueAttributes")
        ),
        ("sqs:SendMessage", {"Fn::GetAtt": ["EnqueueFailures", "Arn"]}),
    ],
    "ExecuteFunctionRole": [SECRET, KEY, SUMMON, (LAMBDA, {"Fn::GetAtt": ["ReclaimFunction", "Arn"]})],
    "ReclaimFunctionRole": [SECRET, KEY, SUMMON],
    "ArchiveFunctionRole": [SECRET, KEY, EXPORT],
    "OperateFunctionRole": [SECRET, KEY, EXPORT],
    "SchedulesRole": [
        (LAMBDA, [{"Fn::GetAtt": [f"{name}Function", "Arn"]} for name in ("Enqueue", "Execute", "Reclaim", "Archive")]),
        ("sqs:SendMessage", RETRIES),
    ],
}
FUNCTIONS = ["EnqueueFunction", "ExecuteFunction", "ReclaimFunction", "ArchiveFunction", "OperateFunction"]
BASIC = "arn:aws:iam::aws:policy/service-role/AWSLambdaBasicExecutionRole"
IN_VPC = "arn:aws:iam::aws:policy/service-role/AWSLambdaVPCAccessExecutionRole"
OWN = "arn:aws:iam::123456789012:policy/read-orders"
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
    "AlarmName",
    "TopicName",
    "DashboardName",
    "BucketName",
}


def statements(resources: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every statement, with the role it is for."""
    for name, resource in resources.items():
        properties = resource["Properties"]
        if resource["Type"] == "AWS::IAM::Role":
            for policy in properties.get("Policies", []):
                yield from ((name, statement) for statement in stated(policy))
        if resource["Type"] == "AWS::IAM::Policy":
            for role in properties["Roles"]:
                yield from ((role["Ref"], statement) for statement in stated(properties))


def stated(policy: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every statement of a policy, also one that is there in some deployments only."""
    for one in policy["PolicyDocument"]["Statement"]:
        if "Fn::If" in one:
            _, then, otherwise = one["Fn::If"]
            assert otherwise == {"Ref": "AWS::NoValue"}
            yield then
        else:
            yield one


def actions(statement: dict[str, Any]) -> list[str]:
    found: str | list[str] = statement["Action"]
    return [found] if isinstance(found, str) else found


def test_no_resource_has_a_fixed_name(resources: dict[str, Any]) -> None:
    given = [
        (name, r["Properties"][key])
        for name, r in resources.items()
        if r["Type"] != "AWS::IAM::Policy"  # is part of a role, and its name is one among those of that role
        for key in NAMES & r["Properties"].keys()
    ]

    assert [(name, value) for name, value in given if isinstance(value, str)] == []


def test_a_stack_may_have_as_long_a_name_as_cloudformation_takes(deploy: Deploy) -> None:
    policies = deploy(name="s" * 128).of_type("AWS::IAM::Policy").values()

    assert [policy["PolicyName"] for policy in policies if len(policy["PolicyName"]) > 128] == []  # IAM's limit


def test_a_layer_is_named_after_its_stack(resources: dict[str, Any]) -> None:
    layers = [r["Properties"]["LayerName"] for r in resources.values() if r["Type"] == "AWS::Lambda::LayerVersion"]

    assert sorted(name["Fn::Sub"] for name in layers) == ["${AWS::StackName}-core", "${AWS::StackName}-tasks"]


def test_no_statement_holds_for_everything(resources: dict[str, Any]) -> None:
    ours = [(name, statement) for name, statement in statements(resources) if statement["Resource"] != DEAD_LETTERS]
    broad = [(name, text) for name, statement in ours for text in texts(statement) if "*" in text]

    assert broad == []


def test_every_statement_allows_and_names_what(resources: dict[str, Any]) -> None:
    keys = {(*sorted(statement.keys() - {"Condition"}), statement["Effect"]) for _, statement in statements(resources)}

    assert keys == {("Action", "Effect", "Resource", "Allow")}


def test_a_role_is_for_one_service(resources: dict[str, Any]) -> None:
    roles = [r["Properties"] for r in resources.values() if r["Type"] == "AWS::IAM::Role"]
    trusted = [role["AssumeRolePolicyDocument"]["Statement"] for role in roles]

    assert all(len(statement) == 1 for statement in trusted)
    assert {s["Principal"]["Service"][0] for [s] in trusted} == {"lambda.amazonaws.com", "scheduler.amazonaws.com"}


@pytest.mark.parametrize("network", [{}, {"SubnetIds": "subnet-0123abcd", "SecurityGroupIds": "sg-0123abcd"}])
@pytest.mark.parametrize("chosen", [[], [OWN], [OWN, f"{OWN}-2"]])
def test_the_only_managed_policies_are_for_logs_for_functions_in_a_network_and_what_tasks_were_given(
    deploy: Deploy, network: dict[str, str], chosen: list[str]
) -> None:
    roles = deploy(TaskPolicyArns=",".join(chosen), **network).of_type("AWS::IAM::Role")
    managed = {name: role["ManagedPolicyArns"] for name, role in roles.items() if role.get("ManagedPolicyArns")}

    ours = [BASIC, IN_VPC] if network else [BASIC]
    assert managed == {f"{name}Role": ours for name in FUNCTIONS} | {"ExecuteFunctionRole": ours + chosen}


def test_these_are_all_roles_there_are(resources: dict[str, Any]) -> None:
    assert {name for name, r in resources.items() if r["Type"] == "AWS::IAM::Role"} == ALLOWED.keys()


@pytest.mark.parametrize("role", ALLOWED)
def test_a_role_may_do_exactly_what_its_work_takes(resources: dict[str, Any], role: str) -> None:
    mine = [statement for name, statement in statements(resources) if name == role]
    allowed = [(action, statement["Resource"]) for statement in mine for action in actions(statement)]

    assert sorted(allowed, key=str) == sorted(ALLOWED[role], key=str)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_has_the_role_that_is_named_after_it(resources: dict[str, Any], name: str) -> None:
    assert resources[name]["Properties"]["Role"] == {"Fn::GetAtt": [f"{name}Role", "Arn"]}


def test_these_are_all_who_may_start_an_executor(resources: dict[str, Any]) -> None:
    starters = [role for role, statement in statements(resources) if "ExecuteFunction" in texts(statement["Resource"])]

    assert sorted(starters) == ["EnqueueFunctionRole", "ExecuteFunctionRole", "ReclaimFunctionRole", "SchedulesRole"]


def test_all_schedules_have_one_role_that_may_start_what_schedules_start(resources: dict[str, Any]) -> None:
    targets = [r["Properties"]["Target"] for r in resources.values() if r["Type"] == "AWS::Scheduler::Schedule"]
    starts, keeps = [statement for role, statement in statements(resources) if role == "SchedulesRole"]

    assert [target["RoleArn"] for target in targets] == [{"Fn::GetAtt": ["SchedulesRole", "Arn"]}] * len(targets)
    assert sorted(map(str, starts["Resource"])) == sorted(str(target["Arn"]) for target in targets)
    kept = [target["DeadLetterConfig"]["Arn"] for target in targets if "DeadLetterConfig" in target]
    assert (kept, keeps["Action"]) == ([keeps["Resource"]], "sqs:SendMessage")


def test_only_schedules_of_this_account_have_the_role_of_schedules(deploy: Deploy) -> None:
    [trusted] = deploy().of_type("AWS::IAM::Role")["SchedulesRole"]["AssumeRolePolicyDocument"]["Statement"]

    assert trusted == {
        "Effect": "Allow",
        "Principal": {"Service": ["scheduler.amazonaws.com"]},
        "Action": ["sts:AssumeRole"],
        "Condition": {"StringEquals": {"aws:SourceAccount": ACCOUNT}},
    }


def test_the_queue_of_failures_takes_what_comes_over_tls_only_and_so_it_stays(deploy: Deploy) -> None:
    stack = deploy()
    policy = stack.of_type("AWS::SQS::QueuePolicy")["EnqueueFailuresPolicy"]
    resource = stack.resources["EnqueueFailuresPolicy"]

    assert policy["Queues"] == [stack.resolved({"Ref": "EnqueueFailures"})]
    assert policy["PolicyDocument"]["Statement"] == [
        {
            "Sid": "OnlyOverTLS",
            "Effect": "Deny",
            "Principal": "*",
            "Action": "sqs:*",
            "Resource": stack.arn("EnqueueFailures"),
            "Condition": {"Bool": {"aws:SecureTransport": "false"}},
        }
    ]
    assert (resource["DeletionPolicy"], resource["UpdateReplacePolicy"]) == ("RetainExceptOnCreate", "Retain")


def test_no_resource_lets_others_start_an_executor(resources: dict[str, Any]) -> None:
    invoked = [r["Properties"]["FunctionName"] for r in resources.values() if r["Type"] == "AWS::Lambda::Permission"]

    assert {name["Ref"] for name in invoked} == {"EnqueueFunction"}


def test_these_are_all_policies_that_resources_have(resources: dict[str, Any]) -> None:
    found = {r["Type"] for r in resources.values() if r["Type"].endswith(("Policy", "Permission"))}

    assert found - {"AWS::IAM::Policy"} == {
        "AWS::S3::BucketPolicy",
        "AWS::SNS::TopicPolicy",
        "AWS::SQS::QueuePolicy",
        "AWS::Lambda::Permission",
    }


def test_the_archive_is_private_encrypted_over_tls_only_and_outlives_its_stack(resources: dict[str, Any]) -> None:
    bucket, policy = resources["ArchiveBucket"], resources["ArchiveBucketPolicy"]
    [statement] = policy["Properties"]["PolicyDocument"]["Statement"]

    assert (bucket["DeletionPolicy"], bucket["UpdateReplacePolicy"]) == ("RetainExceptOnCreate", "Retain")
    assert (policy["DeletionPolicy"], policy["UpdateReplacePolicy"]) == ("RetainExceptOnCreate", "Retain")
    assert set(bucket["Properties"]["PublicAccessBlockConfiguration"].values()) == {True}
    assert bucket["Properties"]["VersioningConfiguration"] == {"Status": "Enabled"}
    assert "ServerSideEncryptionConfiguration" in bucket["Properties"]["BucketEncryption"]
    assert bucket["Properties"]["OwnershipControls"] == {"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]}
    assert (statement["Effect"], statement["Principal"], statement["Action"]) == ("Deny", "*", "s3:*")
    assert statement["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}


def test_the_queue_of_retries_takes_nothing_that_is_not_over_tls(resources: dict[str, Any]) -> None:
    policy = resources["EnqueueRetriesPolicy"]
    [statement] = policy["Properties"]["PolicyDocument"]["Statement"]

    assert policy["Properties"]["Queues"] == [{"Ref": "EnqueueRetries"}]
    assert (policy["DeletionPolicy"], policy["UpdateReplacePolicy"]) == ("RetainExceptOnCreate", "Retain")
    assert (statement["Effect"], statement["Principal"], statement["Action"]) == ("Deny", "*", "sqs:*")
    assert statement["Resource"] == RETRIES
    assert statement["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}


def test_no_current_object_of_the_archive_ends_or_moves(resources: dict[str, Any]) -> None:
    [rule] = resources["ArchiveBucket"]["Properties"]["LifecycleConfiguration"]["Rules"]

    assert rule.keys() == {"Id", "Status", "NoncurrentVersionExpiration", "AbortIncompleteMultipartUpload"}
    assert rule["Status"] == "Enabled"


def test_a_role_does_not_name_the_function_it_is_of_nor_one_that_waits_for_it(resources: dict[str, Any]) -> None:
    """A circle, which the transform does not see: `SummonFromExecute` and `SummonFromReclaim` are there for that."""
    for name in ("ExecuteFunctionRole", "ReclaimFunctionRole"):
        assert "ExecuteFunction" not in set(texts(resources[name]))


def test_reclaim_refers_to_no_other_function(resources: dict[str, Any]) -> None:
    own = {name: r for name, r in resources.items() if name.startswith("Reclaim")}
    others = {"EnqueueFunction", "ExecuteFunction", "ArchiveFunction"}

    assert [name for name, resource in own.items() if others & set(texts(resource))] == []
