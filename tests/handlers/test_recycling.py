"""When the handler of execute ends its process, so that the next invocation starts in a clean one. Real processes."""

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
from tests.handlers.calls import ROOT
from tidemill.aws.metrics import COUNTERS
from tidemill.testing import Mongod

RETURNED, ENDED, RAISED = 0, 1, 3
MUTTERED = "half a line"
FUNCTIONS = """
import contextlib, io, logging, os, sys, threading, time
from datetime import datetime
from pymongo import MongoClient
from tidemill import resource, task
from tidemill.bootstrap import deployment
from tidemill.errors import UnavailableError
from tidemill.handlers import execute

started = threading.Event()
print("half a line", end="", flush=True)


@resource
def client():
    yield
    os.write(2, b"client closed ")


@task("uses_a_client")
def uses_a_client(payload):
    client()


@task("mutters")
def mutters(payload):
    print("half a line", end="", flush=True)


@task("mutters_without_python")
def mutters_without_python(payload):
    os.system("printf 'half a line'")


@task("stubborn")
def stubborn(payload):
    started.set()
    while True:
        try:
            time.sleep(600)  # an error raised into the thread waits for the end of this call
        except BaseException:
            pass


def break_with(error):
    def fails():
        raise error
    deployment().runtime.rng.random = fails  # drawn for each outcome


@task("uses_up_threads")
def uses_up_threads(payload):
    start = threading.Thread.start

    def refuses(thread):
        if thread.name == "tidemill-slot":
            raise RuntimeError("can't start new thread")
        start(thread)

    threading.Thread.start = refuses
    with MongoClient(os.environ["MONGODB_URI"]) as client:  # only now, another task needs a slot
        tasks = client[os.environ["MONGODB_DATABASE"]].tasks
        tasks.update_many({"status": "pending"}, {"$set": {"due_at": datetime(2026, 7, 1), "next_retry_at": None}})
    time.sleep(3)


@task("breaks")
def breaks(payload):
    break_with(RuntimeError("S3cr3t"))


@task("exits")
def exits(payload):
    break_with(SystemExit("S3cr3t"))


@task("cuts_off")
def cuts_off(payload):
    break_with(UnavailableError("MongoDB is away"))


@task("confirms_nothing")
def confirms_nothing(payload):
    away = {"failCommands": ["update"], "appName": "tidemill-execute", "errorCode": 11601}
    with MongoClient(os.environ["MONGODB_URI"]) as client:
        client.admin.command("configureFailPoint", "failCommand", mode="alwaysOn", data=away)


@task("cuts_off_beside_another")
def cuts_off_beside_another(payload):
    started.wait(10)
    break_with(UnavailableError("MongoDB is away"))


@task("goes_shallow")
def goes_shallow(payload):
    sys.setrecursionlimit(30)


@task("detaches")
def detaches(payload):
    os.closerange(0, 3)
    for _ in range(3):
        os.open(payload["file"], os.O_CREAT | os.O_RDWR)


@task("closes")
def closes(payload):
    sys.stdout.close()
    sys.stderr.close()


@task("redirects_for_good")
def redirects_for_good(payload):
    sys.stdout = io.StringIO()
    sys.stdout.close()

    class Broken(logging.Handler):
        def flush(self):
            raise RuntimeError("S3cr3t")

    logging.getLogger().addHandler(Broken())
    execute.logger.addHandler(Broken())


@task("logs_no_more")
def logs_no_more(payload):
    def raises(*_):
        raise ValueError("I/O operation on closed file")
    for handler in execute.logger.handlers:
        handler.emit = raises
"""
INVOKE = """
import importlib.util, os, sys
from dataclasses import replace
from tidemill.executor.lifetime import TIMING
from tidemill.testing import FakeContext
spec = importlib.util.spec_from_file_location("app", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
try:
    timing = replace(TIMING, final_flush_sec=0.5)
    report = module.lambda_handler({"concurrency": 2}, FakeContext(request_id="r-1"), timing=timing)
except BaseException as error:
    os.write(2, type(error).__name__.encode())
    os._exit(3)
os.write(2, str(report["done"]).encode())
os._exit(0)
"""


