"""What the roles allow is what the functions need, and no more: AWS here refuses everything else."""

from __future__ import annotations

import pytest
from botocore.exceptions import ClientError

from tests.end_to_end.deployed.conftest import Deploy
from tests.end_to_end.deployed.stack import StackAtWork


@pytest.mark.parametrize("function", ["ArchiveFunction", "OperateFunction"])
def test_only_dead_letters_are_put_into_the_bucket_and_nothing_is_taken_out(deploy: Deploy, function: str) -> None:
    stack = deploy()
    stack.may_be_refused = True
    s3 = stack.client("s3", function=function)

    s3.put_object(Bucket=stack.bucket, Key="dlq/2026/07/01/x.json.gz", Body=b"")
    for method, arguments in (
        ("put_object", {"Key": "other", "Body": b""}),
        ("get_object", {"Key": "dlq/2026/07/01/x.json.gz"}),
        ("delete_object", {"Key": "dlq/2026/07/01/x.json.gz"}),
        ("list_objects_v2", {}),
    ):
        with pytest.raises(ClientError, match="AccessDenied"):
            getattr(s3, method)(Bucket=stack.bucket, **arguments)


def test_those_that_summon_may_invoke_executors_and_the_others_nothing(deploy: Deploy) -> None:
    stack = deploy()
    stack.may_be_refused = True
    names = {logical: one.name for logical, one in stack.cloud.deployment.functions.items()}

    def may_invoke(caller: str, function: str) -> bool:
        try:
            stack.client("lambda", function=caller).invoke(FunctionName=function, InvocationType="DryRun")
        except ClientError as error:
            return error.response["Error"]["Code"] != "AccessDeniedException"
        return True

    allowed = {(caller, called) for caller in names for called in names if may_invoke(caller, names[called])}

    assert allowed == {
        ("EnqueueFunction", "ExecuteFunction"),
        ("ExecuteFunction", "ExecuteFunction"),
        ("ReclaimFunction", "ExecuteFunction"),
        ("ExecuteFunction", "ReclaimFunction"),  # how Lambda hands over its death
    }


def test_no_function_reads_another_secret(deploy: Deploy) -> None:
    one, other = deploy(), deploy()
    one.may_be_refused = True

    for function in one.cloud.deployment.functions:
        secrets = one.client("secretsmanager", function=function)
        secrets.get_secret_value(SecretId=one.secret)
        with pytest.raises(ClientError, match="AccessDenied"):
            secrets.get_secret_value(SecretId=other.secret)


def test_an_enqueue_that_may_not_wake_anybody_says_so_and_takes_the_task_in(deploy: Deploy) -> None:
    stack = deploy().start()
    stack.may_be_refused = True
    function = stack.cloud.function("EnqueueFunction")
    statements = stack.cloud.deployment.statements[function.role]
    statements[:] = [one for one in statements if "lambda:InvokeFunction" not in one.actions]

    task_id = stack.post("noop")

    assert [line["reason"] for line in stack.said("wake_failed")] == ["Lambda refused (AccessDeniedException)"]
    assert stack.task(task_id)["status"] == "pending"


def test_a_stack_refers_to_its_own_functions_only(deploy: Deploy) -> None:
    one, other = deploy(), deploy()

    def arns(stack: StackAtWork) -> set[str]:
        return {function.arn for function in stack.cloud.deployment.functions.values()}

    assert arns(one) & arns(other) == set()
