"""The demo as a newcomer runs it: it accounts for every task, says so when it cannot, and leaves nothing behind."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from bson import ObjectId
from pymongo.database import Database
from rich.console import Console

from demo import report, scenario, screen
from demo.aws import Aws
from demo.executors import Ended, Executor, wait_for_any
from demo.feed import Feed
from demo.front import Accepted, Front
from demo.functions import EVENTS, about, death_of, event
from demo.ledger import Account, Place, account, places, stories
from demo.play import Row, View
from demo.receiver import Receiver
from tests.fixtures import T0
from tidemill.model import TaskId
from tidemill.requests.events import find_dead_owner

ROOT = Path(__file__).parents[2]
PROC = Path("/proc")
DEADLINE_SEC = 120
GONE_WITHIN_SEC = 15
MARK = "TIDEMILL_DEMO_OF_THIS_TEST"


@dataclass(frozen=True, kw_only=True)
class Demo:
    """A demo in a process of its own; whatever it starts inherits the mark."""

    process: subprocess.Popen[str]
    mark: str
    temp: Path
    lines: list[str] = field(default_factory=list)

    def wait_until_tasks_end(self, *, at_least: int) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            progress = re.search(r"(\d+) of \d+ accepted tasks have ended", line)
            if progress and int(progress[1]) >= at_least:
                return
        pytest.fail(f"it ended before: {self.lines}")

    def end(self) -> int:
        self.process.communicate(timeout=GONE_WITHIN_SEC)
        return self.process.returncode

    def processes(self) -> list[int]:
        assert PROC.exists(), "processes are looked for in /proc: run this on Linux, a container will do"
        mark = f"{MARK}={self.mark}".encode()
        return [int(folder.name) for folder in PROC.glob("[0-9]*") if mark in _bytes(folder / "environ")]

    def folders_of_mongod(self) -> list[Path]:
        lines = [_bytes(PROC / str(pid) / "cmdline").split(b"\0") for pid in self.processes()]
        return [Path(os.fsdecode(line[line.index(b"--dbpath") + 1])) for line in lines if b"--dbpath" in line]


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # it is gone by now, or another user's
        return b""


@contextmanager
def demo(temp: Path, *arguments: str, code: tuple[str, ...] = ("-m", "demo")) -> Iterator[Demo]:
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        [sys.executable, *code, *arguments],
        cwd=ROOT,
        env=os.environ | {MARK: mark, "TMPDIR": str(temp), "MONGODB_URI": "mongodb://not.to.be.read.invalid/"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield Demo(process=process, mark=mark, temp=temp)
    finally:
        process.kill()
        process.communicate()


def finished(temp: Path, *arguments: str, code: tuple[str, ...] = ("-m", "demo")) -> tuple[int, str, str]:
    with demo(temp, *arguments, code=code) as running:
        output, errors = running.process.communicate(timeout=DEADLINE_SEC)
        return running.process.returncode, output, errors


def eventually(condition: Callable[[], bool], *, within_sec: float) -> bool:
    give_up_at = time.monotonic() + within_sec
    while not condition():
        if time.monotonic() > give_up_at:
            return False
        time.sleep(0.05)
    return True


def test_every_accepted_task_is_accounted_for(tmp_path: Path) -> None:
    status, output, errors = finished(tmp_path, "--json")

    assert status == 0, errors
    assert "_aws" not in output
    told = json.loads(output.splitlines()[-1])
    samples = [path for path in EVENTS.glob("enqueue_*.json") if path.stem != "enqueue_invalid"]
    assert told["accepted"] == scenario.WEBHOOKS + len(samples) + 1 == 209  # the batch is two
    assert told["refused"] == 1
    assert (told["lost"], told["ended_elsewhere"], told["not_asked_for"]) == (0, 0, 0)
    assert (told["done"], told["cancelled"], told["dead_letters"]) == (158, 1, 50)
    reasons = told["dead_letters_by_reason"]
    assert reasons.keys() == {"exhausted", "not_retryable", "worker_lost"}
    # The last attempt of a task may be lost with an executor that another task kills.
    assert (reasons["not_retryable"], reasons["exhausted"] + reasons["worker_lost"]) == (16, 34)
    assert reasons["worker_lost"] >= 4
    assert told["executors_raised"] == 0
    # A crash task takes one executor with it, perhaps together with another; then it is isolated and harms none.
    assert 1 <= told["executors_killed"] <= 4
    assert told["executors_died"] == told["executors_killed"] + told["executors_recycled"]
    assert told["reclaimed"] == told["runs_by_status"]["lost"] >= 4
    assert 3 <= told["timed_out"] <= 2 * 2  # an attempt may be lost with an executor before its time is out
    assert told["runs_by_status"]["succeeded"] == told["done"]
    assert told["seconds"] < 60


def test_it_fails_and_names_the_tasks_if_some_are_not_accounted_for(tmp_path: Path) -> None:
    impatient = "import sys, demo.play; demo.play.DEADLINE_SEC = 3; from demo.__main__ import main; sys.exit(main())"

    status, output, errors = finished(tmp_path, "--json", code=("-c", impatient))

    told = json.loads(output.splitlines()[-1])
    assert status == 1
    assert told["lost"] == told["accepted"] - told["done"] - told["cancelled"] - told["dead_letters"] > 0
    assert re.search(rf"not all accounted for; {told['lost']} not in one final place: [0-9a-f]{{24}} \(", errors)


def test_what_it_cannot_work_with_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMILL_TEST_MONGODB_URI", "mongodb://example.com/")

    status, output, errors = finished(tmp_path, "--json")

    assert (status, output) == (1, "")
    assert re.fullmatch(r"tidemill: TIDEMILL_TEST_MONGODB_URI is refused: .*\n", errors)


@pytest.mark.parametrize(
    ("stop", "status"),
    [
        pytest.param(lambda pid: os.killpg(pid, signal.SIGINT), 130, id="ctrl-c, which all of its processes get"),
        pytest.param(lambda pid: os.kill(pid, signal.SIGTERM), 143, id="sigterm"),
    ],
)
def test_stopped_half_way_it_leaves_nothing_behind(tmp_path: Path, stop: Callable[[int], None], status: int) -> None:
    with demo(tmp_path, "--json") as running:
        running.wait_until_tasks_end(at_least=20)
        folders = running.folders_of_mongod()
        assert len(running.processes()) > 2

        stop(running.process.pid)

        assert running.end() == status
        assert eventually(lambda: not running.processes(), within_sec=GONE_WITHIN_SEC)
        assert [folder for folder in folders if folder.exists()] == []
        assert list(tmp_path.iterdir()) == []


def test_an_executor_does_not_outlive_the_demo(tmp_path: Path) -> None:
    """Alone it would look for its MongoDB for three seconds; one with outcomes to write, for two minutes."""
    start_one = (
        "from demo.executors import Executor, wait_for_any; from demo.functions import event;"
        "one = Executor(event('tick')); print('started', flush=True); wait_for_any([one], timeout_sec=60)"
    )
    with demo(tmp_path, code=("-c", start_one)) as running:
        assert running.process.stdout is not None
        assert running.process.stdout.readline() == "started\n"

        running.process.kill()

        assert eventually(lambda: not running.processes(), within_sec=2)


def test_an_executor_is_killed_at_its_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its MongoDB accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("MONGODB_URI", f"mongodb://127.0.0.1:{silent.getsockname()[1]}/?directConnection=true")
        executor = Executor(event("tick"), timeout_sec=0.5)
        ended = end_of(executor)

    assert (ended.how, ended.detail) == ("killed", "SIGKILL")


def test_an_executor_that_raises_says_what() -> None:
    ended = end_of(Executor({"source": "nobody"}))

    assert (ended.how, ended.detail.partition(":")[0]) == ("raised", "InvalidRequestError")


def end_of(executor: Executor) -> Ended:
    give_up_at = time.monotonic() + GONE_WITHIN_SEC
    while (ended := executor.ended()) is None:
        assert time.monotonic() < give_up_at
        wait_for_any([executor], timeout_sec=0.1)
    return ended


def test_the_sample_events_are_filled_in() -> None:
    assert find_dead_owner(death_of("the-request")) == "the-request"
    assert "the-request" in death_of("the-request")["responsePayload"]["errorMessage"]
    assert about("get_task", "a" * 24)["pathParameters"] == {"id": "a" * 24}
    assert about("cancel_task", "a" * 24)["path"] == "/tasks/" + "a" * 24


def test_there_are_200_tasks_and_the_same_each_time() -> None:
    requests = scenario.requests("http://127.0.0.1:1")

    assert len(requests) == scenario.WEBHOOKS == 200
    assert requests == scenario.requests("http://127.0.0.1:1")


# The account


def stored(db: Database[dict[str, Any]], status: str, *, reason: str = "exhausted") -> ObjectId:
    """Store a task that is done, pending, or a dead letter."""
    task_id = ObjectId()
    if status == "dead letter":
        db["tasks_dlq"].insert_one({"_id": {"task": task_id, "redrives": 0}, "reason": reason})
    else:
        db["tasks"].insert_one({"_id": task_id, "status": status})
    return task_id


def balance(db: Database[dict[str, Any]], expected: Mapping[TaskId, str]) -> Account:
    return account(expected, places(db))


def test_the_account_balances_if_each_task_is_in_one_final_place(db: Database[dict[str, Any]]) -> None:
    done, cancelled, dead = stored(db, "done"), stored(db, "cancelled"), stored(db, "dead letter")

    found = balance(db, {done: "done", cancelled: "cancelled", dead: "exhausted"})

    assert found.is_balanced
    assert found.ended == {"done": 1, "cancelled": 1, "dead letter": 1}
    assert found.dead_letters == {"exhausted": 1}


def test_a_task_that_is_nowhere_is_lost(db: Database[dict[str, Any]]) -> None:
    missing = ObjectId()

    found = balance(db, {stored(db, "done"): "done", missing: "done"})

    assert not found.is_balanced
    assert found.lost == {missing: "nowhere"}


def test_a_task_that_is_done_and_a_dead_letter_is_lost(db: Database[dict[str, Any]]) -> None:
    twice = stored(db, "dead letter")
    db["tasks"].insert_one({"_id": twice, "status": "done"})

    found = balance(db, {twice: "done"})

    assert not found.is_balanced
    assert found.lost == {twice: "done and dead letter"}
    assert found.ended == {}


def test_a_task_that_is_two_dead_letters_is_lost(db: Database[dict[str, Any]]) -> None:
    twice = stored(db, "dead letter")
    db["tasks_dlq"].insert_one({"_id": {"task": twice, "redrives": 1}, "reason": "exhausted"})

    assert balance(db, {twice: "exhausted"}).lost == {twice: "dead letter and dead letter"}


@pytest.mark.parametrize("status", ["pending", "processing", "failed"])
def test_a_task_that_has_not_ended_is_not_accounted_for(db: Database[dict[str, Any]], status: str) -> None:
    task_id = stored(db, status)

    assert balance(db, {task_id: "done"}).lost == {task_id: status}


def test_a_task_that_ended_otherwise_than_it_had_to_is_told(db: Database[dict[str, Any]]) -> None:
    done, dead = stored(db, "done"), stored(db, "dead letter")

    found = balance(db, {done: "exhausted", dead: "not_retryable"})

    assert not found.is_balanced
    assert found.elsewhere == {done: "done, not exhausted", dead: "exhausted, not not_retryable"}


def test_a_last_attempt_that_was_lost_with_its_executor_is_an_end_like_another(db: Database[dict[str, Any]]) -> None:
    lost = stored(db, "dead letter", reason="worker_lost")

    assert balance(db, {lost: "exhausted"}).is_balanced


def test_a_task_that_nobody_accepted_is_told(db: Database[dict[str, Any]]) -> None:
    done, extra = stored(db, "done"), stored(db, "done")

    found = balance(db, {done: "done"})

    assert not found.is_balanced
    assert found.unasked == (extra,)


# What is shown


def told(db: Database[dict[str, Any]], front: Front) -> report.Report:
    expected = {task_id: one.ends for task_id, one in front.accepted.items()}
    return report.Report(
        account=account(expected, places(db)),
        front=front,
        aws=Aws(),
        receiver=Receiver(url="", deliveries=["a", "a"], accepted=["a", "a"]),
        stories=stories(db, front.accepted),
        seconds=1.25,
    )


def printed(found: report.Report) -> str:
    output = io.StringIO()
    report.show(Console(file=output, width=screen.WIDTH), found)
    return output.getvalue()


def attempt(number: int, status: str, note: str = "") -> dict[str, Any]:
    return {"attempt": number, "status": status, "duration_ms": 52, "note": note}


def test_the_report_shows_the_least_disturbed_task_of_a_behaviour_and_the_dead_letters(
    db: Database[dict[str, Any]],
) -> None:
    front = Front(receiver="")
    front.answers.append(("enqueue_noop", 202))
    disturbed, plain, dead = stored(db, "done"), stored(db, "done"), stored(db, "dead letter")
    db["tasks"].update_one({"_id": disturbed}, {"$set": {"attempts": 1, "attempt_log": [attempt(0, "lost")] * 2}})
    db["tasks"].update_one({"_id": plain}, {"$set": {"attempts": 1, "attempt_log": [attempt(0, "succeeded")]}})
    log = [attempt(0, "failed", "it said 500"), attempt(1, "failed", "it said 500")]
    error = {"code": "http_500", "message": "it said 500 again"}
    letter = {"attempts": 2, "attempt_log": log, "error": error, "fingerprint": "f"}
    db["tasks_dlq"].update_one({"_id.task": dead}, {"$set": letter})
    for task_id, behaviour, ends in [
        (disturbed, "succeed", "done"),
        (plain, "succeed", "done"),
        (dead, "always fail (500)", "exhausted"),
    ]:
        front.accepted[task_id] = Accepted(behaviour=behaviour, ends=ends)

    found = told(db, front)
    text = printed(found)

    assert found.numbers()["retries"] == 1
    assert found.numbers()["runs_by_status"] == {"failed": 2, "lost": 2, "succeeded": 1}
    assert found.numbers()["delivered_again"] == 1
    assert "enqueue_noop 202" in text
    assert str(plain) in text
    assert str(disturbed) not in text
    assert re.search(rf"{dead} +1 +failed +52 ms +it said 500 *\n", text)
    assert re.search(r"1 +exhausted +http_500 +it said 500 again", text)
    assert text.endswith("All 3 accepted tasks are accounted for: 2 done, 0 cancelled, 1 dead letters; none is lost.\n")


def test_the_report_says_what_is_not_accounted_for(db: Database[dict[str, Any]]) -> None:
    front = Front(receiver="")
    waiting = [stored(db, "pending") for _ in range(7)]
    done = stored(db, "done")
    for task_id in waiting:
        front.accepted[task_id] = Accepted(behaviour="succeed", ends="done")
    front.accepted[done] = Accepted(behaviour="succeed", ends="exhausted")
    db["tasks"].update_many({}, {"$set": {"attempts": 0, "attempt_log": []}})
    extra = stored(db, "done")

    verdict = told(db, front).verdict()

    assert f"7 not in one final place: {waiting[0]} (pending), " in verdict
    assert " and 2 more; " in verdict
    assert f"1 ended otherwise than they had to: {done} (done, not exhausted); " in verdict
    assert f"1 stored without having been accepted: {extra}." in verdict


ATTEMPT = "  1.4 s  fail twice, then succeed  ..a683  attempt 1 failed: http_503: 127.0.0.1 answered 503"


def test_each_attempt_is_in_the_feed_once(db: Database[Any]) -> None:
    task_id, feed = ObjectId(), Feed(db)
    accepted: dict[TaskId, Accepted] = {task_id: Accepted(behaviour="succeed", ends="done")}
    attempts = [
        {
            "attempt": 1,
            "status": "failed",
            "started_at": T0,
            "duration_ms": 3,
            "note": "http_503: no",
        },
        {"attempt": 2, "status": "succeeded", "started_at": T0 + timedelta(seconds=1), "duration_ms": 54, "note": ""},
    ]
    db.tasks.insert_one({"_id": task_id, "status": "failed", "attempt_log": attempts[:1]})

    feed.read(accepted, at=1.0)
    feed.read(accepted, at=1.5)
    db.tasks.update_one({"_id": task_id}, {"$set": {"status": "done", "attempt_log": attempts}})
    feed.read(accepted, at=2.0)

    failed, succeeded = feed.lines
    assert failed.startswith("  1.0 s  succeed ")
    assert failed.endswith("attempt 1 failed: http_503: no")
    assert succeeded.startswith("  2.0 s  succeed ")
    assert succeeded.endswith("attempt 2 succeeded in 54 ms")


def view() -> View:
    aws = Aws()
    aws.counts.update(started=3, killed=1, reclaimed=17)
    aws.news.append("  1.5 s  executor 0123abcd was killed (SIGKILL); reclaim took back 17 tasks")
    where = Counter(pending=20, done=100)
    return View(rows=[Row(behaviour="succeed", ends="done", tasks=120, where=where)], aws=aws, attempts=[ATTEMPT])


def test_the_table_fits_into_100_columns() -> None:
    output = io.StringIO()
    console = Console(file=output, width=screen.WIDTH)

    with screen.live(console) as show:
        show(view())

    text = output.getvalue()
    assert re.search(r"succeed +120 +20 +100 +done", text)
    assert "3 started, 1 killed" in text
    assert "executor 0123abcd was killed" in text
    assert ATTEMPT in text
    assert "…" not in text


def test_without_a_table_what_has_not_changed_is_not_repeated() -> None:
    output = io.StringIO()

    with screen.plain(output) as show:
        show(view())
        show(view())

    assert output.getvalue().count("100 of 120 accepted tasks have ended") == 1


def test_a_place_is_told_by_its_reason() -> None:
    assert Place(where="dead letter", reason="exhausted").end == "exhausted"
    assert Place(where="done").end == "done"
