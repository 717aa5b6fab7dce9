"""``POST /tasks/batch``: all or none, in order, and errors that say which."""

from __future__ import annotations

from typing import Any

import pytest
from bson import ObjectId
from pymongo import MongoClient
from pymongo.client_session import ClientSession
from pymongo.database import Database
from pymongo.monitoring import CommandListener, CommandStartedEvent

from tests.at_once import at_once
from tests.builders import new_tasks
from tests.faults import enqueue_failing as failing
from tests.faults import failing as broken
from tests.handlers.calls import Answer, request
from tests.handlers.conftest import Deployed
from tidemill import DuplicateKeyError, Queue, indexes
from tidemill.errors import InvalidRequestError, Problem, RefusedError
from tidemill.requests.tasks import MAX_TASKS
from tidemill.store import writes
from tidemill.store.connection import open_tasks
from tidemill.testing import Mongod

NOOP: dict[str, Any] = {"name": "noop", "payload": {}}


class Sent(CommandListener):
    """Keeps the names of the commands."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def started(self, event: CommandStartedEvent) -> None:
        self.names.append(event.command_name)

    def succeeded(self, event: object) -> None:
        """Nothing is kept of it."""

    def failed(self, event: object) -> None:
        """Nothing is kept of it."""


def numbered(count: int, **fields: Any) -> list[dict[str, Any]]:
    return [{"name": "noop", "payload": {"n": n}} | fields for n in range(count)]


def keyed(count: int) -> list[dict[str, Any]]:
    return [one | {"idempotency_key": f"k-{n}"} for n, one in enumerate(numbered(count))]


def post(deployed: Deployed, tasks: Any, **more: Any) -> Answer:
    return deployed.http(request("POST", "/tasks/batch", body={"tasks": tasks}, **more))


def ids(answer: Answer) -> list[str]:
    return [one["id"] for one in answer.body["tasks"]]


def test_a_thousand_are_stored_and_told_in_order(deployed: Deployed, db: Database[Any]) -> None:
    answer = post(deployed, numbered(MAX_TASKS))

    assert answer.status == 202
    assert "Location" not in answer.headers
    stored = {str(task["_id"]): task["payload"]["n"] for task in db.tasks.find()}
    assert [stored[task_id] for task_id in ids(answer)] == list(range(MAX_TASKS))
    assert ids(answer) == sorted(ids(answer))  # within one due time, claims take them in the order of their ids
    assert {one["status"] for one in answer.body["tasks"]} == {"pending"}


def test_they_run_and_are_told_of_like_any_other(deployed: Deployed) -> None:
    answer = post(deployed, [*numbered(2), NOOP | {"delay_sec": 60, "priority": -10, "retry": "patient"}])

    assert deployed.invoke("execute")["done"] == 2
    assert [deployed.get(task_id).body["status"] for task_id in ids(answer)] == ["done", "done", "pending"]


def test_a_warm_batch_is_one_insert_and_a_commit(deployed: Deployed) -> None:
    post(deployed, [NOOP])
    deployed.commands()

    post(deployed, numbered(1000))

    (insert, begun), (commit, ended) = deployed.commands()
    assert (insert, begun["readConcern"]["level"]) == ("insert", "snapshot")
    assert (commit, ended["writeConcern"]["w"]) == ("commitTransaction", "majority")


def test_a_warm_batch_with_keys_is_one_look_more(deployed: Deployed) -> None:
    post(deployed, [NOOP])
    deployed.commands()

    post(deployed, keyed(1000))

    assert [name for name, _ in deployed.commands()] == ["find", "insert", "commitTransaction"]


@pytest.mark.parametrize(
    ("tasks", "fields"),
    [
        ([NOOP, {"payload": {}}, NOOP | {"priority": 11}], {"tasks.1.name", "tasks.2.priority"}),
        ([NOOP, NOOP | {"name": "missing"}], {"tasks.1.name"}),
        ([NOOP, NOOP | {"queue": "eu", "timeout_sec": 800}], {"tasks.1.queue", "tasks.1.timeout_sec"}),
        ([NOOP | {"expires_at": "2020-01-01T00:00:00Z"}, NOOP], {"tasks.0.expires_at"}),
        ([NOOP, NOOP | {"idempotency_key": ""}], {"tasks.1.idempotency_key"}),
        ([NOOP, NOOP | {"idempotency_key": {"$gt": ""}}], {"tasks.1.idempotency_key"}),
        ([NOOP, NOOP | {"idempotency_key": 7}], {"tasks.1.idempotency_key"}),
        ([NOOP, "noop"], {"tasks.1"}),
        ([NOOP, None], {"tasks.1"}),
        ([], {"tasks"}),
        ("noop", {"tasks"}),
        (None, {"tasks"}),
        ([NOOP] * (MAX_TASKS + 1), {"tasks"}),
    ],
)
def test_what_is_not_allowed_is_named_by_its_index_and_nothing_is_stored(
    unchanged: Deployed, tasks: Any, fields: set[str]
) -> None:
    answer = post(unchanged, tasks)

    assert (answer.status, answer.code, answer.fields) == (422, "not_allowed", fields)


@pytest.mark.parametrize("body", [{}, {"tasks": [NOOP], "queue": "default"}, NOOP, {"tasks": [NOOP], "_id": 1}])
def test_a_body_of_another_shape_is_422(unchanged: Deployed, body: Any) -> None:
    assert unchanged.http(request("POST", "/tasks/batch", body=body)).status == 422


@pytest.mark.parametrize("body", ["", "[]", "{bad", None, '{"tasks": [], "tasks": []}', '{"tasks": [{"a": NaN}]}'])
def test_a_body_that_cannot_be_read_is_400(unchanged: Deployed, body: Any) -> None:
    assert unchanged.http(request("POST", "/tasks/batch", body=body)).status == 400


def test_many_that_are_wrong_are_told_as_a_few(unchanged: Deployed) -> None:
    answer = post(unchanged, [NOOP | {"name": f"missing_{n}"} for n in range(1000)])

    assert answer.status == 422
    assert len(answer.body["error"]["details"]) == 20 + 1
    assert answer.body["error"]["details"][-1]["message"] == "and more problems"
    asked = [sent["find"] for name, sent in unchanged.commands() if name == "find"]
    assert [name for name in asked if name != "control"] == ["task_types", "queues"]  # once for all of them


def test_the_header_is_refused_since_each_task_may_have_a_key(unchanged: Deployed) -> None:
    answer = post(unchanged, [NOOP], headers={"Idempotency-Key": "k"})

    assert (answer.status, answer.fields) == (422, {"Idempotency-Key"})


def test_a_batch_with_keys_that_is_sent_again_is_the_same_tasks(deployed: Deployed, db: Database[Any]) -> None:
    first = post(deployed, keyed(3))
    deployed.invoke("execute")

    again, more = post(deployed, keyed(3)), post(deployed, keyed(4))

    assert (first.status, again.status, more.status) == (202, 200, 202)
    assert ids(again) == ids(first)
    assert ids(more)[:3] == ids(first)
    assert [one["status"] for one in more.body["tasks"]] == ["done", "done", "done", "pending"]
    assert db.tasks.count_documents({}) == 4


def test_a_key_is_the_same_whichever_way_it_came(deployed: Deployed) -> None:
    one = deployed.post(NOOP, key="k")

    assert ids(post(deployed, [NOOP | {"idempotency_key": "k"}])) == [one.id]
    assert ids(post(deployed, [NOOP | {"idempotency_key": "k"}], caller="another")) != [one.id]


def test_a_key_of_another_request_is_a_conflict_that_is_named_and_nothing_is_stored(
    deployed: Deployed, db: Database[Any]
) -> None:
    post(deployed, keyed(2))

    answer = post(deployed, [NOOP, NOOP | {"idempotency_key": "k-0"}, NOOP | {"idempotency_key": "new"}])

    assert (answer.status, answer.code, answer.fields) == (409, "key_in_use", {"tasks.1.idempotency_key"})
    assert db.tasks.count_documents({}) == 2


def test_a_key_that_is_there_twice_is_one_task_or_a_conflict(deployed: Deployed, db: Database[Any]) -> None:
    twice = post(deployed, [NOOP | {"idempotency_key": "k"}] * 2)
    conflict = post(deployed, [one | {"idempotency_key": "other"} for one in numbered(2)])

    assert twice.status == 202
    assert len(set(ids(twice))) == 1
    assert (conflict.status, conflict.fields) == (409, {"tasks.1.idempotency_key"})
    assert db.tasks.count_documents({}) == 1


def test_twenty_batches_at_once_with_the_same_keys_are_one(db: Database[Any]) -> None:
    wanted = new_tasks(keyed(50))
    queues = [Queue(db) for _ in range(20)]

    accepted = at_once(queues, lambda queue: queue.enqueue_many(wanted))

    assert all(one == accepted[0] for one in accepted)
    assert db.tasks.count_documents({}) == 50


@pytest.mark.parametrize(
    "how", [{"errorCode": 112, "errorLabels": ["TransientTransactionError"]}, {"closeConnection": True}]
)
@pytest.mark.parametrize("command", ["insert", "commitTransaction"])
def test_a_transaction_that_is_disturbed_is_repeated(
    deployed: Deployed, db: Database[Any], client: MongoClient[Any], command: str, how: dict[str, Any]
) -> None:
    post(deployed, [NOOP])

    with failing(client, command, times=1, **how):
        answer = post(deployed, numbered(3))

    assert answer.status == 202
    assert {str(one["_id"]) for one in db.tasks.find()} >= set(ids(answer))
    assert db.tasks.count_documents({}) == 4


def test_a_transaction_that_keeps_failing_is_503_and_nothing_is_stored(
    deployed: Deployed, db: Database[Any], client: MongoClient[Any]
) -> None:
    post(deployed, [NOOP])

    with failing(client, "insert", times=1, errorCode=13):
        answer = post(deployed, numbered(3))

    assert answer.status == 503
    assert db.tasks.count_documents({}) == 1


def test_a_transaction_that_was_given_up_holds_no_key(  # F73
    deployed: Deployed, db: Database[Any], client: MongoClient[Any]
) -> None:
    post(deployed, [NOOP])
    deployed.request_budget_sec = 0.5
    with failing(client, "commitTransaction", times=1, blockConnection=True, blockTimeMS=2000):
        given_up = post(deployed, keyed(3))
    deployed.request_budget_sec = None

    again = post(deployed, keyed(3))

    assert (given_up.status, again.status) == (503, 202)
    assert db.tasks.count_documents({}) == 4


def test_a_conflict_is_named_by_its_index_in_all(db: Database[Any]) -> None:
    queue = Queue(db)
    queue.enqueue("noop", {"n": -1}, idempotency_key="k-1001")

    with pytest.raises(DuplicateKeyError) as conflict:
        queue.enqueue_many(keyed(1002))

    assert [one.field for one in conflict.value.problems] == ["1001.idempotency_key"]
    assert db.tasks.count_documents({}) == 1 + MAX_TASKS  # the first thousand, as is said


def enqueue(queue: Queue, session: Any, *, key: str | None) -> None:
    queue.enqueue("noop", {}, idempotency_key=key, session=session)


def enqueue_many(queue: Queue, session: Any, *, key: str | None) -> None:
    queue.enqueue_many([NOOP | ({} if key is None else {"idempotency_key": key})] * 2, session=session)


def begun(client: MongoClient[Any]) -> ClientSession:
    return client.start_session()


def ended(client: MongoClient[Any]) -> ClientSession:
    with client.start_session() as session:
        session.start_transaction()
    return session


def committed(client: MongoClient[Any]) -> ClientSession:
    session = client.start_session()
    session.start_transaction()
    client.app.orders.insert_one({}, session=session)
    session.commit_transaction()
    return session


@pytest.mark.parametrize("way", [enqueue, enqueue_many])
@pytest.mark.parametrize(
    ("made", "problem"),
    [
        (begun, "has no transaction: start one with session.start_transaction() or session.with_transaction(...)"),
        (committed, "has no transaction: start one with session.start_transaction() or session.with_transaction(...)"),
        (ended, "has ended"),
        (lambda client: client, "must be a ClientSession of pymongo, not a MongoClient"),
    ],
)
def test_a_session_that_the_task_cannot_take_part_in_is_refused(
    db: Database[Any], client: MongoClient[Any], way: Any, made: Any, problem: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        way(Queue(db), made(client), key=None)

    assert caught.value.problems == (Problem("session", problem),)
    assert db.tasks.count_documents({}) == 0


@pytest.mark.parametrize("way", [enqueue, enqueue_many])
def test_a_session_of_another_client_is_refused(db: Database[Any], mongod: Mongod, way: Any) -> None:
    with MongoClient[dict[str, Any]](mongod.uri) as other, other.start_session() as session:
        session.start_transaction()
        with pytest.raises(InvalidRequestError, match="belongs to another MongoClient than the database of the Queue"):
            way(Queue(db), session, key=None)


@pytest.mark.parametrize("way", [enqueue, enqueue_many])
@pytest.mark.parametrize("key", [None, "k"])
def test_an_aborted_transaction_leaves_no_task(
    db: Database[Any], client: MongoClient[Any], way: Any, key: str | None
) -> None:
    with client.start_session() as session:
        session.start_transaction()
        way(Queue(db), session, key=key)
        session.abort_transaction()

    assert db.tasks.count_documents({}) == 0


@pytest.fixture(scope="module")
def alone() -> Any:
    """A standalone server, which has no transactions."""
    with (
        Mongod(standalone=True) as mongod,
        MongoClient[dict[str, Any]](mongod.uri, tz_aware=True, appname="lonely") as client,
    ):
        yield client


@pytest.fixture
def lonely(alone: MongoClient[Any]) -> Database[Any]:
    db = alone[f"test_{ObjectId()}"]
    indexes.create(db)
    return db


def test_a_standalone_server_stores_in_order_and_finds_what_it_has(lonely: Database[Any]) -> None:
    queue = Queue(lonely)

    first = queue.enqueue_many(keyed(3))
    more = queue.enqueue_many([NOOP, *keyed(4)])

    assert more[1:4] == first
    assert len({more[0], *first, more[4]}) == 5
    assert lonely.tasks.count_documents({}) == 5


def test_twenty_at_once_on_a_standalone_server_are_one(lonely: Database[Any]) -> None:
    wanted = new_tasks(keyed(5))
    queues = [Queue(lonely) for _ in range(20)]

    accepted = at_once(queues, lambda queue: queue.enqueue_many(wanted))

    assert all(one == accepted[0] for one in accepted)
    assert lonely.tasks.count_documents({}) == 5


def test_what_a_standalone_server_has_stored_already_is_not_stored_again(lonely: Database[Any]) -> None:
    wanted = [{"_id": ObjectId(), "n": n} for n in range(200)]
    lonely.tasks.insert_many(wanted[:150])
    sent = Sent()
    host, port = lonely.client.address or ("", 0)

    with MongoClient[dict[str, Any]](host, port, event_listeners=[sent]) as client:
        assert writes.insert_in_order(open_tasks(client[lonely.name]), wanted) == 200

    assert [one["n"] for one in lonely.tasks.find().sort("_id", 1)] == list(range(200))
    assert [name for name in sent.names if name != "endSessions"] == ["insert", "find", "insert"]


def test_a_standalone_server_that_breaks_the_connection_is_asked_once_more(lonely: Database[Any]) -> None:
    tasks = open_tasks(lonely)

    with broken(tasks, "insert", closeConnection=True):
        assert writes.insert_in_order(tasks, [{"_id": ObjectId(), "n": n} for n in range(3)]) == 3

    assert lonely.tasks.count_documents({}) == 3


def test_of_a_standalone_server_a_held_key_stops_what_is_behind_it(lonely: Database[Any]) -> None:
    lonely.tasks.insert_one({"idempotency_key": "k"})
    wanted: list[dict[str, Any]] = [
        {"_id": ObjectId()},
        {"_id": ObjectId(), "idempotency_key": "k"},
        {"_id": ObjectId()},
    ]

    assert writes.insert_in_order(open_tasks(lonely), wanted) == 1
    assert lonely.tasks.count_documents({}) == 2


def test_what_a_standalone_server_refuses_is_no_duplicate(lonely: Database[Any]) -> None:
    lonely.command("collMod", "tasks", validator={"n": {"$ne": 1}})

    with pytest.raises(RefusedError):
        writes.insert_in_order(open_tasks(lonely), [{"_id": ObjectId(), "n": n} for n in range(3)])
