"""A stack at work: its functions, its database, its secret and its bucket, and what a caller and an operator do."""

from __future__ import annotations

import contextlib
import gzip
import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import boto3
from bson import ObjectId
from pymongo.database import Database

from tests.cloudformation.intrinsics import REGION
from tests.end_to_end.deployed.built import Deployment, Function, Schedule
from tests.end_to_end.deployed.cloud import Cloud
from tests.end_to_end.deployed.endpoint import OPERATOR, Call, Endpoint
from tests.end_to_end.deployed.permissions import allowed
from tests.end_to_end.deployed.queues import Queues
from tests.end_to_end.deployed.table import Table
from tests.waiting import eventually

EVENTS: Final = Path(__file__).parents[3] / "events"
HIDDEN: Final = "S3cr3t"
"""In payloads, credentials and addresses; in nothing that is logged."""


def sample(name: str) -> Any:
    """One of the events in ``events/``."""
    return json.loads((EVENTS / f"{name}.json").read_text())


def aws_client(endpoint: Endpoint, service: Any, *, caller: str = OPERATOR) -> Any:
    """A client for a service of AWS, as *caller*."""
    return boto3.client(
        service,
        endpoint_url=endpoint.url,
        region_name=REGION,
        aws_access_key_id=caller,
        aws_secret_access_key="any",
    )


