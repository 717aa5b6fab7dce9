"""From a request to its end: what a caller, a tick, a death and an operator set off, one function after the other."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

from jsonschema_rs import Draft202012Validator

from tests.end_to_end.deployed.conftest import Deploy
from tests.end_to_end.deployed.stack import EVENTS, StackAtWork, sample
from tests.waiting import eventually

LOOPBACK = {"ExecuteFunction": {"WEBHOOK_ALLOWED_NETWORKS": "127.0.0.0/8"}}


@contextmanager
def receiver(*answers: tuple[int, dict[str, str]]) -> Iterator[tuple[str, list[Any]]]:
    """A server that takes webhooks: its URL, and the bodies it got. The answers to come are statuses and headers."""
    got: list[Any] = []
    left = list(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            status, headers = left.pop(0)
            self.send_response(status)
            for name, value in {"Content-Length": "0", **headers}.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/hook", got
    finally:
        server.shutdown()
        server.server_close()


def shape(value: object) -> object:
    """The names in a document, without its values."""
    return {name: shape(one) for name, one in value.items()} if isinstance(value, dict) else None


def test_a_task_that_comes_by_http_runs_at_once(stack: StackAtWork) -> None:
    task_id = stack.post("noop")

    assert stack.ends(task_id)["attempts"] == 1
    assert stack.http("get_task", task_id=task_id)[1]["status"] == "done"
    stack.cloud.calm()
    assert [line["done"] for line in stack.said("executed") if line["source"] == "wake"] == [1]


def test_a_webhook_that_is_turned_away_is_delivered_once_the_receiver_wants_it(deploy: Deploy) -> None:
    stack = deploy(variables=LOOPBACK).start()
    body = {"event": "order.paid", "card": "S3cr3t"}

    with receiver((503, {"Retry-After": "1"}), (204, {})) as (url, got):
        task = stack.ends(stack.post("deliver_webhook", {"url": url, "body": body}))

    assert got == [body, body]
    assert [one["status"] for one in task["attempt_log"]] == ["failed", "succeeded"]
    stack.cloud.calm()
    [line] = stack.said("attempt")[:1]
    assert (line["code"], line["task_id"]) == ("http_503", str(task["_id"]))


def test_what_killed_an_executor_dies_alone_and_comes_back_from_the_dead_letters(
    stack: StackAtWork, tmp_path: Path
) -> None:
    cure, until = tmp_path / "cure", tmp_path / "until"
    killer = {"name": "dies", "payload": {"cure": str(cure), "card": "S3cr3t"}}
    neighbour = {"name": "waits", "payload": {"until": str(until)}}
    status, told = stack.http("enqueue_batch", {"tasks": [neighbour, killer]})
    assert status == 202
    neighbour_id, killer_id = (one["id"] for one in told["tasks"])

    # Lambda tells reclaim, which gives back what the dead executor held and launches another one.
    stack.ends(killer_id, status="failed")
    until.touch()
    assert stack.ends(neighbour_id)["attempts"] == 1
    stack.cloud.calm()
    [death] = [one for one in stack.cloud.reports if one.how == "exit"]
    [taken_back] = [one for one in stack.said("reclaimed") if one.get("dead_owner") == death.request_id]
    assert taken_back["reclaimed"] == 2
    assert [line["source"] for line in stack.said("executed")][-1] == "backlog"

    # Archived and exported,
    assert stack.cloud.tick("ArchiveFunction").result(60).value["exported"] == 1
    [(key, letter)] = stack.objects().items()
    assert (key.startswith("dlq/"), key.endswith(f"/{killer_id}-0.json.gz")) == (True, True)
    assert (letter["reason"], letter["payload"]) == ("worker_lost", killer["payload"])

    # looked at, and sent back.
    [group] = stack.invoke("OperateFunction", sample("operate_dlq_groups"))["groups"]
    assert (group["sample"]["name"], group["dead_letters"]) == ("dies", 1)
    redrive = sample("operate_dlq_redrive")
    assert stack.invoke("OperateFunction", redrive)["redriven"] == 1
    cure.touch()
    assert stack.invoke("OperateFunction", redrive | {"dry_run": False})["redriven"] == 1
    stack.cloud.tick("ExecuteFunction")

    assert stack.ends(killer_id)["redrives"] == 1
    assert stack.cloud.tick("ArchiveFunction").result(60).value["moved"] == 0


def test_a_time_of_a_schedule_that_is_delivered_twice_enqueues_once(stack: StackAtWork) -> None:
    schedule = stack.recurring()
    times = {"schedule_arn": "arn:aws:scheduler:eu-central-1:123456789012:schedule/default/daily"}

    for _ in range(2):
        assert stack.cloud.fire(schedule, **times, scheduled_time="2026-07-01T06:00:00Z").result(60).error is None

    [task] = stack.db.tasks.find()
    stack.ends(str(task["_id"]))


def test_executors_at_work_at_the_same_time_are_as_many_as_there_are_seats(deploy: Deploy, tmp_path: Path) -> None:
    stack = deploy(MaxExecutors="2", Concurrency="1").start()
    until = tmp_path / "until"
    waiting = [{"name": "waits", "payload": {"until": str(until)}} for _ in range(4)]
    status, told = stack.http("enqueue_batch", {"tasks": waiting})
    assert status == 202
    assert eventually(lambda: stack.db.tasks.count_documents({"status": "processing"}) == 2, within=30)

    turned_away = stack.cloud.tick("ExecuteFunction").result(60)
    assert stack.db.tasks.count_documents({"status": "processing"}) == 2
    until.touch()
    pids = {stack.ends(one["id"])["result"] for one in told["tasks"]}

    [left_out] = [one.pid for one in stack.cloud.reports if one.request_id == turned_away.request_id]
    assert turned_away.value["skipped"] == "executor_slots"
    assert len(pids) == 2
    assert left_out not in pids


def test_the_stand_in_for_lambda_tells_of_a_death_as_the_schema_and_the_sample_do(stack: StackAtWork) -> None:
    stack.post("stubborn")
    stack.cloud.calm()

    [(destination, record)] = stack.cloud.handed_over
    assert destination == stack.cloud.function("ReclaimFunction").arn
    schema = json.loads((EVENTS / "schemas/failure.json").read_text())
    Draft202012Validator(schema, validate_formats=True).validate(record)
    assert shape(record) == shape(sample("execute_failed"))
