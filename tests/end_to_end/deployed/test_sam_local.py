"""The sample events as `sam local invoke` would run them: what was built, in the environment as SAM resolves it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pytest
from pymongo import MongoClient

from tests.end_to_end.deployed import built
from tests.end_to_end.deployed.chains import new_trace
from tests.end_to_end.deployed.conftest import ANY_SECRET, BUILD, PYTHON, ROOT
from tests.end_to_end.deployed.container import Container, Ended, Invocation
from tests.end_to_end.deployed.stack import EVENTS, sample
from tidemill.testing import Mongod

SAM_PYTHON: Final = ROOT / "build/sam-venv/bin/python"
FUNCTION_OF: Final = {
    name: f"{function.capitalize()}Function"
    for name, function in re.findall(r"^\| `(\w+)\.json` \| (\w+) \|", (EVENTS / "README.md").read_text(), re.MULTILINE)
}
MESSAGES: Final = ("retries", "retries_schedule")
TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z")
STATUS: Final = {"enqueue_invalid": 422, "get_queue": 403, "enqueue_direct": None, "enqueue_recurring": None}
"""What else than 202 a POST is answered with; nothing where the function is invoked directly."""


def resolve(*variables: str) -> dict[str, Any]:
    """Return the environment and the layers of each function, as SAM's own code resolves the built template."""
    script = Path(__file__).with_name("sam_local.py")
    command = [str(SAM_PYTHON), str(script), str(BUILD / "template.yaml"), *variables]
    nobody = {"PATH": os.environ["PATH"], "AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": os.devnull}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=nobody)
    assert done.returncode == 0, done.stderr
    resolved: dict[str, Any] = json.loads(done.stdout)
    return resolved


class SamLocal:
    """Runs events in containers that have the environment of `sam local`, each function in one of its own."""

    def __init__(
        self, resolved: Mapping[str, Any], template: Mapping[str, Any], *, code: Path, scratch: Path, name: str
    ) -> None:
        self._resolved = resolved
        self._functions = built.read(template, {"MongoSecretArn": ANY_SECRET}, name="local").functions
        self._code = code
        self._scratch = scratch
        self._name = name
        self._containers: dict[str, Container] = {}

    def invoke(self, function: str, event: Any) -> Ended:
        """Do what `sam local invoke` does with *event*, but without Docker."""
        container = self._containers.get(function) or self._start(function)
        self._containers[function] = container
        return container.run(
            Invocation(
                request_id=str(uuid.uuid4()),
                arn=self._functions[function].arn,
                payload=json.dumps(event).encode(),
                timeout=self._functions[function].timeout,
                trace=new_trace(),
            )
        )

    def log(self, function: str) -> str:
        """Return what the function wrote."""
        return self._containers[function].output.read_text()

    def close(self) -> None:
        """End the containers."""
        for container in self._containers.values():
            container.stop()

    def _start(self, function: str) -> Container:
        task = self._code / "task" / function
        image = {
            "PATH": os.defpath,
            "PYTHONPATH": f"{task}:{self._code / 'opt' / function / 'python'}",
            "LAMBDA_TASK_ROOT": str(task),
            "_HANDLER": self._functions[function].handler,
            "TMPDIR": str(self._scratch),
        }
        return Container(
            [str(PYTHON), "-m", "awslambdaric", self._functions[function].handler],
            env=image | self._resolved[function]["environment"],
            cwd=task,
            output=self._scratch / f"{self._name}-{function}.log",
        )


@pytest.fixture(scope="module")
def sam_local(
    mongod: Mongod, client: MongoClient[Any], template: Mapping[str, Any], code: Path, scratch: Path
) -> Iterator[SamLocal]:
    """A machine on which an executor has registered the functions."""
    name = f"local_{uuid.uuid4().hex[:8]}"
    resolved = resolve(f"MONGODB_URI={mongod.uri}", f"MONGODB_DATABASE={name}")
    made = SamLocal(resolved, template, code=code, scratch=scratch, name=name)
    assert made.invoke("ExecuteFunction", sample("tick")).how == "response", made.log("ExecuteFunction")
    yield made
    made.close()
    client.drop_database(name)


