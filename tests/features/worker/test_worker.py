"""``tidemill work``: workers that are started, stopped and killed as real processes."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pymongo.database import Database

from tests.features.conftest import Bench
from tests.features.worker.workers import PACKAGE, Yard
from tests.handlers import wire
from tests.unit.make import eventually
from tidemill.clock import ServerClock
from tidemill.testing import Mongod

pytestmark = pytest.mark.slow

SECOND = timedelta(seconds=1)
HELPERLESS = f"""
import os, sys
from {PACKAGE} import watched
if "tidemill.runner.forkserver" in sys.modules:
    os._exit(1)
"""


@pytest.fixture(autouse=True)
def interruptible() -> Iterator[None]:
    """A child inherits that SIGINT is ignored, which it is in a job in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def yard(mongod: Mongod, db: Database[Any], tmp_path: Path) -> Iterator[Yard]:
    with yard_at(mongod.uri, db, tmp_path) as made:
        yield made


@contextmanager
def yard_at(uri: str, db: Database[Any], folder: Path) -> Iterator[Yard]:
    made = Yard(uri=uri, db=db, folder=folder)
    try:
        yield made
    finally:
        made.close()


def test_it_says_once_what_it_serves_and_at_its_end_what_it_did(yard: Yard) -> None:
    yard.add("note", 3)
    worker = yard.worker("--concurrency", "4", CONCURRENCY="9")
    assert yard.becomes(done=3)

    ended = worker.stopped()

    [beginning, ending] = ended.out
    assert re.fullmatch(
        rf"work-[A-Za-z0-9-]+-{worker.pid}-[0-9a-f]{{8}} serves all queues of {yard.db.name}: "
        rf"up to 4 tasks at once, [0-9]+ functions of {PACKAGE}",
        beginning,
    )
    assert ending == "stopped: 3 claimed, 3 done"
    assert ended.status == 0
    assert [line.split(": ")[:2] for line in ended.err] == [["tidemill", "stopping"]]


def test_what_is_enqueued_while_it_lives_is_run(yard: Yard) -> None:
    worker = yard.worker()

    for count in range(1, 4):
        yard.add("note")
        assert yard.becomes(done=count)

    assert worker.stopped().status == 0


def test_it_makes_its_functions_known(yard: Yard) -> None:
    yard.worker()

    known = {one["_id"]: one["timeout_sec"] for one in yard.db["task_types"].find()}

    assert known["watched.wait"] == 600
    assert "watched.note" in known


def test_it_serves_the_queues_and_the_lane_it_is_told_to(yard: Yard) -> None:
    eu = yard.add("note", 2, queue="eu")
    retried = yard.add("note", 2, queue="eu", lane="retry", attempts=1)
    yard.add("note", 2, queue="us", lane="retry", attempts=1)

    ended = yard.process("--queue", "eu", "--queue", "asia", "--lane", "retry", "--until-empty", LINGER_SEC="0").ended()

    assert (ended.status, ended.out[1]) == (0, "stopped: 2 claimed, 2 done")
    assert "serves queues eu, asia of" in ended.out[0]
    assert ", lane retry: " in ended.out[0]
    assert ended.err == ["tidemill: warning: queue asia is not declared and has no tasks; serving it anyway"]
    assert {one["_id"] for one in yard.db["tasks"].find({"status": "done"})} == set(retried)
    assert yard.status(_id={"$in": eu}) == {"pending": 2}


def test_until_empty_it_runs_what_is_due_and_leaves(yard: Yard) -> None:
    yard.add("note", 20)

    ended = yard.process("--until-empty", "--concurrency", "2", LINGER_SEC="0").ended()

    assert (ended.status, ended.out[1:], ended.err) == (0, ["stopped: 20 claimed, 20 done"], [])


def test_without_the_index_of_keys_it_warns_and_works(yard: Yard) -> None:  # A14
    yard.db["tasks"].drop_index("key")
    yard.add("note", 2)

    ended = yard.process("--until-empty", LINGER_SEC="0").ended()

    assert (ended.status, ended.out[1:]) == (0, ["stopped: 2 claimed, 2 done"])
    [warning] = ended.err
    assert warning.startswith(
        "tidemill: warning: an index is missing (key), so enqueues with an idempotency key or the"
    )
    assert warning.endswith("may fail: run `tidemill indexes`")


