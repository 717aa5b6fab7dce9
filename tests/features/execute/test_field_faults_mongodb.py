"""Faults that queues had with MongoDB itself: options of a URI, TTL, a lone server, replies that never came."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pymongo import MongoClient, ReadPreference, monitoring
from pymongo.database import Database

from tests.builders import add, document, stored
from tests.buried import letter
from tests.features.conftest import Bench
from tests.features.execute.containers import Container
from tests.handlers import wire
from tests.handlers.calls import answer, request
from tests.keepers import lost
from tests.unit.make import eventually
from tidemill import Fail, Queue, Retry, indexes
from tidemill.admin.api import OPERATIONS, operate, read_operation
from tidemill.admin.context import AdminContext
from tidemill.dead_letters.archive import move_failed
from tidemill.documents import DEAD_LETTERS
from tidemill.policy.retry import DEFAULT
from tidemill.settings import Settings
from tidemill.store import tasks
from tidemill.store.connection import Tasks, open_tasks
from tidemill.store.mark import require_mark
from tidemill.testing import Mongod

pytestmark = pytest.mark.slow

SECOND = timedelta(seconds=1)
DAY = timedelta(days=1)
LONG_AGO = datetime(2026, 7, 1, tzinfo=UTC)
WRITES = ("insert", "update", "delete", "findAndModify")
WEAK = "w=0&readPreference=secondaryPreferred&readConcernLevel=available&retryWrites=false"


def test_retention_removes_what_has_ended_and_nothing_else(db: Database[Any], tasks: Tasks, dead: Tasks) -> None:  # F85
    today = datetime.now(UTC)
    old = today - 30 * DAY
    kept = add(
        tasks,
        [
            document(old, due_at=today + 30 * DAY, next_retry_at=today + 30 * DAY),
            document(old, status="processing", attempts=1),
            document(old, lane="retry", attempts=1, finished_at=None),
            document(old, status="failed", finished_at=old),
            document(old, status="done", finished_at=today - 6 * DAY, retain_from=today - 6 * DAY, idempotency_key="k"),
            document(old, status="cancelled", retain_from=today - 6 * DAY),
            *(
                document(old, status=again, retain_from=today - 8 * DAY)
                for again in ("pending", "processing", "failed")
            ),
        ],
    )
    add(tasks, [document(old, status=status, retain_from=today - 8 * DAY) for status in ("done", "cancelled")])
    letters: list[dict[str, Any]] = [{"_id": {"task": n, "redrives": 0}, "dead_lettered_at": old} for n in range(4)]
    over = {"retain_from": today - 31 * DAY}
    add(dead, [letters[0], letters[1] | {"retain_from": today - 29 * DAY}, letters[2] | over])
    add(dead, [letters[3] | over | {"redrive_started_at": today}])  # it would be nowhere else

    assert eventually(lambda: db["tasks"].count_documents({}) == len(kept) and dead.count_documents({}) == 3, within=20)

    assert sorted(one["_id"] for one in db["tasks"].find()) == sorted(kept)
    assert sorted(one["_id"]["task"] for one in dead.find()) == [0, 1, 3]


def test_only_what_has_ended_well_is_marked_to_be_removed(bench: Bench, dead: Tasks, now: datetime) -> None:  # F85
    def ends_as(payload: dict[str, Any], ctx: Any) -> None:
        how = payload["how"]
        if how == "cancelled":
            tasks.cancel(bench.tasks, ctx.task_id, now=now)
        if how != "done":
            raise {"failed": Fail, "retried": Retry, "cancelled": Retry}[how]

    bench.task("ends")(ends_as)
    add(bench.tasks, [document(now, name="ends", payload={"how": how}) for how in ("done", "failed", "retried")])
    add(bench.tasks, [document(now, name="ends", payload={"how": "cancelled"}), lost(now)])
    add(bench.tasks, [document(now, due_at=now + DAY), document(now, expires_at=now), {"status": "pending"}])

    bench.reclaim()
    bench.execute()

    marked = {one["status"] for one in bench.db["tasks"].find({"retain_from": {"$exists": True}})}
    assert marked == {"done", "cancelled"}
    assert move_failed(bench.tasks, dead, clock=bench.clock, until=1e12).moved == 3
    assert dead.count_documents({"retain_from": {"$exists": True}}) == 0


class _Sent(monitoring.CommandListener):
    """Keeps what was sent."""

    def __init__(self) -> None:
        self.commands: list[tuple[str, Mapping[str, Any]]] = []

    def names(self) -> set[str]:
        return {name for name, _ in self.commands}

    def weak(self) -> list[str]:
        """The writes that no majority confirms, themselves or with their transaction, and the reads elsewhere."""
        confirmed = [one for one in self.commands if one[0] == "commitTransaction"]
        confirmed += [one for one in self.commands if one[0] in WRITES and "autocommit" not in one[1]]
        weak = [name for name, command in confirmed if command.get("writeConcern", {}).get("w") != "majority"]
        astray = [name for name, command in self.commands if "$readPreference" in command]
        return weak + [name for name in astray if name != "endSessions"]

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        self.commands.append((event.command_name, event.command))

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None:
        pass

    def failed(self, event: monitoring.CommandFailedEvent) -> None:
        pass


def test_no_option_of_a_uri_weakens_a_write_or_moves_a_read(  # F87, F88
    mongod: Mongod, bench: Bench, now: datetime
) -> None:
    sent = _Sent()
    with MongoClient[dict[str, Any]](f"{mongod.uri}&{WEAK}", event_listeners=[sent], tz_aware=True) as client:
        weak = Bench(db=client[bench.db.name], clock=bench.clock)
        queue = Queue(weak.db, clock=weak.clock)
        queue.get(queue.enqueue("noop", {}))
        queue.cancel(queue.enqueue("noop", {}, idempotency_key="k"))
        add(bench.tasks, [document(now, name="no.such.task"), document(now, expires_at=now), {"status": "pending"}])
        add(bench.tasks, [lost(now), document(now, attempts=9, max_retries=0)])
        weak.execute(clock=weak.clock)
        weak.reclaim(dead_owner="dead")
        move_failed(open_tasks(weak.db), open_tasks(weak.db, DEAD_LETTERS), clock=weak.clock, until=1e12)

    assert sent.names() >= {"insert", "update", "delete", "findAndModify", "find", "aggregate"}
    assert sent.weak() == []
    assert open_tasks(weak.db).read_preference == ReadPreference.PRIMARY
    assert {one["status"] for one in bench.db["tasks"].find()} <= {"done", "cancelled", "pending"}


@pytest.mark.parametrize("options", [WEAK, "tz_aware=true", "tz_aware=false"])
def test_no_option_of_a_uri_stops_an_operator_or_weakens_what_is_done(  # F29, F87, F88
    mongod: Mongod, bench: Bench, dead: Tasks, now: datetime, options: str
) -> None:
    bench.db["task_types"].insert_one({"_id": "noop"})
    [delayed] = add(bench.tasks, [document(now, due_at=now + DAY, next_retry_at=now + DAY, attempts=1)])
    [pending, held] = add(bench.tasks, [document(now), lost(now)])
    buried = [letter(now), letter(now, name="gone")]
    add(dead, buried)
    asked: list[dict[str, Any]] = [
        {"op": "queue.declare", "queue": "eu"},
        *({"op": op, "queue": "eu"} for op in ("queue.pause", "queue.resume", "queue.status")),
        {"op": "queue.set", "queue": "eu", "retry_share": 0.5},
        *({"op": op, "key_id": "k9", "right": "queues.read"} for op in ("caller.grant", "caller.revoke")),
        *(
            {"op": op}
            for op in ("caller.list", "queue.list", "task.list", "stats", "dlq.groups", "dlq.list", "dlq.export")
        ),
        *({"op": op, "id": str(delayed)} for op in ("task.show", "task.explain", "task.retry")),
        {"op": "task.cancel", "id": str(pending)},
        {"op": "task.cancel", "id": str(held), "force": True},
        {"op": "dlq.show", "id": str(buried[0]["_id"]["task"])},
        {"op": "dlq.redrive", "name": "noop", "dry_run": False},
        {"op": "dlq.purge", "name": "gone", "dry_run": False},
    ]
    sent = _Sent()
    with MongoClient[dict[str, Any]](f"{mongod.uri}&{options}", event_listeners=[sent]) as client:
        context = AdminContext(db=client[bench.db.name], clock=bench.clock, retry=DEFAULT, put=lambda _key, _body: None)
        answers = [operate(read_operation(one), context).document() for one in asked]
        keyed = {"name": "noop", "payload": {}, "idempotency_key": "k"}
        Queue(context.db, clock=bench.clock).enqueue_many([{"name": "noop", "payload": {}}, keyed])  # one transaction

    assert {one["op"] for one in asked} == set(OPERATIONS)
    assert sent.names() >= {*WRITES, "commitTransaction"}
    assert sent.weak() == []
    times = re.findall(r'"\w+_at": "([^"]+)"', json.dumps(answers))
    assert len(times) > len(asked)
    assert {datetime.fromisoformat(one).utcoffset() for one in times} == {timedelta(0)}
    found = [(stored(bench.tasks, one)["status"], stored(bench.tasks, one)["due_at"]) for one in (delayed, pending)]
    assert found == [("pending", now), ("cancelled", now)]
    assert (stored(bench.tasks, held)["status"], dead.count_documents({"archived_at": now})) == ("cancelled", 1)


@pytest.mark.parametrize("options", ["w=0", "w=1&journal=false&retryWrites=false&readPreference=secondaryPreferred"])
def test_the_functions_work_whatever_the_uri_says_of_writes(  # F87, F88
    mongod: Mongod, db: Database[Any], options: str
) -> None:
    db["task_types"].insert_one({"_id": "noop", "http": True})
    _work_through(f"{mongod.uri}&{options}", db)


def test_a_lone_server_without_transactions_will_do() -> None:  # F89
    with Mongod(standalone=True) as server, MongoClient[dict[str, Any]](server.uri, tz_aware=True) as client:
        db = client["alone"]
        indexes.create(db)
        require_mark(db)
        db["task_types"].insert_one({"_id": "noop", "http": True})
        _work_through(server.uri, db)


def _work_through(uri: str, db: Database[Any]) -> None:
    """Enqueue, read at once, lose, reclaim, run, archive and redrive, through the handlers."""
    given: dict[str, str] = {"uri": uri, "database": db.name, "LINGER_SEC": "0"}
    add(db["tasks"], [lost(LONG_AGO), document(LONG_AGO, attempts=9, max_retries=0)])
    with Container("enqueue", **given) as front:
        task_id = answer(front.done(request(body={"name": "noop", "payload": {}}))).id
        assert answer(front.done(request("GET", f"/tasks/{task_id}"))).body["status"] == "pending"
        with Container("reclaim", **given) as container:
            assert container.done()["reclaimed"] == 1
        db["tasks"].update_many({"crashes": 1}, {"$set": {"due_at": LONG_AGO}})
        with Container("execute", **given) as container:
            report = container.done()
            assert (report["done"], report["failed"], report["unknown"]) == (2, 1, 0)
        with Container("archive", **given) as container:
            assert container.done()["moved"] == 1
        with Container("operate", **given) as container:
            assert container.done({"op": "dlq.redrive", "all": True, "dry_run": False})["redriven"] == 1
        assert answer(front.done(request("GET", f"/tasks/{task_id}"))).body["status"] == "done"
    assert db["tasks"].count_documents({"status": "pending", "redrives": 1, "attempts": 0}) == 1


SHORT = Settings(max_task_timeout=SECOND, task_timeout=SECOND, margin=SECOND / 2, concurrency=2, linger=timedelta(0))


def test_an_outage_in_the_middle_of_a_batch_costs_nothing_but_time(  # F91
    mongod: Mongod, bench: Bench, now: datetime
) -> None:
    bench.settings = SHORT
    bench.task("slow")(lambda _payload, _ctx: time.sleep(0.1))
    ids = add(bench.tasks, [document(now, name="slow", payload={"n": n}) for n in range(10)])
    with (
        wire.proxy(mongod.uri) as proxy,
        wire.nobody() as address,
        MongoClient[dict[str, Any]](proxy.uri) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        running = pool.submit(bench.execute, tasks=open_tasks(client[bench.db.name]), remaining=30 * SECOND)
        assert eventually(lambda: bench.tasks.count_documents({"status": "done"}) >= 2)
        proxy.reroute(f"mongodb://{address}")
        proxy.cut()
        time.sleep(1)  # the outage
        proxy.reroute(mongod.uri)
        report = running.result()

    assert sorted(bench.ran) == list(range(10))
    assert (report["done"], report["unknown"], report["lost"]) == (10, 0, 0)
    assert {stored(bench.tasks, one)["attempts"] for one in ids} == {1}


def test_what_an_outage_left_open_is_run_again_after_its_lease_and_charged_once(  # F91
    mongod: Mongod, bench: Bench, now: datetime
) -> None:
    bench.settings = SHORT
    with wire.proxy(mongod.uri) as proxy, wire.nobody() as address, MongoClient[dict[str, Any]](proxy.uri) as client:

        @bench.task("cut")
        def cut(_payload: dict[str, Any], _ctx: Any) -> None:
            proxy.reroute(f"mongodb://{address}")
            proxy.cut()

        ids = add(bench.tasks, [document(now, name="cut")])
        report = bench.execute(tasks=open_tasks(client[bench.db.name]), remaining=4 * SECOND)
        proxy.reroute(mongod.uri)

    assert (report["claimed"], report["done"], report["unknown"]) == (1, 0, 1)
    bench.clock.move(10 * SECOND)
    assert bench.reclaim()["reclaimed"] == 1
    bench.clock.move(5 * SECOND)
    assert bench.execute()["done"] == 1
    assert [(one["attempts"], one["crashes"]) for one in (stored(bench.tasks, task_id) for task_id in ids)] == [(1, 0)]


@pytest.mark.parametrize("retried", ["true", "false"])
def test_a_claim_whose_reply_was_lost_is_run_at_once(  # F92
    mongod: Mongod, bench: Bench, now: datetime, retried: str
) -> None:
    ids = add(bench.tasks, [document(now, payload={"n": n}) for n in range(10)])
    with (
        wire.proxy(mongod.uri) as proxy,
        MongoClient[dict[str, Any]](f"{proxy.uri}&retryWrites={retried}") as client,
    ):
        tasks = open_tasks(client[bench.db.name])
        tasks.find_one({})
        proxy.lose_reply_of("update")

        report = bench.execute(tasks=tasks)

    assert sorted(bench.ran) == list(range(10))
    assert (report["done"], report["lost"], report["unknown"]) == (10, 0, 0)
    assert report["errors"] >= 1
    assert {stored(bench.tasks, one)["attempts"] for one in ids} == {1}