def test_every_event_is_for_a_function_there_is() -> None:
    assert FUNCTION_OF.keys() == {path.stem for path in EVENTS.glob("*.json")}


@pytest.mark.parametrize("name", [name for name, function in FUNCTION_OF.items() if function != "EnqueueFunction"])
def test_an_event_is_carried_out(sam_local: SamLocal, name: str) -> None:
    ended = sam_local.invoke(FUNCTION_OF[name], sample(name))

    assert ended.how == "response", ended.content
    refused = json.loads(ended.content).get("error", {}).get("code")
    assert refused == ("not_found" if name == "operate_task_explain" else None)  # its id is to be replaced
    assert "ARCHIVE_BUCKET" not in sam_local.log(FUNCTION_OF[name])


REQUESTS = [name for name, function in FUNCTION_OF.items() if function == "EnqueueFunction" and name not in MESSAGES]


@pytest.mark.parametrize("name", REQUESTS)
def test_an_event_is_answered(sam_local: SamLocal, name: str) -> None:
    ended = sam_local.invoke("EnqueueFunction", sample(name))

    assert ended.how == "response", ended.content
    expected = 404 if name in {"get_task", "cancel_task"} else STATUS.get(name, 202)
    assert json.loads(ended.content).get("statusCode") == expected


@pytest.mark.parametrize("name", MESSAGES)
def test_messages_of_the_queue_of_retries_are_stored_if_they_are_of_today(sam_local: SamLocal, name: str) -> None:
    today = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")

    ended = sam_local.invoke("EnqueueFunction", json.loads(TIME.sub(today, json.dumps(sample(name)))))

    assert json.loads(ended.content) == {"batchItemFailures": []}


@pytest.mark.parametrize("name", MESSAGES)
def test_as_they_lie_there_they_are_too_old_and_the_log_says_so(sam_local: SamLocal, name: str) -> None:
    ended = sam_local.invoke("EnqueueFunction", sample(name))

    assert len(json.loads(ended.content)["batchItemFailures"]) == len(sample(name)["Records"])
    assert '"code":"too_old"' in sam_local.log("EnqueueFunction")


def test_dead_letters_stay_in_mongodb_for_there_is_no_bucket(sam_local: SamLocal) -> None:
    ended = sam_local.invoke("ArchiveFunction", sample("archive"))

    assert json.loads(ended.content).items() >= {"exported": 0, "export_error": None}.items()


def test_without_a_uri_the_missing_variable_is_named(template: Mapping[str, Any], code: Path, scratch: Path) -> None:
    bare = SamLocal(resolve(), template, code=code, scratch=scratch, name="bare")
    try:
        ended = bare.invoke("ReclaimFunction", sample("reclaim"))
    finally:
        bare.close()

    assert ended.how == "error"
    assert json.loads(ended.content)["errorMessage"] == "MONGODB_URI is missing: set it, or MONGODB_SECRET_ARN"


def test_sam_sets_no_variable_that_the_template_does_not_declare_and_resolves_the_layers() -> None:
    resolved = resolve("MONGODB_URI=x", "ANOTHER=y")

    assert {name: one["layers"] for name, one in resolved.items()} == {
        "EnqueueFunction": ["CoreLayer"],
        "ExecuteFunction": ["CoreLayer", "TasksLayer"],
        "ReclaimFunction": ["CoreLayer"],
        "ArchiveFunction": ["CoreLayer"],
        "OperateFunction": ["CoreLayer"],
    }
    assert all("ANOTHER" not in one["environment"] for one in resolved.values())
    assert resolved["OperateFunction"]["environment"]["ARCHIVE_BUCKET"] == "ArchiveBucket"  # what all this is about