def test_asked_to_stop_it_lets_what_runs_end_and_gives_back_the_rest(yard: Yard) -> None:
    ids = yard.add("wait", 2) + yard.add("await") + yard.add("apart")
    worker = yard.worker("--concurrency", "4")
    assert yard.begins(4)
    yard.add("note", 5)

    worker.send(signal.SIGTERM)
    assert worker.says("stopping: 4 tasks still run; a second signal exits at once")
    yard.go()
    ended = worker.ended()

    assert ended.status == 0
    assert yard.status(_id={"$in": ids}) == {"done": 4}
    assert yard.status() == {"done": 4, "pending": 5}
    assert {one["attempts"] for one in yard.db["tasks"].find({"status": "pending"})} == {0}


def test_an_interrupt_from_the_keyboard_stops_it_as_well_and_no_task(yard: Yard) -> None:
    yard.add("wait")
    yard.add("apart")
    worker = yard.worker()
    assert yard.begins(2)

    worker.send_to_all(signal.SIGINT)
    assert worker.says("stopping: 2 tasks still run")
    yard.go()
    ended = worker.ended()

    assert (ended.status, ended.out[1:]) == (0, ["stopped: 2 claimed, 2 done"])
    assert len(ended.err) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_leaves_at_once_and_what_ran_comes_back(
    yard: Yard, bench: Bench, number: signal.Signals
) -> None:
    [waiting] = yard.add("wait", max_retries=0)
    [apart] = yard.add("apart", max_retries=0)
    worker = yard.worker()
    assert yard.begins(2)
    [child] = [n for n in yard.began if n]

    worker.send(number)
    assert worker.says("stopping: 2 tasks still run")
    ended = worker.stopped(number)

    assert ended.status == 128 + number
    assert ended.err[1:] == ["tidemill: exited at once: reclaim returns the running tasks within 60 s"]
    assert eventually(lambda: not is_alive(child))
    assert yard.status() == {"processing": 2}
    bench.clock.at = ServerClock(yard.db).now() + 61 * SECOND
    assert bench.reclaim()["reclaimed"] == 2
    assert yard.status(_id={"$in": [waiting, apart]}, attempts=0) == {"pending": 2}


def test_a_second_signal_charges_nothing_to_an_isolated_task(yard: Yard) -> None:
    ids = yard.add("apart", 4, max_retries=0)
    worker = yard.worker("--isolated-concurrency", "4")
    assert yard.begins(4)
    children = yard.began

    worker.send(signal.SIGTERM)
    assert worker.says("stopping: 4 tasks still run")
    ended = worker.stopped()

    assert ended.status == 128 + signal.SIGTERM
    assert eventually(lambda: not any(map(is_alive, children)))
    untouched = {"attempts": 1, "crashes": 0, "lease.token": {"$exists": True}}
    assert yard.status(_id={"$in": ids}, **untouched) == {"processing": 4}


def test_why_an_isolated_task_did_not_start_is_told_while_the_worker_lives(yard: Yard, tmp_path: Path) -> None:
    package = tmp_path / "helperless"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "tasks.py").write_text(HELPERLESS)
    [task_id] = yard.add("apart")
    worker = yard.worker("--tasks", "helperless", PYTHONPATH=str(tmp_path))

    assert worker.says("a task did not start and is postponed: the function could not be given a process of its own: ")
    assert eventually(lambda: yard.status(_id=task_id, attempts=0) == {"pending": 1})
    ended = worker.stopped()

    assert ended.status == 0
    assert len(ended.err) == 2


def test_what_a_killed_worker_held_comes_back_with_its_attempts(yard: Yard, bench: Bench) -> None:
    yard.add("wait", 2, max_retries=0)
    worker = yard.worker("--concurrency", "2")
    assert yard.begins(2)

    assert worker.stopped(signal.SIGKILL).status == -signal.SIGKILL

    bench.clock.at = ServerClock(yard.db).now() + 30 * SECOND
    assert bench.reclaim()["reclaimed"] == 0
    bench.clock.move(31 * SECOND)
    assert bench.reclaim()["reclaimed"] == 2
    assert yard.status(attempts=0, crashes=1) == {"pending": 2}


def test_no_process_of_an_isolated_task_outlives_its_worker(yard: Yard) -> None:
    yard.add("apart")
    worker = yard.worker()
    assert yard.begins(1)
    [child] = yard.began

    worker.stopped(signal.SIGKILL)

    assert eventually(lambda: not is_alive(child))