@dataclass(slots=True, kw_only=True)
class StackAtWork:
    """What `deploy` in ``conftest.py`` gives a test.

    Attributes:
        table: Takes what invocations took.
        may_be_refused: Whether a function may ask AWS for what its role does not allow.
    """

    cloud: Cloud
    endpoint: Endpoint
    db: Database[dict[str, Any]]
    secret: str
    table: Table
    may_be_refused: bool = False
    bucket: str = field(init=False)
    queues: Queues = field(init=False)

    def __post_init__(self) -> None:
        self.bucket = self.cloud.deployment.stack.name_of("ArchiveBucket")
        self.client("s3").create_bucket(Bucket=self.bucket, CreateBucketConfiguration={"LocationConstraint": REGION})
        self.queues = Queues(self.cloud.deployment, self.client)
        self.cloud.queue = self.queues.send

    def client(self, service: str, *, function: str | None = None) -> Any:
        """A client of AWS: the operator's, or as the role of a function."""
        caller = OPERATOR if function is None else f"{self.cloud.deployment.stack.name}.{function}"
        return aws_client(self.endpoint, service, caller=caller)

    def secret_value(self) -> str:
        """Return what is in the secret."""
        value: str = self.client("secretsmanager").get_secret_value(SecretId=self.secret)["SecretString"]
        return value

    def keep_secret(self, value: str) -> None:
        """Change what is in the secret."""
        self.client("secretsmanager").put_secret_value(SecretId=self.secret, SecretString=value)

    def start(self) -> StackAtWork:
        """Do what docs/start/deploy.md says after the deployment; from the first tick on, names are known."""
        assert self.invoke("ReclaimFunction")["missing_indexes"] == []
        told = self.cloud.tick("ExecuteFunction").result(60)
        assert told.error is None, told.content
        return self

    def invoke(self, function: str, event: Any = None) -> Any:
        """Invoke a function, which succeeds, and return what it returns."""
        answer = self.cloud.invoke(function, event)
        assert answer.error is None, answer.content
        value = answer.value
        assert "error" not in value, value
        assert value.get("statusCode", HTTPStatus.OK) < HTTPStatus.BAD_REQUEST, value
        return value

    def recurring(self) -> Schedule:
        """Return the example of a recurring task."""
        [schedule] = [one for one in self.cloud.deployment.schedules.values() if "RecurringExample" in one.logical]
        return schedule

    def give_up(self, schedule: Schedule, **attributes: str) -> None:
        """Do what EventBridge Scheduler does with a time that it could not deliver, as the role of the schedule."""
        assert schedule.aside is not None
        assert allowed(self.cloud.deployment.statements[schedule.role], "sqs:SendMessage", schedule.aside)
        self.queues.send(schedule.aside, schedule.payload, attributes)

    def polled(self, *, visibility_sec: int, max_receives: int = 288) -> AbstractContextManager[None]:
        """Have Lambda read the stack's queues meanwhile; what is brought again comes after *visibility_sec*."""
        return self.queues.polled(self.cloud.invoke, visibility_sec=visibility_sec, max_receives=max_receives)

    def http(self, name: str, body: Mapping[str, Any] | None = None, *, task_id: str | None = None) -> tuple[int, Any]:
        """Send one of the requests in ``events/``; return status and body."""
        event = sample(name)
        if body is not None:
            event["body"] = json.dumps(body)
        if task_id is not None:
            event = json.loads(json.dumps(event).replace("0" * 24, task_id))
        answer = self.cloud.http(event)
        return answer["statusCode"], json.loads(answer["body"])

    def post(self, name: str, payload: Mapping[str, Any] | None = None, **fields: Any) -> str:
        """Enqueue a task over HTTP and return its id."""
        status, told = self.http("enqueue_noop", {"name": name, "payload": payload or {}, **fields})
        assert status == 202, told
        task_id: str = told["id"]
        return task_id

    def task(self, task_id: str) -> dict[str, Any]:
        """Return the document of a task, or nothing of one that is no more."""
        return self.db.tasks.find_one({"_id": ObjectId(task_id)}) or {}

    def ends(self, task_id: str, *, status: str = "done", within: float = 30.0) -> dict[str, Any]:
        """Wait until a task has that status."""
        ended = eventually(lambda: self.task(task_id).get("status") == status, within=within)
        assert ended, (self.task(task_id), self.log())
        return self.task(task_id)

    def objects(self) -> dict[str, Any]:
        """Return the dead letters in the archive bucket, by key."""
        s3 = self.client("s3")
        keys = [one["Key"] for one in s3.list_objects_v2(Bucket=self.bucket).get("Contents", ())]
        bodies = {key: s3.get_object(Bucket=self.bucket, Key=key)["Body"].read() for key in keys}
        return {key: json.loads(gzip.decompress(body))["dead_letter"] for key, body in bodies.items()}

    def calls(self, action: str, *, function: str | None = None) -> list[Call]:
        """Return what functions of this stack have asked of AWS."""
        caller = f"{self.cloud.deployment.stack.name}.{function or ''}"
        return [one for one in self.endpoint.calls if one.action == action and one.caller.startswith(caller)]

    def log(self, function: str = "") -> list[dict[str, Any]]:
        """Return the lines of the log, which are JSON, strictly read; an empty one is before where a task may print."""
        return list(_documents(self.cloud.log(function)))

    def said(self, message: str, function: str = "") -> list[dict[str, Any]]:
        """Return the lines of the log with that message, in the order of time."""
        found = [line for line in self.log(function) if line.get("message") == message]
        return sorted(found, key=lambda line: str(line["timestamp"]))

    def metrics(self, name: str) -> list[float]:
        """Return the values of a metric, in the order in which they were printed."""
        found: list[float] = []
        for line in self.log():
            if "_aws" in line and name in line:
                value = line[name]
                found.extend(value if isinstance(value, list) else [value])
        return found

    def check(self) -> None:
        """Nothing was asked for in vain, nothing hidden was written, and each line is JSON."""
        assert self.cloud.undelivered == []
        name = self.cloud.deployment.stack.name
        refused = [one for one in self.endpoint.calls if one.caller.startswith(f"{name}.") and not one.is_allowed]
        assert self.may_be_refused or refused == []
        assert HIDDEN not in self.cloud.log()
        self.log()
        assert eventually(lambda: not _alive(f"AWS_ACCESS_KEY_ID={name}.")), "processes of containers are left"


def changed(
    deployment: Deployment,
    *,
    timeouts: Mapping[str, float],
    variables: Mapping[str, Mapping[str, str]],
    allows_recursion: bool = True,
) -> Deployment:
    """Return the deployment with what no parameter can choose chosen otherwise, by functions' logical ids.

    Without *allows_recursion* it is as if the template had no ``RecursiveLoop``.
    """

    def one(function: Function) -> Function:
        return replace(
            function,
            timeout=timeouts.get(function.logical, function.timeout),
            variables={**function.variables, **variables.get(function.logical, {})},
            allows_recursion=function.allows_recursion and allows_recursion,
        )

    return replace(deployment, functions={logical: one(each) for logical, each in deployment.functions.items()})


def architecture() -> str:
    """Return what the build for this machine is called."""
    import platform  # noqa: PLC0415

    return "arm64" if platform.machine() in {"aarch64", "arm64"} else "x86_64"


def _alive(variable: str) -> list[str]:
    """Return the processes whose environment begins a variable so; Linux tells."""
    found = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has ended by now, or is somebody else's
            if variable.encode() in environment.read_bytes():
                found.append(environment.parent.name)
    return found


def _documents(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        if line:
            yield json.loads(line, parse_constant=_no_json)


def _no_json(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")
