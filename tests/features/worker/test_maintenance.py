"""What workers do without the functions reclaim and archive, and what they leave alone beside a deployment."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from bson import ObjectId
from pymongo import MongoClient
from pymongo.database import Database

from tests.builders import add
from tests.buried import failed
from tests.features.worker.brisk import LEASE
from tests.features.worker.test_worker import yard_at
from tests.features.worker.workers import PATIENCE, Yard
from tests.keepers import a_keeper
from tests.unit.make import eventually
from tidemill.clock import ServerClock
from tidemill.dead_letters.archive import ArchiveContext
from tidemill.documents import DEAD_LETTERS
from tidemill.errors import MissingIndexError
from tidemill.executor.maintenance import Maintenance, MaintenanceContext, MaintenanceTiming
from tidemill.store.connection import Tasks, open_tasks
from tidemill.testing import Mongod

pytestmark = pytest.mark.slow

SECOND = timedelta(seconds=1)
DAY = timedelta(days=1)
UNAUTHORIZED = 13
FOREIGN = {"payload": {}, "attempts": 0, "next_retry_at": None}


@pytest.fixture
def yard(mongod: Mongod, db: Database[Any], tmp_path: Path) -> Iterator[Yard]:
    with yard_at(mongod.uri, db, tmp_path) as made:
        yield made


def holder(db: Database[Any]) -> str | None:
    """The worker that has the permit."""
    stored = db["control"].find_one({"_id": "maintenance"}) or {"holds": []}
    now = ServerClock(db).now()
    holders = [permit["owner"] for permit in stored["holds"] if permit["n"] and permit["until"] > now]
    assert len(holders) <= 1
    return holders[0] if holders else None


def indexes(db: Database[Any]) -> Any:
    return {name: db[name].index_information() for name in ("tasks", "tasks_dlq", "queue_stats", "occurrences")}


def warnings_in(lines: list[str]) -> list[str]:
    """What it says but for the failed attempts."""
    return [line for line in lines if line.startswith("tidemill: ")]


@contextmanager
def failing(client: MongoClient[Any], command: str) -> Iterator[None]:
    """Refuse *command* to the maintenance of workers, for want of a right."""
    data = {"failCommands": [command], "appName": "tidemill-maintenance", "errorCode": UNAUTHORIZED}
    client.admin.command("configureFailPoint", "failCommand", mode="alwaysOn", data=data)
    try:
        yield
    finally:
        client.admin.command("configureFailPoint", "failCommand", mode="off")


def test_the_tasks_of_a_killed_worker_are_done_by_another_within_the_lease_and_five_seconds(yard: Yard) -> None:
    killed = yard.brisk()
    waiting = yard.add("wait", 2, max_retries=0)
    assert yard.begins(2)
    [name] = killed.out
    assert holder(yard.db) == name
    other = yard.brisk()
    killed.send(signal.SIGSTOP)  # nothing of it ends between here and its death
    killed_at = ServerClock(yard.db).now()
    killed.send(signal.SIGKILL)
    yard.go()
    [gone] = yard.add("fail")

    assert yard.becomes(done=2)
    assert yard.buries(gone)

    ends = [task["finished_at"] for task in yard.db["tasks"].find({"_id": {"$in": waiting}})]
    assert max(ends) - killed_at <= LEASE + 5 * SECOND
    assert yard.status(_id={"$in": waiting}, **{"attempt_log.status": "lost"}) == {"done": 2}
    assert holder(yard.db) == other.out[0]


def test_one_worker_at_a_time_does_it_and_a_paused_one_takes_nothing_back(yard: Yard) -> None:
    first, second = yard.brisk(), yard.brisk()
    assert eventually(lambda: holder(yard.db) is not None)
    assert holder(yard.db) == first.out[0]

    first.send(signal.SIGSTOP)
    assert eventually(lambda: holder(yard.db) == second.out[0], within=PATIENCE)
    before = yard.db["control"].find_one({"_id": "maintenance"})
    first.send(signal.SIGCONT)

    def has_asked() -> bool:
        stored = yard.db["control"].find_one({"_id": "maintenance"}) or {"holds": []}
        return first.out[0] in [permit["owner"] for permit in stored["holds"]]

    assert before is not None
    assert eventually(has_asked, within=PATIENCE)
    assert holder(yard.db) == second.out[0]


def test_a_worker_that_stops_leaves_the_permit_to_the_next(yard: Yard) -> None:
    first = yard.worker()
    assert eventually(lambda: holder(yard.db) is not None)

    assert first.stopped().status == 0

    assert holder(yard.db) is None


def test_it_fails_what_expired_and_moves_what_failed(yard: Yard) -> None:
    [late] = yard.add("note", expires_at=ServerClock(yard.db).now() - DAY, queue="unserved")
    [gone] = yard.add("fail")
    yard.add("fork", 2)
    yard.brisk()

    assert yard.buries(late, gone)
    assert yard.becomes(done=2)
    [after] = yard.add("fail")
    assert yard.buries(after), "a fork in a task does not end it"
    assert (yard.letter(late)["reason"], yard.letter(gone)["reason"]) == ("expired", "not_retryable")


def test_it_is_left_to_the_functions_if_one_says_so(yard: Yard) -> None:
    [gone] = yard.add("fail")
    worker = yard.worker("--no-maintenance")

    assert yard.becomes(failed=1)

    assert worker.stopped().status == 0
    assert yard.stored(gone)["status"] == "failed"
    assert yard.db["control"].find_one({"_id": "maintenance"}) is None


def test_beside_a_deployment_with_other_settings_it_changes_nothing_of_them(yard: Yard) -> None:
    now = ServerClock(yard.db).now()
    yard.db["tasks"].drop_index("key")
    foreign = [
        FOREIGN | {"_id": ObjectId(), "status": status} for status in ("pending", "processing", "failed", "done")
    ]
    marked = {"_id": {"task": ObjectId(), "redrives": 0}, "dead_lettered_at": now - DAY, "retain_from": now - DAY}
    unmarked = {"_id": {"task": ObjectId(), "redrives": 0}, "dead_lettered_at": now - DAY}
    yard.db["tasks"].insert_many(foreign)
    yard.db["tasks_dlq"].insert_many([marked, unmarked])
    before = indexes(yard.db)

    yard.brisk(RETENTION_DAYS="0.001", DEAD_LETTER_RETENTION_DAYS="0.001", EXPIRE_UNEXPORTED="true")
    assert yard.buries(*yard.add("fail"))
    assert yard.buries(*yard.add("fail")), "it did all its steps between the two"

    assert eventually(lambda: yard.db["tasks"].count_documents({}) == len(foreign), within=PATIENCE)
    assert indexes(yard.db) == before
    assert {one["_id"]: one for one in yard.db["tasks"].find()} == {one["_id"]: one for one in foreign}
    letters = {str(one["_id"]): one for one in yard.db["tasks_dlq"].find()}
    assert letters[str(marked["_id"])] == marked
    assert letters[str(unmarked["_id"])] == unmarked
    assert not any("archived_at" in letter for letter in letters.values())


def test_with_a_database_of_its_own_it_does_all_that_the_functions_do(yard: Yard) -> None:
    yard.db["tasks"].drop_index("claim")
    yard.db["tasks_dlq"].drop_index("recent")
    [gone] = add(open_tasks(yard.db), [failed(ServerClock(yard.db).now())])
    adopted, malformed = ObjectId(), ObjectId()
    yard.db["tasks"].insert_one(FOREIGN | {"_id": adopted, "status": "failed", "finished_at": None})
    yard.db["tasks"].insert_one({"_id": malformed, "status": "pending", "payload": "no object"})

    worker = yard.worker("--own-database", RETENTION_DAYS="3", DEFAULT_TASK="watched.note", EXPIRE_UNEXPORTED="true")
    assert yard.buries(adopted, gone, malformed)
    assert eventually(lambda: yard.db["tasks_dlq"].count_documents({"retain_from": None}) == 0, within=PATIENCE), (
        "dead letters may expire"
    )
    ended = worker.stopped()

    made = indexes(yard.db)
    assert {"claim", "key"} <= set(made["tasks"])
    assert "recent" in made["tasks_dlq"]
    assert made["tasks"]["retention"]["expireAfterSeconds"] == 3 * 86400
    assert yard.letter(adopted)["name"] == "watched.note"
    assert yard.letter(malformed)["reason"] == "malformed"
    assert (ended.status, warnings_in(ended.err)) == (0, ["tidemill: stopping"])


def test_the_two_options_exclude_each_other(yard: Yard) -> None:
    ended = yard.process("--own-database", "--no-maintenance").ended()

    assert ended.status == 2
    assert ended.err == [
        "Usage: tidemill work [OPTIONS]",
        "tidemill: --no-maintenance and --own-database exclude each other: leave one of them out",
        "for example: tidemill work --tasks myapp.tasks --queue eu",
    ]


def test_an_error_stays_until_its_own_step_succeeds(tasks: Tasks) -> None:
    clock = ServerClock(tasks.database)
    timing = MaintenanceTiming(permit_sec=3, renew_sec=0.2, pass_sec=0.01)
    archives = ArchiveContext(
        tasks=tasks, dead=open_tasks(tasks.database, DEAD_LETTERS), clock=clock, task_retention=DAY
    )
    context = MaintenanceContext(
        owner="A", reclaim=a_keeper(tasks, clock), archive=archives, owns_database=True, timing=timing
    )

    def renewals() -> int:
        stored = tasks.database["control"].find_one({"_id": "maintenance"}) or {"holds": [{"seq": 0}]}
        return int(stored["holds"][0]["seq"])

    tasks.drop_index("claim")  # only the sweep needs it
    with Maintenance(context) as maintenance:
        assert eventually(lambda: isinstance(maintenance.error, MissingIndexError))
        after = renewals() + 4
        assert eventually(lambda: maintenance.error is None or renewals() >= after, within=PATIENCE)
        assert isinstance(maintenance.error, MissingIndexError)


def test_a_step_that_fails_is_told_once_and_goes_on_later(yard: Yard, client: MongoClient[Any]) -> None:
    with failing(client, "insert"):
        [gone] = add(open_tasks(yard.db), [failed(ServerClock(yard.db).now())])
        worker = yard.worker()
        assert worker.says("maintenance failed: MongoDB refuses the operation")
        yard.add("note")
        assert eventually(lambda: yard.status(status="done") == {"done": 1}, within=PATIENCE)
    assert worker.says("maintenance works again")
    assert yard.buries(gone)
    ended = worker.stopped()

    assert ended.status == 0
    assert len(warnings_in(ended.err)) == 3, ended.err
