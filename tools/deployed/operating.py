"""Steps of whoever operates a stack: parameters, commands, the secret, an update under load, the end."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any, Final

from botocore.exceptions import ClientError
from bson import ObjectId

from tools.deployed.api import Load
from tools.deployed.emulator import ROOT
from tools.deployed.processes import run_command
from tools.deployed.using import SOON_SEC
from tools.deployed.waiting import wait_until
from tools.deployed.world import World

RETENTION_DAYS: Final = 14
FUNCTION_TIMEOUT_SEC: Final = 75
"""Of the execute function: an executor claims while a longest task (50 s and a margin) fits, so for 15 s."""

COMMAND_WITHIN_SEC: Final = 60.0
SECRET: Final = "tidemill"
RETAINED: Final = {"AWS::S3::Bucket", "AWS::SQS::Queue"}
READERS: Final = {
    "AWS::ApiGateway::RestApi": ("apigateway", "get_rest_api", "restApiId"),
    "AWS::Lambda::Function": ("lambda", "get_function", "FunctionName"),
    "AWS::Logs::LogGroup": ("logs", "describe_log_groups", "logGroupNamePrefix"),
    "AWS::S3::Bucket": ("s3", "head_bucket", "Bucket"),
    "AWS::SQS::Queue": ("sqs", "get_queue_attributes", "QueueUrl"),
    "AWS::Scheduler::Schedule": ("scheduler", "get_schedule", "Name"),
}
"""Of what may be left of a stack: how to ask for it."""


def check_first_reclaim(world: World) -> str:
    """The first reclaim by hand makes the indexes, and shows that secret and network are right."""
    report = world.stack.invoke("ReclaimFunction", {})
    assert report["missing_indexes"] == [], report
    indexes = world.server.tidemill["tasks"].index_information()
    assert {"claim", "leases", "owners", "key", "retention"} <= indexes.keys(), indexes
    return f"{len(indexes) - 1} indexes on tasks"


def check_load(world: World, load: Load) -> str:
    """What was enqueued during an update is all there, and has run once."""
    assert load.errors == [], f"{len(load.errors)} errors to the caller: {load.errors[:3]}"
    assert load.task_ids, "nothing was enqueued meanwhile"
    tasks = world.server.tidemill["tasks"]
    wanted = [ObjectId(task_id) for task_id in load.task_ids]
    wait_until(
        lambda: tasks.count_documents({"_id": {"$in": wanted}, "status": "done"}) == len(wanted),
        within_sec=90,
        what=f"{len(wanted)} tasks done",
    )
    found = list(tasks.find({"payload.load": {"$exists": True}}))
    times = Counter(one["payload"]["load"] for one in found)
    lost = len(wanted) - len({one["_id"] for one in found} & set(wanted))
    twice = sum(count - 1 for count in times.values()) + sum(one["attempts"] > 1 for one in found)
    assert (lost, twice) == (0, 0), f"{lost} lost, {twice} twice"
    return f"{len(wanted)} enqueued: 0 errors, 0 lost, 0 twice; longest answer {load.longest_sec:.2f} s"


def check_parameters(world: World, before: int | None) -> str:
    """New parameters reach functions and database."""
    environment = _configuration(world, "ExecuteFunction")["Environment"]["Variables"]
    assert environment["CONCURRENCY"] == "2", environment["CONCURRENCY"]
    assert environment["RETENTION_DAYS"] == str(RETENTION_DAYS)
    world.stack.invoke("ReclaimFunction", {})
    wait_until(
        lambda: read_retention(world) == RETENTION_DAYS * 86400, within_sec=SOON_SEC, what="collMod of the TTL index"
    )
    return f"CONCURRENCY=2; TTL index of tasks: {before} s, now {read_retention(world)} s"


def read_retention(world: World) -> int | None:
    """Return after how many seconds MongoDB removes done tasks."""
    index = world.server.tidemill["tasks"].index_information().get("retention", {})
    seconds = index.get("expireAfterSeconds")
    return None if seconds is None else int(seconds)


def allow_loopback(world: World) -> str:
    """Let webhooks go to this machine, and have executors live for a shorter time: through Lambda's API."""
    variables = _configuration(world, "ExecuteFunction")["Environment"]["Variables"]
    client = world.stack.client("lambda")
    name = world.stack.function("ExecuteFunction")
    client.update_function_configuration(
        FunctionName=name,
        Timeout=FUNCTION_TIMEOUT_SEC,
        Environment={"Variables": variables | {"WEBHOOK_ALLOWED_NETWORKS": "127.0.0.0/8"}},
    )
    wait_until(
        lambda: _configuration(world, "ExecuteFunction")["LastUpdateStatus"] == "Successful",
        within_sec=SOON_SEC,
        what="the new configuration",
    )
    return f"WEBHOOK_ALLOWED_NETWORKS=127.0.0.0/8, timeout {FUNCTION_TIMEOUT_SEC} s"


