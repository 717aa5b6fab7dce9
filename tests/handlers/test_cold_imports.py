"""A function's first moment: its folder and its layers on the path, and nothing else to rely on. F95, F96."""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws

from tests.handlers import calls
from tests.handlers.calls import FUNCTIONS, ROOT
from tests.handlers.conftest import Deployed
from tidemill.testing import Mongod

COLD = """
import errno, json, os, sys

def refuse(event, arguments):
    if event == "open":
        path, _, flags = arguments
        writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if not writes or path == os.devnull:
            return
    elif event not in {"os.mkdir", "os.remove", "os.rename", "os.link", "os.symlink", "os.truncate"}:
        if event in {"socket.connect", "socket.getaddrinfo", "subprocess.Popen", "os.fork", "os.posix_spawn"}:
            tried.append(event)
        return
    if ".pyc" not in str(arguments[0]) and "__pycache__" not in str(arguments[0]):
        tried.append(f"{event} {arguments[0]}")
    raise OSError(errno.EROFS, "Read-only file system", arguments[0])

tried = []
sys.addaudithook(refuse)
*ours, installed = sys.argv[1:]
sys.path[:] = [*ours, *sys.path, installed]
import app
told = {"handler": callable(app.lambda_handler), "tried": list(tried), "modules": sorted(sys.modules)}
told["core"] = sys.modules["tidemill"].__file__
print(json.dumps(told))
"""
LEFT_AT_HOME = {"tidemill.cli", "tidemill.simulation", "tidemill.testing", "demo", "tests", "_pytest", "boto3"}
IN_LAMBDA = {
    "AWS_LAMBDA_FUNCTION_NAME": "tidemill-EnqueueFunction",
    "EXECUTE_FUNCTION": "tidemill-ExecuteFunction",
    "AWS_EC2_METADATA_DISABLED": "true",  # where no machine of EC2 is, asking for its credentials takes seconds
    "MONGODB_SECRET_ARN": "arn:aws:secretsmanager:eu-central-1:123456789012:secret:tidemill-AbCdEf",
}


def imported(function: str, *layers: str, **environment: str) -> dict[str, Any]:
    """What became of importing a handler in a new process: in ``/``, unable to write, without HOME or site packages."""
    folders = [ROOT / "functions" / function, *(ROOT / "layers" / layer for layer in layers)]
    ended = subprocess.run(
        [sys.executable, "-I", "-S", "-c", COLD, *map(str, folders), sysconfig.get_path("purelib")],
        cwd="/",
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    told: dict[str, Any] = json.loads(ended.stdout)
    return told


@pytest.mark.parametrize("function", FUNCTIONS)
def test_a_handler_is_imported_from_its_layers_and_changes_nothing(function: str) -> None:  # F95, F96
    told = imported(function, "core", *(["tasks"] if function == "execute" else []))

    assert told["handler"]
    assert told["tried"] == []
    assert Path(told["core"]) == ROOT / "layers/core/tidemill/__init__.py"
    assert LEFT_AT_HOME.intersection(told["modules"]) == set()


def test_a_container_that_knows_no_region_and_no_credentials_starts_all_the_same() -> None:  # F96
    told = imported("enqueue", "core", **IN_LAMBDA)

    assert told["handler"]
    assert told["tried"] == []
    assert "boto3" in told["modules"]  # for the first wake, which would have no time for it


def test_what_aws_answers_later_counts_though_the_handlers_were_there_first(  # F96
    bare: Deployed, mongod: Mongod, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = calls.app("operate")
    for name, value in {"ACCESS_KEY_ID": "x", "SECRET_ACCESS_KEY": "x", "DEFAULT_REGION": "eu-central-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)

    with mock_aws():
        made = boto3.client("secretsmanager").create_secret(Name="tidemill", SecretString=mongod.uri)
        bare.set(MONGODB_SECRET_ARN=made["ARN"])
        answer = handler.lambda_handler({"op": "queue.list"}, None)

    assert "error" not in answer
