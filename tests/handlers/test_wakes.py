"""Enqueue wakes an executor for what is due, at no cost to MongoDB, little to the caller, and never in his way."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from pymongo.database import Database

from tests.handlers import wire
from tests.handlers.calls import ROOT, about, request, sample
from tests.handlers.conftest import EXECUTOR, Deployed
from tests.handlers.lambda_api import Clock, FakeLambda, lambda_server, refusal, wait_for_launch
from tidemill.aws import lambda_functions
from tidemill.bootstrap import deployment
from tidemill.clock import Uptime
from tidemill.testing import Mongod

NOOP = {"name": "noop", "payload": {}}
START = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("app", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
for event in json.loads(sys.stdin.read()):
    print(module.lambda_handler(event, None)["statusCode"])
"""


def messages(deployed: Deployed) -> list[str]:
    return [line["message"] for line in deployed.log()]


@pytest.mark.parametrize("event", ["enqueue_noop", "enqueue_webhook", "enqueue_keyed"])
def test_a_task_that_is_due_wakes_an_executor(deployed: Deployed, fake: FakeLambda, event: str) -> None:
    assert deployed.http(sample(event)).status == 202

    assert fake.started() == [(EXECUTOR, "wake")]
    assert [one["InvocationType"] for one in fake.invoked] == ["Event"]
    assert messages(deployed) == ["accepted"]


@pytest.mark.parametrize("event", ["enqueue_delayed", "enqueue_to_cancel", "enqueue_invalid"])
def test_what_is_not_due_or_refused_wakes_nobody(deployed: Deployed, fake: FakeLambda, event: str) -> None:
    deployed.http(sample(event))

    assert fake.invoked == []


def test_a_task_not_before_a_time_that_is_past_is_due(deployed: Deployed, fake: FakeLambda) -> None:
    deployed.post(NOOP | {"not_before": "2026-07-01T09:00:00Z"})

    assert len(fake.invoked) == 1


def test_a_task_that_is_there_already_wakes_nobody(deployed: Deployed, fake: FakeLambda) -> None:
    assert deployed.post(NOOP, key="a").status == 202
    fake.clock.seconds += 2
    assert deployed.post(NOOP, key="a").status == 200

    assert len(fake.invoked) == 1


def test_reading_and_cancelling_wake_nobody(deployed: Deployed, fake: FakeLambda) -> None:
    task_id = deployed.http(sample("enqueue_delayed")).id
    deployed.http(about(sample("get_task"), task_id))
    deployed.http(about(sample("cancel_task"), task_id))
    deployed.http({"rawPath": "/"})

    assert fake.invoked == []


def test_many_tasks_of_a_second_wake_one_executor(deployed: Deployed, fake: FakeLambda) -> None:
    for _ in range(5):
        deployed.post(NOOP)
    assert len(fake.invoked) == 1

    fake.clock.seconds += 1
    deployed.post(NOOP)
    assert len(fake.invoked) == 2


def test_where_executors_do_not_linger_every_task_wakes_one(deployed: Deployed, fake: FakeLambda) -> None:
    deployed.set(LINGER_SEC="0")
    for _ in range(3):
        deployed.post(NOOP)

    assert len(fake.invoked) == 3


def test_a_wake_costs_mongodb_nothing(deployed: Deployed, fake: FakeLambda) -> None:
    deployed.http(sample("enqueue_delayed"))
    deployed.commands()

    deployed.post(NOOP)

    assert len(fake.invoked) == 1
    assert [name for name, _ in deployed.commands()] == ["insert"]


@pytest.mark.parametrize("code", ["TooManyRequestsException", "AccessDeniedException", "ServiceException"])
def test_a_wake_that_is_refused_fails_no_enqueue_and_is_warned_of_once(
    deployed: Deployed, db: Database[Any], fake: FakeLambda, code: str
) -> None:
    fake.does = refusal(code)

    assert [deployed.post(NOOP).status for _ in range(5)] == [202] * 5

    assert db.tasks.count_documents({"status": "pending"}) == 5
    assert len(fake.invoked) == 1
    [warning] = [line for line in deployed.log() if line["message"] != "accepted"]
    assert (warning["message"], warning["level"]) == ("wake_failed", "WARNING")
    assert warning["reason"] == f"Lambda refused ({code})"
    assert "S3cr3t" not in deployed.stdout.getvalue()


def test_a_wake_that_hangs_is_left_behind(deployed: Deployed, fake: FakeLambda) -> None:
    release = threading.Event()
    patience: list[float] = []

    def give_up(_: threading.Event, seconds: float) -> bool:
        patience.append(seconds)
        return False

    fake.does = lambda: (release.wait(30), None)[1]
    deployment().waker = deployment().make_waker(fake.clock, wait=give_up)

    answer = deployed.post(NOOP)
    release.set()

    assert answer.status == 202
    [waited] = patience
    assert 0 < waited <= 0.3
    assert [(line["message"], line.get("reason")) for line in deployed.log()][1:] == [
        ("wake_failed", "no answer in time")
    ]