def test_a_database_that_is_restarted_under_it_is_told_once_and_nothing_is_lost(
    mongod: Mongod, db: Database[Any], tmp_path: Path
) -> None:
    with wire.proxy(mongod.uri) as proxy, wire.nobody() as address, yard_at(proxy.uri, db, tmp_path) as yard:
        yard.add("wait", 2, max_retries=0)
        worker = yard.worker()
        assert yard.begins(2)

        proxy.reroute(f"mongodb://{address}")
        proxy.cut()
        yard.go()
        assert worker.says("trying again")
        yard.add("note", 3)
        proxy.reroute(mongod.uri)

        assert worker.says("working again")
        assert yard.becomes(done=5)
        ended = worker.stopped()

    assert ended.status == 0
    assert re.fullmatch(
        r"tidemill: MongoDB (did not answer in time|was not reached) \(.+\); trying again", ended.err[0]
    )
    assert ended.err[1:] == ["tidemill: working again", "tidemill: stopping"]
    assert "5 done" in ended.out[1]
    assert Counter(yard.began) == Counter([0, 0, 1, 1, 2])


def test_two_workers_share_the_tasks_and_run_none_twice(yard: Yard) -> None:
    workers = [yard.worker("--concurrency", "10"), yard.worker("--concurrency", "10")]
    yard.add("wait", 20)
    assert yard.begins(20), "ten for each of them"

    yard.add("note", 480)
    yard.go()

    assert yard.becomes(done=500)
    assert [worker.stopped().status for worker in workers] == [0, 0]
    assert Counter(yard.began) == Counter(range(480)) + Counter(range(20))
    assert yard.status(attempts=1) == {"done": 500}


def test_a_function_that_hangs_keeps_no_worker(yard: Yard) -> None:
    [task_id] = yard.add("deaf", max_retries=0)
    worker = yard.worker()
    assert yard.begins(1)

    ended = worker.stopped()

    assert ended.status == 0
    assert "1 timed_out" in ended.out[1]
    assert "1 leftovers" in ended.out[1]
    found = yard.stored(task_id)
    assert (found["status"], found["error"]["code"]) == ("failed", "timeout")


def test_a_thread_that_a_function_left_behind_keeps_no_worker(yard: Yard) -> None:
    yard.add("litter")
    worker = yard.worker()
    assert yard.becomes(done=1)

    assert worker.stopped().status == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_before_it_has_begun_ends_it_there_and_then(yard: Yard, number: signal.Signals) -> None:
    yard.add("note")
    with socket.create_server(("127.0.0.1", 0)) as mute:
        worker = yard.process(MONGODB_URI=f"mongodb://127.0.0.1:{mute.getsockname()[1]}/")
        mute.settimeout(30)
        connection, _ = mute.accept()
        with connection:
            ended = worker.stopped(number)

    assert (ended.status, ended.out, ended.err) == (0, [], ["tidemill: stopped before the worker started"])


def test_a_terminal_that_is_closed_stops_it_and_no_task(yard: Yard) -> None:
    yard.add("wait")
    worker = yard.worker()
    assert yard.begins(1)

    worker.send_to_all(signal.SIGHUP)
    assert worker.says("stopping: 1 task still runs")
    worker.send_to_all(signal.SIGHUP)
    yard.go()
    ended = worker.ended()

    assert (ended.status, ended.out[1:]) == (0, ["stopped: 1 claimed, 1 done"])


def test_under_nohup_it_outlives_its_terminal(yard: Yard) -> None:
    yard.add("wait")
    worker = yard.process(before=("nohup",))
    assert yard.begins(1)

    worker.send_to_all(signal.SIGHUP)
    yard.go()
    assert yard.becomes(done=1)
    yard.add("note")
    assert yard.becomes(done=2)

    assert worker.stopped().status == 0


@pytest.mark.parametrize("redirection", [">&-", ">/dev/full"])
def test_where_its_output_cannot_be_written_it_works_in_silence(yard: Yard, redirection: str) -> None:
    yard.add("note")
    yard.add("apart")
    yard.go()
    silent = ("/bin/sh", "-c", f'exec "$0" "$@" {redirection}')

    ended = yard.process("--until-empty", before=silent, LINGER_SEC="0").ended()

    assert (ended.status, ended.out, ended.err) == (0, [], [])
    assert yard.status() == {"done": 2}


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_without_threads_it_finishes_what_runs_and_fails_so_that_another_is_started(yard: Yard) -> None:
    yard.add("exhaust")
    worker = yard.worker("--concurrency", "2")
    assert yard.begins(1)
    [rest] = yard.add("note")
    assert worker.says("a task did not start and is postponed")
    yard.go()

    ended = worker.ended()

    assert ended.status == 1
    assert ended.err[-1] == "tidemill: this process has no threads left for functions: start another one"
    assert yard.status() == {"done": 1, "pending": 1}
    assert yard.db["tasks"].find_one({"_id": rest})["attempts"] == 0  # type: ignore[index]