class Container:
    """A container of execute whose task functions are those above."""

    def __init__(self, path: Path, mongod: Mongod, db: Database[Any]) -> None:
        self._path, self._mongod, self._db = path, mongod, db
        package = path / "tasks"
        package.mkdir()
        (package / "__init__.py").touch()
        (package / "functions.py").write_text(FUNCTIONS)

    def invoke(self, *names: str, **fields: Any) -> subprocess.CompletedProcess[str]:
        """Run one task of each function in one invocation; what must stay hidden is not in the log, whatever it is."""
        start = datetime(2026, 7, 1, tzinfo=UTC)
        for name in names:
            self._db.tasks.insert_one(document(start, name=name, max_retries=5, **fields))
        ended = subprocess.run(
            [sys.executable, "-c", INVOKE, str(ROOT / "functions/execute/app.py")],
            env={
                "PYTHONPATH": f"{self._path}:{ROOT / 'layers/core'}",
                "MONGODB_URI": self._mongod.uri,
                "MONGODB_DATABASE": self._db.name,
                "LINGER_SEC": "0",
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert "S3cr3t" not in ended.stdout
        return ended


@pytest.fixture
def container(tmp_path: Path, mongod: Mongod, db: Database[Any]) -> Container:
    return Container(tmp_path, mongod, db)


def lines(ended: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """What was logged."""
    return [line for line in printed(ended) if "_aws" not in line]


def emitted(ended: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    """What was told of metrics."""
    return [line for line in printed(ended) if "_aws" in line]


def printed(ended: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in ended.stdout.splitlines() if line.replace(MUTTERED, "")]


def test_a_function_that_will_not_stop_ends_the_process_inside_the_handler(
    container: Container, db: Database[Any]
) -> None:
    ended = container.invoke("stubborn", "stubborn", timeout_sec=1.0)

    assert ended.returncode == ENDED, ended.stderr
    *attempts, executed, recycled = lines(ended)
    assert [line["message"] for line in attempts] == ["attempt"] * 2
    assert (executed["message"], recycled["message"]) == ("executed", "recycled")
    assert (executed["timed_out"], executed["leftovers"], executed["unknown"]) == (2, 2, 0)
    assert {executed["request_id"], recycled["request_id"]} == {"r-1"}
    tasks = list(db.tasks.find())
    assert [(task["status"], task["error"]["code"]) for task in tasks] == [("pending", "timeout")] * 2
    assert not any("lease" in task for task in tasks)


def test_before_it_ends_the_process_closes_its_resources(container: Container) -> None:
    assert container.invoke("stubborn", "uses_a_client", timeout_sec=1.0).stderr == "client closed "


@pytest.mark.parametrize(("culprit", "error_type"), [("breaks", "RuntimeError"), ("exits", "SystemExit")])
def test_an_executor_that_breaks_ends_its_process_and_says_where_but_not_with_which_text(
    container: Container, culprit: str, error_type: str
) -> None:
    ended = container.invoke(culprit)

    assert ended.returncode == ENDED, ended.stderr
    [line] = lines(ended)
    assert (line["message"], line["level"], line["error_type"]) == ("recycled", "ERROR", error_type)
    assert "in fails" in line["stack"]
    assert [one.keys() & COUNTERS for one in emitted(ended)] == [{"claimed"}], "what failed is not recycled on purpose"


def test_a_recursion_limit_that_is_too_low_for_the_executor_outlives_no_invocation(container: Container) -> None:
    ended = container.invoke("goes_shallow")

    assert ended.returncode == ENDED, ended.stderr
    assert [line["message"] for line in lines(ended)] == ["recycled"]


def test_an_error_of_ours_leaves_the_process_alive(container: Container) -> None:
    ended = container.invoke("cuts_off")

    assert (ended.returncode, ended.stderr) == (RAISED, "UnavailableError")
    [line] = lines(ended)
    assert (line["message"], line["level"], line["reason"]) == ("failed", "WARNING", "MongoDB is away")
    assert [one["claimed"] for one in emitted(ended)] == [[1]]


def test_but_not_while_functions_still_run_that_others_are_about_to_run_again(container: Container) -> None:
    ended = container.invoke("stubborn", "cuts_off_beside_another", timeout_sec=20)

    assert ended.returncode == ENDED, ended.stderr
    [line] = lines(ended)
    assert (line["message"], line["error_type"]) == ("recycled", "UnavailableError")
    assert [one.keys() & COUNTERS for one in emitted(ended)] == [{"claimed"}]


def test_what_mongodb_did_not_confirm_is_an_error_though_the_process_ends_for_another_reason(
    container: Container, db: Database[Any]
) -> None:
    try:
        ended = container.invoke("stubborn", "confirms_nothing", timeout_sec=1.0)
    finally:
        db.client.admin.command("configureFailPoint", "failCommand", mode="off")

    assert ended.returncode == ENDED, ended.stderr
    *_, executed, recycled = lines(ended)
    assert (executed["leftovers"], executed["unknown"]) == (1, 2)
    assert (recycled["message"], recycled["level"], recycled["error_type"]) == ("recycled", "ERROR", "UnavailableError")
    assert not any("recycled" in one for one in emitted(ended))


@pytest.mark.parametrize("culprit", ["mutters", "mutters_without_python"])
def test_half_a_line_that_a_function_prints_spoils_no_line_and_no_metric(container: Container, culprit: str) -> None:
    ended = container.invoke(culprit)

    assert ended.returncode == RETURNED, ended.stderr
    assert ended.stdout.startswith(f"{MUTTERED}{MUTTERED}\n"), "a module does it as well"
    assert [line["message"] for line in lines(ended)] == ["executed"]
    assert [one["done"] for one in emitted(ended)] == [[1]]


def test_nor_does_half_a_line_of_a_module_when_there_is_nothing_to_do(container: Container) -> None:
    ended = container.invoke()

    assert [line for line in ended.stdout.splitlines() if not line.startswith("{")] == [MUTTERED]
    assert [line["message"] for line in lines(ended)] == ["executed"]


def test_no_line_is_written_into_a_file_that_took_the_place_of_standard_output(
    container: Container, tmp_path: Path
) -> None:
    theirs = tmp_path / "theirs"

    ended = container.invoke("detaches", payload={"file": str(theirs)})

    assert theirs.read_text() == "1", "what the test itself prints to standard error"
    assert [line["message"] for line in lines(ended)] == ["executed"]
    assert [one["done"] for one in emitted(ended)] == [[1]]


@pytest.mark.parametrize("culprit", ["closes", "redirects_for_good", "logs_no_more"])
def test_a_report_that_cannot_be_logged_is_returned(container: Container, culprit: str) -> None:
    ended = container.invoke(culprit)

    assert (ended.returncode, ended.stderr[-1:]) == (RETURNED, "1")


@pytest.mark.parametrize("culprit", ["closes", "redirects_for_good", "logs_no_more"])
def test_a_process_ends_though_that_cannot_be_logged(container: Container, culprit: str) -> None:
    ended = container.invoke("stubborn", culprit, timeout_sec=1.0)

    assert ended.returncode == ENDED, ended.stderr
    assert [one.keys() & COUNTERS for one in emitted(ended)] == [{"claimed", "done", "retries_total"}, {"recycled"}]


def test_a_process_that_has_no_threads_left_is_ended_once_what_runs_has_ended(
    container: Container, db: Database[Any]
) -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    db.tasks.insert_one(document(later, name="logs_no_more", due_at=later, next_retry_at=later))

    assert container.invoke("uses_up_threads").returncode == ENDED
    assert {one["name"]: (one["status"], one["attempts"]) for one in db.tasks.find()} == {
        "uses_up_threads": ("done", 1),
        "logs_no_more": ("pending", 0),
    }
