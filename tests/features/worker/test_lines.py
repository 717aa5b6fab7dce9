"""One line for each failed attempt of a worker, with what an operator needs, and nothing of the payload."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pymongo.database import Database

from tests.features.worker.test_worker import yard_at
from tests.features.worker.workers import Yard
from tidemill.testing import Mongod

pytestmark = pytest.mark.slow

TIME = "[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2} UTC"


@pytest.fixture
def yard(mongod: Mongod, db: Database[Any], tmp_path: Path) -> Iterator[Yard]:
    with yard_at(mongod.uri, db, tmp_path) as made:
        yield made


def test_a_failed_attempt_is_one_line_on_stderr(yard: Yard) -> None:
    yard.add("note")
    [gone] = yard.add("fail", queue="eu")
    [stumbling] = yard.add("stumble")

    ended = yard.process("--until-empty", "--no-maintenance", LINGER_SEC="0").ended()

    lines = {line.partition(", ")[0].rpartition(" ")[2]: line for line in ended.err if " attempt " in line}
    assert set(lines) == {str(gone), str(stumbling)}
    assert re.fullmatch(
        f"{TIME} attempt 1 of 11 failed: task {gone}, watched.fail, queue eu: gone: no such order; "
        r"no further attempt \(not_retryable\)",
        lines[str(gone)],
    )
    assert re.fullmatch(
        rf"{TIME} attempt 1 of 4 failed: task {stumbling}, watched.stumble, queue default: "
        rf"LookupError: no route\\x1b\[31m to x+ \.\.\. x+ 0 \(watched\.py:[0-9]+ in stumble\); "
        rf"next attempt at {TIME}, in 1h( 0s)?|in 60m",
        lines[str(stumbling)],
    ), lines[str(stumbling)]
    assert len(lines[str(stumbling)]) < 800
    assert not any("trace" in line for line in ended.err)


@pytest.mark.parametrize("name", ["stumble", "stumble_apart"])
def test_with_verbose_its_traceback_follows_from_the_code_of_the_function_on(yard: Yard, name: str) -> None:
    yard.add(name)

    ended = yard.process("--until-empty", "--no-maintenance", "--verbose", LINGER_SEC="0").ended()

    [at] = [number for number, line in enumerate(ended.err) if " attempt 1 of " in line]
    assert ended.err[at + 1] == "    Traceback (most recent call last):"
    assert ended.err[at + 2].endswith(f", in {name}")
    assert not any("tidemill/runner" in line for line in ended.err)
    assert "    LookupError: no" in ended.err


def test_as_json_each_line_is_an_object_with_the_fields_of_the_function(yard: Yard) -> None:
    [gone] = yard.add("fail")
    [stumbling] = yard.add("stumble_apart")

    ended = yard.process("--until-empty", "--no-maintenance", "--json-logs", "--queue", "x", "--queue", "default",
                         LINGER_SEC="0").ended()  # fmt: skip

    printed = [line for line in ended.out if line]
    assert [line for line in printed if not line.startswith("{")] == ["half a line"]
    lines = [json.loads(line) for line in printed if line.startswith("{")]
    assert [line["message"] for line in lines][:2] == ["warning", "started"]
    assert lines[-1]["message"] == "executed"
    assert lines[0]["reason"].startswith("warning: queue x is not declared")
    assert (lines[-1]["claimed"], lines[-1]["failed"]) == (2, 2)
    assert {line["message"] for line in lines[2:-1]} == {"about to stumble", "attempt"}
    attempts = {line["task_id"]: line for line in lines if line["message"] == "attempt"}
    assert set(attempts) == {str(gone), str(stumbling)}
    line = attempts[str(gone)]
    assert re.fullmatch(r"[0-9-]{10}T[0-9:]{8}\.[0-9]{3}\+00:00", line.pop("timestamp"))
    assert line.pop("duration_ms") >= 0
    assert line == {
        "level": "WARNING", "message": "attempt", "service": "tidemill-work", "task_id": str(gone),
        "task_name": "watched.fail", "queue": "default", "attempt": 1, "outcome": "failed", "code": "gone",
        "reason": "not_retryable", "next_retry_at": None,
    }  # fmt: skip
    assert "xxxx" not in "".join(printed), "the message may be of any kind"
    assert ended.err == []
