"""What a function returns or raises comes out of its process as it does out of a thread."""

from __future__ import annotations

import pickle
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import bson
import pytest
from bson import DBRef, Decimal128, Int64, ObjectId, Regex
from bson.binary import Binary
from bson.datetime_ms import DatetimeMS
from bson.raw_bson import RawBSONDocument

from tests.features.isolation.runs import LONG, Run, a_run_spec, begin
from tests.features.isolation.sayings import SAYINGS
from tidemill.documents import decode
from tidemill.runner.process_pool import ProcessPool
from tidemill.runner.results import Raised, Returned, RunResult


@pytest.fixture(scope="module")
def in_threads() -> dict[tuple[str, str], RunResult]:
    command = [sys.executable, "-m", "tests.features.isolation.in_threads"]
    done = subprocess.run(command, capture_output=True, check=True, timeout=60, env={"PYTHONPATH": ":".join(sys.path)})
    found: dict[tuple[str, str], RunResult] = pickle.loads(done.stdout)
    return found


NOT_RUN = {"generator", "exception"}
"""What a function returns whose body has not run."""


@pytest.mark.parametrize(("kind", "what"), SAYINGS)
def test_it_is_concluded_as_in_a_thread(
    run: Run, in_threads: dict[tuple[str, str], RunResult], kind: str, what: str
) -> None:
    concluded = run(kind, what=what)

    assert repr(concluded) == repr(in_threads[kind, what])
    assert isinstance(concluded, Returned) == (kind == "returns" and what not in NOT_RUN)


VALUES: dict[str, Any] = {
    "object id": ObjectId(),
    "text": "a/b é 😀",
    "number": 7,
    "long": Int64(7),
    "float": 0.1,
    "decimal": Decimal128("1.10"),
    "date": datetime(2031, 7, 1, 9, tzinfo=UTC),
    "far date": DatetimeMS(2**60),
    "bytes": b"\xff\x00",
    "uuid": Binary(b"\x01" * 16, 4),
    "regex": Regex("^a", "i"),
    "object": {"task": ObjectId(), "redrives": 1, "a.b": {"$gt": ""}},
    "reference": DBRef("tasks", 1),
    "nothing": None,
    "true": True,
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_the_function_gets_the_payload_and_the_id_as_they_were_read(shared: ProcessPool, value: Any) -> None:
    read = decode(RawBSONDocument(bson.encode({"_id": value, "payload": {"first": value, "list": [value, {}]}})))
    spec = a_run_spec("echo", read["payload"], task_id=read["_id"], attempt=3, is_last_attempt=True)

    concluded = begin(shared, spec).end()

    assert repr(concluded) == repr(
        Returned({"payload": read["payload"], "task_id": read["_id"], "attempt": 3, "is_last": True})
    )


def test_a_payload_may_be_as_large_as_a_document(shared: ProcessPool) -> None:
    spec = a_run_spec("length", {"text": "é" * (8 * 1024**2 - 1000)})

    assert begin(shared, spec).end() == Returned(8 * 1024**2 - 1000)


def test_a_payload_with_a_model_is_validated(run: Run) -> None:
    assert run("letter", to="Ada") == Returned("1 to Ada")

    refused = run("letter", copies="many")

    assert isinstance(refused, Raised)
    assert (refused.failure.code, refused.failure.retryable) == ("ValidationError", False)
    assert "to: is missing" in refused.failure.message
    assert "many" not in refused.failure.message


def test_a_coroutine_is_run(run: Run) -> None:
    assert run("async", a=1) == Returned({"got": {"a": 1}, "attempt": 1})

    raised = run("async_raises")

    assert isinstance(raised, Raised)
    assert raised.failure.code == "LookupError"


def test_the_function_is_told_how_long_it_has(run: Run) -> None:
    told = run("remaining", timeout=LONG)

    assert isinstance(told, Returned)
    assert LONG - 5 < told.result <= LONG


def test_a_fork_that_the_function_made_does_not_answer_for_it(run: Run) -> None:
    assert run("forks") == Returned("parent")


def test_what_is_printed_goes_where_the_executors_prints_go() -> None:
    program = (
        "from datetime import timedelta\n"
        "from pathlib import Path\n"
        "from tests.features.isolation.runs import PACKAGE, runner\n"
        "from tidemill.runner.process_pool import ProcessPool\n"
        "process_pool = ProcessPool(PACKAGE, directory=Path.cwd(), begin_within=timedelta(seconds=60))\n"
        "runner(process_pool)('prints', text='said ünï')\n"
        "process_pool.close()\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, env=_environment(), timeout=60, check=True
    )

    assert (done.stdout.decode(), done.stderr.decode()) == ("said ünï\n", "said ünï\n")


def _environment() -> dict[str, str]:
    return {"PYTHONPATH": ":".join(sys.path), "PYTHONUTF8": "1"}
