"""Steps in which something fails: a process, an event, a backlog that is too much for one executor, a webhook."""

from __future__ import annotations

import gzip
import json
import os
import signal
import time
from typing import Any, Final

from bson import json_util

from tools.deployed.using import SOON_SEC
from tools.deployed.waiting import wait_until
from tools.deployed.world import World

BACKLOG: Final = 72
"""Webhooks of two seconds each: about 24 s for three executors of two slots."""

EXECUTORS: Final = 3
SLOTS: Final = 2
CANONICAL: Final = json_util.JSONOptions(json_mode=json_util.JSONMode.CANONICAL, tz_aware=True)
POISON: Final[dict[str, Any]] = {"name": "noop", "payload": {"is": "poison"}, "timeout_sec": 9999}
"""An event that can never be stored: no executor has so much time."""


def check_death(world: World) -> str:
    """A task whose executor is killed runs again: the platform tells reclaim, which takes it back."""
    task_id = world.webhook("/hang")
    wait_until(lambda: world.receiver.find(task_id), within_sec=SOON_SEC, what="the first run")
    owner = world.find_task(task_id)["lease"]["owner"]
    killed_at = time.monotonic()
    os.kill(world.find_process(owner), signal.SIGKILL)
    wait_until(lambda: len(world.receiver.find(task_id)) > 1, within_sec=60, what="the second run")
    second = world.receiver.find(task_id)[1]
    task = world.wait_for_status(task_id, "done", within_sec=SOON_SEC)
    notes = [line["status"] for line in task["attempt_log"]]
    told = [line for line in world.read_log("ReclaimFunction") if line.get("message") == "attempt"]
    assert task_id in {line["task_id"] for line in told}, "reclaim says nothing of it"
    return f"second run {second.at - killed_at:.1f} s after the death ({', '.join(notes)})"


def check_backlog(world: World) -> str:
    """Executors with a standing backlog start others, and those that leave start successors: never too many."""
    before = _executions(world)
    url = f"{world.receiver.url}/slow"
    tasks = [{"name": "deliver_webhook", "payload": {"url": url}} for _ in range(BACKLOG)]
    answer = world.api.call("POST", "/tasks/batch", {"tasks": tasks})
    assert answer.status == 202, answer
    ids = [one["id"] for one in answer.body["tasks"]]
    done = {"payload.url": url, "status": "done"}
    at_once = [0]

    def are_done() -> bool:
        at_once.append(_count_executors(world))
        return world.server.tidemill["tasks"].count_documents(done) == BACKLOG

    wait_until(are_done, within_sec=90, what=f"{BACKLOG} tasks done")
    wait_until(lambda: not _count_executors(world), within_sec=SOON_SEC, what="the end of the executors")
    most = max(at_once)
    started = [source for request_id, source in _executions(world).items() if request_id not in before]
    by_executors = started.count("backlog")
    assert by_executors >= EXECUTORS, f"executors started only {by_executors} others: {started}"
    assert most <= EXECUTORS, f"{most} executors at once"
    runs = [len(world.receiver.find(one)) for one in ids]
    assert runs == [1] * BACKLOG, f"runs of each: {sorted(runs)}"
    return f"{BACKLOG} tasks, each once; {by_executors} executors started by executors, at most {most} at once"


def send_poison(world: World) -> float:
    """Send what can never be stored, which Lambda tries three times; return when it was."""
    sent_at = time.time()
    world.stack.send("EnqueueFunction", POISON)
    return sent_at


def check_poison(world: World, sent_at: float) -> str:
    """What could not be stored lies in the queue of failures."""
    url = world.stack.outputs["EnqueueFailuresUrl"]

    def receive() -> list[dict[str, Any]]:
        answer = world.stack.client("sqs").receive_message(
            QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=1, MessageSystemAttributeNames=["SentTimestamp"]
        )
        return [one for one in answer.get("Messages", []) if "poison" in one["Body"]]

    [message] = wait_until(receive, within_sec=240, what="the message in EnqueueFailures")
    body = json.loads(message["Body"])
    event = body.get("requestPayload", body)
    assert event["payload"] == POISON["payload"], body
    waited = int(message["Attributes"]["SentTimestamp"]) / 1000 - sent_at
    times = body.get("requestContext", {}).get("approximateInvokeCount", "several")
    return f"in EnqueueFailuresUrl with its event, after {waited:.0f} s and {times} tries"


def check_dead_letter(world: World) -> str:
    """A webhook that is refused for good becomes a dead letter, and an object in S3 that is the same."""
    task_id = world.webhook("/broken")
    world.wait_for_status(task_id, "failed", within_sec=SOON_SEC)
    report = world.stack.invoke("ArchiveFunction", {})
    [letter] = world.server.tidemill["tasks_dlq"].find({"payload.url": f"{world.receiver.url}/broken"})
    s3, bucket = world.stack.client("s3"), world.stack.outputs["ArchiveBucketName"]
    [key] = [one["Key"] for one in s3.list_objects_v2(Bucket=bucket)["Contents"] if task_id in one["Key"]]
    content = gzip.decompress(s3.get_object(Bucket=bucket, Key=key)["Body"].read())
    stored = json_util.loads(content, json_options=CANONICAL)["dead_letter"]
    marks = letter.keys() - stored.keys()
    assert stored == {name: letter[name] for name in stored}, key
    assert marks <= {"archived_at", "retain_from"}, marks
    assert report["exported"] >= 1, report
    return f"{key} is the letter in MongoDB, {len(stored)} fields"


def _count_executors(world: World) -> int:
    found = world.server.tidemill["control"].find_one({"_id": "executor_slots"}) or {}
    return sum(permit["n"] for permit in found.get("holds", ()))


def _executions(world: World) -> dict[str, str]:
    lines = world.read_log("ExecuteFunction")
    return {line["request_id"]: line["source"] for line in lines if line.get("message") == "executed"}