def test_a_wake_into_a_black_hole_is_given_up_by_itself(deployed: Deployed, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "none")
    with wire.silence() as address:
        lambda_functions.lambda_client.cache_clear()
        monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", f"http://{address}")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
        deployed.set(AWS_LAMBDA_FUNCTION_NAME="this", EXECUTE_FUNCTION=EXECUTOR, LINGER_SEC=None)

        assert deployed.post(NOOP).status == 202
        for thread in threading.enumerate():
            if thread.name == "tidemill-launch":
                thread.join(10)

    lambda_functions.lambda_client.cache_clear()
    assert messages(deployed) == ["accepted", "wake_failed"]


def test_a_wake_in_vain_is_made_up_for_by_any_later_request(deployed: Deployed, fake: FakeLambda) -> None:
    fake.does = refusal("TooManyRequestsException")
    task_id = deployed.post(NOOP).id
    fake.does = lambda: None
    fake.clock.seconds += 1

    assert deployed.get(task_id).status == 200

    assert fake.started() == [(EXECUTOR, "wake")] * 2
    assert deployed.get(task_id).status == 200
    assert len(fake.invoked) == 2


@pytest.mark.parametrize(
    "environment",
    [{"EXECUTE_FUNCTION": None}, {"AWS_SAM_LOCAL": "true"}, {"AWS_LAMBDA_FUNCTION_NAME": None}],
)
def test_nobody_is_woken_where_there_is_nobody_or_on_a_developers_machine(
    deployed: Deployed, fake: FakeLambda, environment: dict[str, str | None]
) -> None:
    deployed.set(**environment)

    assert deployed.post(NOOP).status == 202
    assert fake.invoked == []
    assert messages(deployed) == ["accepted"]


def test_without_settings_a_request_is_answered_and_nobody_woken(bare: Deployed) -> None:
    bare.set(AWS_LAMBDA_FUNCTION_NAME="this", CONCURRENCY="x")

    assert bare.post(NOOP).code == "misconfigured"
    assert bare.get("0" * 24).code == "misconfigured"


def started(*events: Any, at: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A container of enqueue that is started cold and gets *events*."""
    return subprocess.run(
        [sys.executable, "-c", START, str(ROOT / "functions/enqueue/app.py")],
        cwd=at,
        env={
            "PYTHONPATH": str(ROOT / "layers/core"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "AWS_LAMBDA_FUNCTION_NAME": "this",
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        | environment,
        input=json.dumps(events),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def credentials(mongod: Mongod, db: Database[Any]) -> dict[str, str]:
    return {
        "AWS_ACCESS_KEY_ID": "none",
        "AWS_SECRET_ACCESS_KEY": "none",
        "AWS_REGION": "eu-central-1",
        "AWS_DEFAULT_REGION": "eu-central-1",
        "EXECUTE_FUNCTION": EXECUTOR,
        "MONGODB_URI": mongod.uri,
        "MONGODB_DATABASE": db.name,
    }


@pytest.mark.usefixtures("deployed")
def test_a_container_is_ready_to_wake_before_its_first_request(tmp_path: Path, credentials: dict[str, str]) -> None:
    with lambda_server(204, 202) as server:
        ready = started(at=tmp_path, AWS_ENDPOINT_URL_LAMBDA=server.url, **credentials)
        assert (ready.returncode, ready.stderr) == (0, "")
        assert [kind for _, kind, _ in server.invoked] == ["DryRun"]

    with lambda_server(204, 202) as server:
        first = started(request(body=json.dumps(NOOP)), at=tmp_path, AWS_ENDPOINT_URL_LAMBDA=server.url, **credentials)

    assert first.stdout.endswith("202\n"), first.stderr
    assert [kind for _, kind, _ in server.invoked] == ["DryRun", "Event"]
    assert len(server.connections) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"AWS_SAM_LOCAL": "true"},
        {"EXECUTE_FUNCTION": ""},
        {"CONCURRENCY": "x"},
        {"AWS_REGION": None, "AWS_DEFAULT_REGION": None, "AWS_CONFIG_FILE": "/nonexistent"},
        {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent"},
    ],
)
def test_a_container_that_cannot_wake_anybody_starts_all_the_same(
    tmp_path: Path, credentials: dict[str, str], change: dict[str, str | None]
) -> None:
    environment = {name: value for name, value in (credentials | change).items() if value is not None}
    with lambda_server() as server:
        ended = started(at=tmp_path, AWS_ENDPOINT_URL_LAMBDA=server.url, **environment)

    assert (ended.returncode, ended.stderr, server.invoked) == (0, "", [])


def test_an_hour_in_which_the_container_was_frozen_is_no_quiet_second(deployed: Deployed, fake: FakeLambda) -> None:
    wall = Clock()
    deployment().waker = deployment().make_waker(Uptime(wall=wall, monotonic=fake.clock), wait=wait_for_launch)
    deployed.post(NOOP)
    wall.seconds += 3600  # the monotonic clock stood

    deployed.post(NOOP)

    assert len(fake.started()) == 2