def check_queue_command(world: World) -> str:
    """``tidemill ops queue ls`` shows the queues through the operate function."""
    output = _tidemill(world, "ops", "queue", "ls", "--function", world.stack.function("OperateFunction"))
    last = output.rstrip().splitlines()[-1]
    assert last.startswith("default"), output
    return " ".join(last.split())


def check_stats_command(world: World) -> str:
    """``tidemill ops stats`` shows what was done."""
    output = _tidemill(world, "ops", "stats", "--function", world.stack.function("OperateFunction"))
    lines = output.rstrip().splitlines()
    assert lines[0].startswith("retries of"), output
    assert lines[-1].startswith("default"), output
    return " ".join(lines[-1].split())


def check_letters_command(world: World) -> str:
    """``tidemill dlq ls`` shows why tasks failed."""
    output = _tidemill(world, "dlq", "ls", "--function", world.stack.function("OperateFunction"))
    [line] = [line for line in output.splitlines() if "deliver_webhook" in line]
    return " ".join(line.split())


def check_redrive(world: World) -> str:
    """A dead letter whose cause is gone is run again, and done."""
    world.receiver.is_cured.set()
    output = _tidemill(world, "dlq", "redrive", "--all", "--function", world.stack.function("OperateFunction"))
    [letter] = world.server.tidemill["tasks_dlq"].find({"payload.url": f"{world.receiver.url}/broken"})
    world.stack.invoke("ExecuteFunction", {"source": "tick"})
    task = world.wait_for_status(str(letter["_id"]["task"]), "done", within_sec=SOON_SEC)
    assert task["redrives"] == 1, task
    return output.splitlines()[0]


def check_rotation(world: World) -> str:
    """A secret that names another user of MongoDB is used without a deployment and without an error."""
    uri = world.server.add_user("second")
    world.stack.client("secretsmanager").put_secret_value(SecretId=SECRET, SecretString=uri)
    world.server.drop_user("first")
    task_id = world.api.enqueue("noop", {"rotated": True})
    world.wait_for_status(task_id, "done", within_sec=SOON_SEC)
    report = world.stack.invoke("ReclaimFunction", {})
    assert report["errors"] == 0, report
    return "user second for first: 202, done, reclaim without errors"


def delete_stack(world: World) -> str:
    """Deleting the stack keeps what the template says: the archive, and what could not be stored."""
    resources = world.stack.resources()
    objects = world.stack.client("s3").list_objects_v2(Bucket=world.stack.outputs["ArchiveBucketName"])["KeyCount"]
    world.stack.delete()
    kept = [logical for logical, (kind, name) in resources.items() if _is_there(world, kind, name)]
    gone = sum(kind in READERS for kind, _ in resources.values()) - len(kept)
    assert {"ArchiveBucket", "EnqueueFailures"} <= set(kept), kept
    assert {resources[logical][0] for logical in kept} <= RETAINED, f"left: {kept}"
    return f"kept: {', '.join(kept)}; {objects} object(s) in the bucket; gone: {gone} functions, schedules, APIs, logs"


def _is_there(world: World, kind: str, name: str) -> bool:
    if kind not in READERS:
        return False
    service, method, argument = READERS[kind]
    try:
        answer = getattr(world.stack.client(service), method)(**{argument: name})
    except ClientError:
        return False
    return bool(answer.get("logGroups", True))


def _configuration(world: World, function: str) -> Any:  # noqa: ANN401 - boto3's
    return world.stack.client("lambda").get_function_configuration(FunctionName=world.stack.function(function))


def _tidemill(world: World, *arguments: str) -> str:
    return run_command(
        [sys.executable, "-m", "tidemill", *arguments],
        env=world.emulator.aws_environment,
        cwd=ROOT,
        timeout_sec=COMMAND_WITHIN_SEC,
        is_quiet=True,
    )
