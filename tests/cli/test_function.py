"""`tidemill ops --function`: the operate function is asked, and everything looks as it does on a URI."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from pymongo.database import Database

from tests.builders import MINUTE, add, claim_one, document
from tests.buried import bury, letter
from tests.cli.conftest import CommandLine, Said
from tests.handlers.calls import app
from tests.handlers.lambda_api import refusal, replace_lambda_client
from tests.handlers.warm import cool_down
from tidemill.clock import ServerClock
from tidemill.documents import DEAD_LETTERS
from tidemill.store.connection import Tasks, open_tasks

NAME = "tidemill-OperateFunction-Zx4Qw8Er2Ty6"
ARN = f"arn:aws:lambda:eu-central-1:123456789012:function:{NAME}"


class Platform:
    """A client of Lambda whose function is the real one; or that answers with *content* in its place."""

    def __init__(self, content: bytes | None = None) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self._content = content

    def invoke(self, **how: Any) -> dict[str, Any]:
        event = json.loads(how["Payload"])
        self.asked.append((how["FunctionName"], event))
        content = self._content
        if content is None:
            content = json.dumps(app("operate").lambda_handler(event, None)).encode()
        return {"StatusCode": 200, "Payload": io.BytesIO(content)}


@pytest.fixture
def platform(monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
    """The function is deployed, on the database of the test."""
    made = Platform()
    replace_lambda_client(monkeypatch, lambda: made)
    for handler in app("operate").logger.handlers:
        monkeypatch.setattr(handler, "stream", io.StringIO())
    cool_down()
    yield made
    cool_down()


@pytest.fixture
def filled(db: Database[Any], tasks: Tasks) -> None:
    """A bit of everything: what waits, what runs, what failed before, what ended."""
    now = ServerClock(db).now()
    error = {"message": "the receiver answered 503", "code": "http_503", "at": now}
    line = {"attempt": 0, "status": "failed", "started_at": now, "duration_ms": 1500, "note": "503"}
    later = now + timedelta(hours=3)
    add(tasks, [document(now, priority=9, max_retries=3)])
    claim_one(tasks, now, owner="request-7")
    retry = {"lane": "retry", "attempts": 1, "max_retries": 3, "error": error, "attempt_log": [line]}
    add(
        tasks,
        [document(now, _id="retry", due_at=later, next_retry_at=later, **retry), document(now, _id="odd", name=7)],
    )
    add(tasks, [document(now, _id="done", max_retries=3, status="done", finished_at=now, trace={"source": "me"})])
    minute = now.replace(second=0, microsecond=0)
    counts = {"retry_runs": 8, "retry_successes": 6, "retried": 4, "backoff_ms": 20_000}
    db["queue_stats"].insert_one(
        {"_id": {"queue": "default", "minute": minute, "name": "x"}, "minute": minute} | counts
    )
    db["queues"].insert_one({"_id": "eu", "paused": True, "retry_share": 0.5})
    bury(open_tasks(db, DEAD_LETTERS), [letter(now, _id="dead"), letter(now, _id="charged", name="charge")])


def without_ages(said: Said) -> tuple[int, str, str]:
    """What was said, but for how long ago something was and when it was asked."""
    ages = r"(in )?\d+(\.\d+)?(ms|s|m|h|d)( \d+[smhd])?( ago)?"
    changing = re.compile(rf'{ages}|"now": "[^"]*"|"oldest_due_age_sec": [\d.]+|--+')
    return said.status, " ".join(changing.sub("~", said.out).split()), said.err


@pytest.mark.usefixtures("filled")
@pytest.mark.parametrize(
    "command",
    [
        "queue ls", "queue ls --json", "queue status", "queue status eu", "queue status eu --json",
        "queue status us", "queue declare us", "queue declare .", "queue pause eu", "queue pause us",
        "queue resume eu", "queue set eu --retry-share 0.25 --adaptive on", "queue set eu --retry-share 7",
        "queue set eu --budget off --budget-factor 2", "task ls", "task ls --json", "task ls --queue edu",
        "task ls --cursor x", "task show retry", "task show done", "task show odd", "task show retry --json",
        "task show nobody", "task explain retry", "task explain odd --json", "task retry odd", "task cancel done",
        "stats", "stats --json", "stats --queue nobody", "dlq ls", "dlq ls --json", "dlq ls --name charge",
        "dlq ls --items --since 1d", "dlq ls --fingerprint x", "dlq show dead", "dlq show dead --json",
        "dlq show nobody", "dlq redrive --all --dry-run", "dlq redrive --all --dry-run --json",
        "dlq redrive --name nobody", "dlq purge --all --dry-run", "dlq purge --all", "dlq export",
    ],
)  # fmt: skip
def test_both_ways_say_the_same(operator: CommandLine, platform: Platform, command: str) -> None:
    words = command.split() if command.startswith("dlq") else ["ops", *command.split()]
    here = without_ages(operator(*words))
    asked_before = len(platform.asked)
    there = without_ages(operator(*words, "--function", NAME))

    assert there == here
    assert here[0] != 2, "a usage error is the same both ways, whatever is asked"
    assert asked_before == 0
    if here[0] == 0:
        assert [name for name, _ in platform.asked] == [NAME]


def test_only_the_function_knows_the_policy_of_its_deployment(
    operator: CommandLine, platform: Platform, db: Database[Any], tasks: Tasks
) -> None:
    add(tasks, [document(ServerClock(db).now(), _id="x")])

    here, there = (operator.done("ops", "task", "show", "x", *way).out for way in ((), ("--function", NAME)))

    assert len(platform.asked) == 1
    assert ("unless RETRY_POLICY" in here, "unless RETRY_POLICY" in there) == (True, False)


def test_what_changes_something_changes_it_through_the_function(
    operator: CommandLine, platform: Platform, db: Database[Any], tasks: Tasks
) -> None:
    now = ServerClock(db).now()
    [delayed, waiting] = add(
        tasks, [document(now, due_at=now + MINUTE, next_retry_at=now + MINUTE), document(now, _id="waiting")]
    )

    operator.done("ops", "queue", "pause", "default", "--function", NAME)
    operator.done("ops", "task", "retry", str(delayed), "--function", NAME)
    operator.done("ops", "task", "cancel", waiting, "--force", "--function", ARN)

    assert (db["queues"].find_one({"_id": "default"}) or {})["paused"] is True
    assert tasks.count_documents({"_id": delayed, "next_retry_at": None}) == 1
    assert tasks.count_documents({"_id": waiting, "status": "cancelled"}) == 1
    assert platform.asked[-1] == (ARN, {"op": "task.cancel", "id": "waiting", "force": True})


def test_dead_letters_are_redriven_and_purged_through_the_function(
    operator: CommandLine, platform: Platform, db: Database[Any], tasks: Tasks, dead: Tasks
) -> None:
    died = ServerClock(db).now() - MINUTE
    bury(dead, [letter(died, name="registered", _id=name) for name in ("a", "b", "c")])

    operator.done("dlq", "redrive", "a", "--function", NAME)
    operator.done("dlq", "--function", NAME, "purge", "--all", "--limit", "2", "--yes")

    assert tasks.count_documents({"_id": "a", "redrives": 1}) == 1
    assert [raw["_id"]["task"] for raw in dead.find({})] == ["c"]
    asked = [event["op"] for _, event in platform.asked]
    assert asked == ["dlq.redrive", "dlq.purge", "dlq.purge"]


def test_a_function_may_be_named_before_the_topic(operator: CommandLine, platform: Platform) -> None:
    operator.done("ops", "--function", NAME, "queue", "ls")
    operator.done("ops", "--function", "another", "task", "ls", "--function", NAME)

    assert [name for name, _ in platform.asked] == [NAME, NAME]


def test_a_request_that_is_none_is_refused_before_anybody_is_asked(operator: CommandLine, platform: Platform) -> None:
    operator.refused("ops", "queue", "set", "eu", "--retry-share", "7", "--function", NAME)
    operator.refused("ops", "task", "show", "", "--function", NAME)

    assert platform.asked == []


ANSWER: dict[str, Any] = {"queues": [], "next": None, "database": "theirs", "now": "2031-07-01T09:00:00.000Z"}
ANOTHER = f"unexpected answer from {NAME}: is it the operate function?"


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (ANSWER, ""),
        (ANSWER | {"new": 7}, ""),
        (ANSWER | {"truncated": True}, "the answer was too large: a part of it is left out"),
        ({"error": {"code": "unavailable", "message": "MongoDB is away", "details": []}}, "MongoDB is away"),
        ({"error": {"code": "not_allowed", "details": [{"field": "id", "message": "is odd"}]}}, "id: is odd"),
        ({"error": {"code": "internal", "message": "a \x1b[31m\nb"}}, "a \\x1b[31m b"),
        ({"error": {"message": "m", "details": "none"}}, "m"),
        (None, ANOTHER),
        ([], ANOTHER),
        ("x", ANOTHER),
        ({"statusCode": 400}, ANOTHER),
        ({"queues": []}, ANOTHER),
        (ANSWER | {"queues": [{"queue": "eu"}]}, ANOTHER),
        (b"", ANOTHER),
        (b"\xff", ANOTHER),
    ],
)
def test_what_a_function_may_answer_needs_no_database_here(
    tidemill: CommandLine, monkeypatch: pytest.MonkeyPatch, answer: object, sentence: str
) -> None:
    content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    replace_lambda_client(monkeypatch, lambda: Platform(content))

    said = tidemill("ops", "queue", "ls", "--function", NAME)

    assert said.err == (f"tidemill: {sentence}\n" if sentence else "")
    assert (
        (said.status == 0) is (said.out != "") is (answer in (ANSWER, ANSWER | {"new": 7}) or "too large" in sentence)
    )


def test_what_aws_refuses_is_one_sentence(tidemill: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        def invoke(self, **_: Any) -> None:
            refusal("AccessDeniedException")()

    replace_lambda_client(monkeypatch, Refusing)

    said = tidemill.refused("ops", "queue", "ls", "--function", NAME)
    assert said == f"these AWS credentials may not invoke {NAME} (lambda:InvokeFunction)"


@pytest.mark.parametrize("missing", ["boto3", "botocore"])
def test_without_boto3_it_says_what_to_install(
    tidemill: CommandLine, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.setitem(sys.modules, f"{missing}.exceptions", None)

    sentence = "--function needs the extra lambda, which is not installed: pip install 'tidemill[lambda]'"
    assert tidemill.refused("ops", "queue", "ls", "--function", NAME) == sentence
