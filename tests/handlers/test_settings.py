"""What the functions need of their environment, and what they say where it is missing or wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pymongo.database import Database

from tests.handlers.calls import FUNCTIONS, ROOT, sample
from tests.handlers.conftest import Deployed
from tidemill import SettingsError
from tidemill.aws import lambda_functions
from tidemill.bootstrap import deployment
from tidemill.errors import UnsupportedServerError
from tidemill.testing import FakeContext, Mongod

NOOP = {"name": "noop", "payload": {}}
OTHERS = tuple(one for one in FUNCTIONS if one not in {"enqueue", "operate"})
IMPORT_ALL = """
import importlib.util, sys
for path in sys.argv[1:]:
    spec = importlib.util.spec_from_file_location("app", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.lambda_handler
assert "boto3" not in sys.modules
"""
POST = (
    IMPORT_ALL
    + """
import io, json, logging
logging.basicConfig(level=logging.DEBUG, stream=sys.stdout)
event = json.loads(sys.stdin.read())
print(module.lambda_handler(event, None)["statusCode"])
"""
)


def run(
    code: str, *functions: str, at: Path, event: Any = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run *code* in a process that has these variables only, the layers on its path, and *at* to work in."""
    path = f"{ROOT / 'layers/core'}:{ROOT / 'layers/tasks'}"
    return subprocess.run(
        [sys.executable, "-c", code, *(str(ROOT / "functions" / f / "app.py") for f in functions)],
        cwd=at,
        env={"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"} | environment,
        input=json.dumps(event),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_handlers_are_imported_without_any_environment(tmp_path: Path) -> None:  # F96
    ended = run(IMPORT_ALL, *FUNCTIONS, at=tmp_path, PYTHONWARNINGS="error")

    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.usefixtures("deployed")
def test_no_switch_of_powertools_prints_an_event(tmp_path: Path, mongod: Mongod) -> None:
    switches = dict.fromkeys(("POWERTOOLS_DEV", "POWERTOOLS_LOGGER_LOG_EVENT"), "true")
    levels = {"POWERTOOLS_LOG_LEVEL": "DEBUG", "AWS_LAMBDA_LOG_LEVEL": "DEBUG"}
    where = {"MONGODB_URI": mongod.uri, "MONGODB_DATABASE": deployment().settings.database}

    ended = run(POST, "enqueue", at=tmp_path, event=sample("enqueue_webhook"), **switches, **levels, **where)

    assert ended.stdout.endswith("202\n"), ended.stderr
    assert "accepted" in ended.stdout
    for secret in ("order.paid", "example-value-of-the-api-key", "203.0.113.10"):
        assert secret not in ended.stdout + ended.stderr


def test_enqueue_says_which_variable_is_missing(bare: Deployed) -> None:  # F95
    answer = bare.post(NOOP)

    assert (answer.status, answer.code, answer.headers["Retry-After"]) == (503, "misconfigured", "5")
    [line] = bare.log()
    assert (line["level"], line["reason"]) == ("ERROR", "MONGODB_URI is missing: set it, or MONGODB_SECRET_ARN")


@pytest.mark.parametrize("function", OTHERS)
@pytest.mark.parametrize("empty", [None, "", " "])
def test_the_other_functions_say_which_variable_is_missing(  # F95
    bare: Deployed, function: str, empty: str | None
) -> None:
    bare.set(MONGODB_URI=empty, MONGODB_SECRET_ARN=empty)

    with pytest.raises(SettingsError, match=r"^MONGODB_URI is missing: set it, or MONGODB_SECRET_ARN$"):
        bare.invoke(function)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("TASK_TIMEOUT_SEC", "abc"),
        ("TASK_TIMEOUT_SEC", "51"),
        ("MAX_TASK_TIMEOUT_SEC", "0"),
        ("CONCURRENCY", "-5"),
        ("BATCH_SIZE", "1000000"),
        ("RETRY_SHARE", "1.1"),
        ("RETENTION_DAYS", "a week"),
        ("MONGODB_DATABASE", "a.b"),
    ],
)
def test_a_malformed_variable_is_named_without_its_value(bare: Deployed, variable: str, value: str) -> None:
    bare.set(MONGODB_URI="mongodb://127.0.0.1:1/", **{variable: value})

    for function in OTHERS:
        with pytest.raises(SettingsError, match=variable):
            bare.invoke(function)
    assert bare.post(NOOP).code == "misconfigured"
    assert variable in bare.log()[-1]["reason"]
    assert bare.clients == []


def test_everything_malformed_is_named_at_once(bare: Deployed) -> None:
    bare.set(CONCURRENCY="0", BATCH_SIZE="x", MONGODB_URI="mongodb://127.0.0.1/")

    with pytest.raises(SettingsError, match=r"CONCURRENCY.*BATCH_SIZE"):
        deployment()


def test_an_environment_that_was_mended_is_read_again(deployed: Deployed, mongod: Mongod) -> None:
    deployed.set(MONGODB_URI=None)
    assert deployed.post(NOOP).status == 503

    deployed.set(MONGODB_URI=f" {mongod.uri} ")

    assert deployed.post(NOOP).status == 202


def test_document_db_is_refused_with_a_sentence(bare: Deployed) -> None:
    bare.set(MONGODB_URI="mongodb://u:p@x.cluster-y.eu-central-1.docdb.amazonaws.com:27017/")

    with pytest.raises(UnsupportedServerError, match="DocumentDB"):
        bare.invoke("execute")
    assert bare.post(NOOP).code == "misconfigured"
    assert "DocumentDB" in bare.log()[-1]["reason"]


def test_the_retention_of_the_environment_reaches_the_indexes(deployed: Deployed, db: Database[Any]) -> None:
    deployed.set(RETENTION_DAYS="2", DEAD_LETTER_RETENTION_DAYS="3")
    deployed.invoke("reclaim")

    kept = [db[name].index_information()["retention"]["expireAfterSeconds"] for name in ("tasks", "tasks_dlq")]
    assert kept == [2 * 86400, 3 * 86400]


def test_what_is_left_of_an_invocation_comes_from_its_context() -> None:
    context: Any = FakeContext(request_id="r-1")

    assert lambda_functions.get_owner(context) == "r-1"
    assert lambda_functions.get_remaining(context).total_seconds() == pytest.approx(120, abs=1)
    assert lambda_functions.get_remaining(None) == lambda_functions.LOCAL_LIFETIME
    assert lambda_functions.get_owner(None).startswith("local-")
