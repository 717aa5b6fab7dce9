"""A function that changes what its process shares: the executor, its clocks and logs go on working. Real processes."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pymongo.database import Database

from tests.builders import document
from tidemill.testing import Mongod

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]

FUNCTIONS = """
import asyncio, contextvars, decimal, gc, locale, logging, os, random, signal, socket, sys, time
import warnings
from tidemill import task

VAR = contextvars.ContextVar("VAR", default="clean")


def spoil():
    os.chdir("/")
    os.environ["TZ"] = "XXX-13:30"
    time.tzset()
    socket.setdefaulttimeout(0.001)
    logging.disable()
    logging.getLogger().handlers.clear()
    logging.raiseExceptions = False
    decimal.getcontext().prec = 1
    locale.setlocale(locale.LC_ALL, "C")
    random.seed(0)
    warnings.simplefilter("error")
    gc.disable()
    VAR.set("spoilt")
    try:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
    except ValueError:
        return "spoilt"


@task("spoils")
def spoils(payload):
    return spoil()


@task("spoils_async")
async def spoils_async(payload):
    await asyncio.sleep(0)
    return spoil()


@task("looks")
def looks(payload):
    return [VAR.get(), str(decimal.Decimal(1) / 3)[:4]]


@task("looks_async")
async def looks_async(payload):
    await asyncio.sleep(0.01)
    return await asyncio.to_thread(looks, payload)


@task("looks_apart", isolate=True)
def looks_apart(payload):
    return looks(payload)


@task("fails")
def fails(payload):
    raise ValueError("no")
"""

TWO_INVOCATIONS = """
import importlib.util, sys
from tidemill.testing import FakeContext
spec = importlib.util.spec_from_file_location("app", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
for queue in ("first", "second"):
    module.lambda_handler({"queues": [queue], "concurrency": 1}, FakeContext(request_id=queue))
"""


@pytest.mark.parametrize("culprit", ["spoils", "spoils_async"])
def test_a_function_that_spoils_its_process_harms_neither_the_executor_nor_the_next(  # F53
    db: Database[Any], mongod: Mongod, tmp_path: Path, culprit: str
) -> None:
    package = tmp_path / "tasks"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "functions.py").write_text(FUNCTIONS)
    before = datetime.now(UTC)
    start, others = before - timedelta(minutes=1), ("looks", "looks_async", "looks_apart", "fails")
    tasks = [document(start, name=culprit, queue="first", priority=9)]
    tasks += [document(start, name=name, queue=queue) for queue in ("first", "second") for name in others]
    db.tasks.insert_many(tasks)

    ended = subprocess.run(
        [sys.executable, "-c", TWO_INVOCATIONS, str(ROOT / "functions/execute/app.py")],
        env={
            "PYTHONPATH": f"{tmp_path}:{ROOT / 'layers/core'}",
            "MONGODB_URI": mongod.uri,
            "MONGODB_DATABASE": db.name,
            "LINGER_SEC": "0",
            "RETRY_POLICY": "patient",
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr
    after = datetime.now(UTC)
    found = [one for one in db.tasks.find() if one["name"].startswith(("looks", "spoils"))]
    assert {(one["name"], one["queue"], one["status"]) for one in found if one["status"] != "done"} == set()
    assert [one["result"] for one in found] == [
        ["clean", "0.33"] if "looks" in one["name"] else "spoilt" for one in found
    ]
    assert all(before <= one["finished_at"].replace(tzinfo=UTC) <= after for one in found)
    for failed in db.tasks.find({"name": "fails"}):
        assert failed["next_retry_at"], ended.stdout
        wait = failed["next_retry_at"].replace(tzinfo=UTC) - before
        assert (failed["status"], failed["error"]["code"]) == ("pending", "ValueError")
        assert timedelta(seconds=45) < wait < timedelta(seconds=75) + (after - before)
    printed = [json.loads(line) for line in ended.stdout.splitlines() if line]
    lines = [line for line in printed if "_aws" not in line]
    first, second = [line for line in lines if line["message"] == "executed"]
    # What waits too long behind a child that is slow to start is given back, and claimed once more.
    assert (first["claimed"] - first["released"], second["claimed"] - second["released"]) == (5, 4)
    assert [(one["claimed"], one["done"], one["retries_total"]) for one in printed if "_aws" in one] == [
        ([first["claimed"]], [4], [1]),
        ([second["claimed"]], [3], [1]),
    ]
    assert [line["task_name"] for line in lines if line["message"] == "attempt"] == ["fails"] * 2
    assert (first["message"], first["request_id"], first["done"], first["retried"]) == ("executed", "first", 4, 1)
    assert (second["message"], second["request_id"], second["done"], second["retried"]) == ("executed", "second", 3, 1)
    assert (first["errors"], second["errors"]) == (0, 0)
