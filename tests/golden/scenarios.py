"""What is done, through the public doors, to see which commands are sent for it."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pymongo.database import Database

from tests.builders import document
from tests.handlers.calls import request
from tests.handlers.conftest import Deployed
from tidemill import Queue, RetryPolicy
from tidemill.bootstrap import deployment
from tidemill.testing import FakeContext

SCHEDULE: Final = "arn:aws:scheduler:eu-central-1:123456789012:schedule/default/daily"
OWNER: Final = "0f3c1f9a-dead-4c5e-9b7a-000000000001"
NOW: Final = datetime.now(UTC).replace(microsecond=0)
LATER: Final = NOW + timedelta(days=2)
AGE: Final = timedelta(minutes=5)
"""Old enough to be due, and younger than an unknown function is waited for."""

LATELY: Final = NOW - AGE
REGISTERED: Final = frozenset({"returns", "retries", "breaks", "fails", "snoozes"})
"""The functions of `golden_tasks`; other tests of this process may have registered more."""


class LongestDelay(random.Random):
    """Draws nearly one, each time."""

    def random(self) -> float:
        return 0.999


@dataclass(frozen=True, kw_only=True)
class World:
    """The functions, the database, and an application's queue in it whose commands are seen, too."""

    functions: Deployed
    db: Database[Any]
    queue: Queue

    def add(self, **fields: Any) -> Any:
        """Store a due task as it is, but for *fields*."""
        created_at = datetime.now(UTC).replace(microsecond=0) - AGE  # not at import: a long run of tests comes before
        stored = document(created_at, **{"name": "returns"} | fields)
        self.db.tasks.insert_one(stored)
        return stored["_id"]

    def add_leased(self, *, owner: str = OWNER, expires_at: datetime = LATER, **fields: Any) -> Any:
        """Store a task that an executor has claimed."""
        lease = {"token": uuid.uuid4().hex, "owner": owner, "expires_at": expires_at}
        return self.add(status="processing", attempts=fields.pop("attempts", 1), lease=lease, **fields)

    def add_dead(self, **fields: Any) -> str:
        """Let a task fail for good, and be archived; return its id."""
        task_id = self.add(status="failed", reason="not_retryable", finished_at=LATELY, attempts=1,
                           error={"message": "no such order 7", "code": "gone", "at": LATELY}, **fields)  # fmt: skip
        self.functions.invoke("archive")
        return str(task_id)

    def reclaim(self, event: Any = None) -> Any:
        """Reclaim, with the longest delays that can be drawn: none of them is over when due tasks are counted."""
        warm = deployment()
        warm.reclaim_context = replace(warm.reclaim_context, rng=LongestDelay())
        return self.functions.invoke("reclaim", event)

    def operate(self, op: str, **fields: Any) -> Any:
        """Have an operation carried out."""
        answer = self.functions.invoke("operate", {"op": op, **fields})
        assert "error" not in answer, answer
        return answer


def _nothing(_: World) -> None:
    """Prepare nothing."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """*act* is what is looked at; *prepare* comes before it.

    ``is_ordered`` is false where tasks end at the same time, in any order: their ids are not told apart.
    """

    name: str
    act: Callable[[World], object]
    prepare: Callable[[World], object] = _nothing
    is_ordered: bool = True


def _execute(world: World, **event: Any) -> object:
    return world.functions.invoke("execute", event, FakeContext())


def _run(**fields: Any) -> Callable[[World], object]:
    return lambda world: world.add(**fields)


def _leased(**fields: Any) -> Callable[[World], object]:
    return lambda world: world.add_leased(**fields)


def _each(*acts: Callable[[World], object]) -> Callable[[World], object]:
    def act(world: World) -> object:
        return [step(world) for step in acts]

    return act


def _cool(world: World, emptied: str) -> None:
    """Empty a collection, and start the functions anew."""
    world.db[emptied].delete_many({})
    world.functions.cool_down()


def _operation(op: str, **fields: Any) -> Callable[[World], object]:
    return lambda world: world.operate(op, **fields)


def _in_transaction(world: World) -> None:
    with world.queue.database.client.start_session() as session, session.start_transaction():
        world.queue.enqueue("returns", {}, session=session)
        world.queue.enqueue("returns", {}, idempotency_key="k", session=session)


def _cancel_running(world: World, *, force: bool) -> object:
    return world.queue.cancel(world.db.tasks.find_one({})["_id"], force=force)  # type: ignore[index]


def _http(method: str, *, status: int) -> Callable[[World], object]:
    def send(world: World) -> object:
        task_id = world.db.tasks.distinct("_id")[0]
        answer = world.functions.http(request(method, f"/tasks/{task_id}"))
        assert answer.status == status
        return answer

    return send


def _post(body: dict[str, Any], *, key: str | None = None) -> Callable[[World], object]:
    return lambda world: world.functions.post(body, key=key)


def _occur(world: World) -> object:
    occurrence = {"schedule": SCHEDULE, "at": "2026-07-01T06:00:00Z"}
    tasks = [{"name": "returns", "payload": {}}] * 2
    return world.functions.invoke("enqueue", {"tasks": tasks, "occurrence": occurrence})


def _interrupted_redrive(world: World) -> None:
    world.add_dead()
    marks = {"redrive_started_at": LATELY, "redrive_due_at": LATELY, "redrive_token": uuid.uuid4().hex}
    world.db.tasks_dlq.update_one({}, {"$set": marks})


def _dead_by_id(op: str, **fields: Any) -> Callable[[World], object]:
    def act(world: World) -> object:
        letter = world.db.tasks_dlq.find_one({})
        assert letter is not None
        return world.operate(op, id=str(letter["_id"]["task"]), **fields)

    return act


def _task_by_id(op: str, **fields: Any) -> Callable[[World], object]:
    return lambda world: world.operate(op, id=str(world.db.tasks.distinct("_id")[0]), **fields)


def _dead_owner(world: World) -> object:
    return world.reclaim({
        "version": "1.0",
        "timestamp": "2026-07-01T06:00:00.000Z",
        "requestContext": {
            "requestId": OWNER,
            "functionArn": "arn:aws:lambda:eu-central-1:123456789012:function:execute:$LATEST",
            "condition": "RetriesExhausted",
            "approximateInvokeCount": 1,
        },
        "requestPayload": {"source": "tick"},
        "responseContext": {"statusCode": 200, "executedVersion": "$LATEST", "functionError": "Unhandled"},
        "responsePayload": {"errorType": "Runtime.ExitError"},
    })  # fmt: skip


SCENARIOS: Final = (
    # the way in
    Scenario(name="enqueue/one", act=lambda world: world.queue.enqueue("returns", {"n": 1})),
    Scenario(name="enqueue/keyed", act=lambda world: world.queue.enqueue("returns", {}, idempotency_key="k")),
    Scenario(
        name="enqueue/all_options",
        act=lambda world: world.queue.enqueue(
            "returns",
            {"n": 1},
            queue="eu",
            priority=5,
            not_before=LATER,
            expires_at=LATER + timedelta(days=1),
            retry=RetryPolicy(),
            max_retries=3,
            timeout=timedelta(seconds=20),
        ),
    ),
    Scenario(name="enqueue/many", act=lambda world: world.queue.enqueue_many([{"name": "returns", "payload": {}}] * 2)),
    Scenario(
        name="enqueue/many_keyed",
        act=lambda world: world.queue.enqueue_many(
            [{"name": "returns", "payload": {}, "idempotency_key": key} for key in "ab"]
        ),
    ),
    Scenario(name="enqueue/in_a_callers_transaction", act=_in_transaction),
    Scenario(name="enqueue/http", act=_post({"name": "returns", "payload": {}})),
    Scenario(name="enqueue/http_keyed", act=_post({"name": "returns", "payload": {}}, key="k")),
    Scenario(
        name="enqueue/direct", act=lambda world: world.functions.invoke("enqueue", {"name": "returns", "payload": {}})
    ),
    Scenario(
        name="enqueue/direct_many",
        act=lambda world: world.functions.invoke("enqueue", {"tasks": [{"name": "returns", "payload": {}}] * 2}),
    ),
    Scenario(name="enqueue/occurrence", act=_occur),
    Scenario(name="enqueue/known_occurrence", prepare=_occur, act=_occur),
    Scenario(name="tasks/get", prepare=_run(trace={"source": "k9p2s7x4q1"}), act=_http("GET", status=200)),
    Scenario(name="tasks/get_of_others", prepare=_run(trace={"source": "other"}), act=_http("GET", status=404)),
    Scenario(
        name="tasks/cancel_pending", prepare=_run(trace={"source": "k9p2s7x4q1"}), act=_http("DELETE", status=200)
    ),
    Scenario(name="tasks/cancel_running", prepare=_leased(), act=lambda world: _cancel_running(world, force=False)),
    Scenario(name="tasks/cancel_by_force", prepare=_leased(), act=lambda world: _cancel_running(world, force=True)),
    Scenario(
        name="tasks/retry_now",
        prepare=lambda world: world.add(due_at=LATER, next_retry_at=LATER),
        act=_task_by_id("task.retry"),
    ),
    Scenario(name="tasks/explain", prepare=lambda world: world.add(), act=_task_by_id("task.explain")),
    Scenario(
        name="tasks/list",
        prepare=lambda world: world.add(),
        act=_operation("task.list", queue="default", status="pending"),
    ),
    Scenario(name="tasks/show", prepare=lambda world: world.add(), act=_task_by_id("task.show")),
    # running
    Scenario(name="execute/nothing_due", act=_execute),
    Scenario(name="execute/succeeds", prepare=_run(name="returns"), act=_execute),
    Scenario(name="execute/retries", prepare=_run(name="retries"), act=_execute),
    Scenario(name="execute/fails", prepare=_run(name="fails"), act=_execute),
    Scenario(name="execute/exhausted", prepare=_run(name="breaks", max_retries=0), act=_execute),
    Scenario(name="execute/snoozes", prepare=_run(name="snoozes"), act=_execute),
    Scenario(name="execute/unknown_function", prepare=_run(name="missing"), act=_execute),
    Scenario(name="execute/expired", prepare=_run(name="returns", expires_at=LATELY), act=_execute),
    Scenario(name="execute/malformed", prepare=_run(name="returns", payload="text"), act=_execute),
    Scenario(name="execute/cancelled_meanwhile", prepare=_run(name="breaks", cancel_requested_at=LATELY), act=_execute),
    Scenario(
        name="execute/oldest_first",
        prepare=_run(name="returns", lane="retry"),
        act=lambda world: _execute(world, selection="oldest_first"),
    ),
    Scenario(
        name="execute/one_lane_of_one_queue",
        prepare=_run(name="returns", lane="retry"),
        act=lambda world: _execute(world, lane="retry", queues=["default"]),
    ),
    Scenario(
        name="execute/capped_retries",
        prepare=_each(
            _operation("queue.set", queue="default", max_in_flight_retries=1), _run(lane="retry", attempts=1)
        ),
        act=_execute,
    ),
    Scenario(
        name="execute/six_successes_together",
        prepare=lambda world: [world.add() for _ in range(6)],
        is_ordered=False,
        act=_execute,
    ),
    # looking after
    Scenario(name="reclaim/nothing_lost", act=lambda world: world.reclaim()),
    Scenario(
        name="reclaim/expired_lease",
        prepare=_each(_run(), _leased(expires_at=LATELY)),  # with one that is due for sure: the other has jitter
        act=lambda world: world.reclaim(),
    ),
    Scenario(
        name="reclaim/expired_lease_again",
        prepare=_leased(expires_at=LATELY, crashes=1),
        act=lambda world: world.reclaim(),
    ),
    Scenario(name="reclaim/dead_owner", prepare=_each(_run(), _leased()), act=_dead_owner),
    Scenario(
        name="reclaim/without_a_lease",
        prepare=_each(_run(), _run(status="processing", attempts=1)),
        act=lambda world: world.reclaim(),
    ),
    Scenario(
        name="reclaim/expired_task",
        prepare=lambda world: world.add(expires_at=LATELY),
        act=lambda world: world.reclaim(),
    ),
    Scenario(
        name="reclaim/adopted",
        prepare=_each(
            lambda world: world.functions.set(DEFAULT_TASK="returns"),
            lambda world: world.db.tasks.insert_one(
                {"payload": {}, "status": "pending", "attempts": 0, "next_retry_at": None}
            ),
        ),
        act=lambda world: world.reclaim(),
    ),
    Scenario(
        name="reclaim/quarantined",
        prepare=lambda world: world.db.tasks.insert_one({"status": "pending", "queue": 7}),
        act=lambda world: world.reclaim(),
    ),
    Scenario(
        name="archive/moves",
        prepare=lambda world: world.add(status="failed", reason="exhausted", finished_at=LATELY, idempotency_key="k"),
        act=lambda world: world.functions.invoke("archive"),
    ),
    Scenario(
        name="archive/completes_a_redrive",
        prepare=_interrupted_redrive,
        act=lambda world: world.functions.invoke("archive"),
    ),
    # dead letters
    Scenario(name="dead_letters/groups", prepare=World.add_dead, act=_operation("dlq.groups")),
    Scenario(name="dead_letters/list", prepare=World.add_dead, act=_operation("dlq.list", queue="default")),
    Scenario(name="dead_letters/show", prepare=World.add_dead, act=_dead_by_id("dlq.show")),
    Scenario(
        name="dead_letters/redrive",
        prepare=World.add_dead,
        act=_operation("dlq.redrive", queue="default", dry_run=False),
    ),
    Scenario(
        name="dead_letters/redrive_dry_run", prepare=World.add_dead, act=_operation("dlq.redrive", queue="default")
    ),
    Scenario(
        name="dead_letters/purge", prepare=World.add_dead, act=_operation("dlq.purge", queue="default", dry_run=False)
    ),
    # queues
    Scenario(name="queues/declare", act=_operation("queue.declare", queue="eu")),
    Scenario(name="queues/pause", act=_operation("queue.pause", queue="default")),
    Scenario(
        name="queues/set",
        act=_operation("queue.set", queue="default", retry_share=0.5, selection="oldest_first"),
    ),
    Scenario(name="queues/status", prepare=lambda world: world.add(), act=_operation("queue.status", queue="default")),
    Scenario(name="queues/list", prepare=lambda world: world.add(), act=_operation("queue.list")),
    Scenario(name="queues/stats", prepare=_each(_run(), _execute), act=_operation("stats")),
    # a start
    Scenario(
        name="start/mark",
        prepare=lambda world: _cool(world, "control"),
        act=_operation("queue.list"),
    ),
    Scenario(
        name="start/indexes_and_types",
        prepare=_each(lambda world: world.db.tasks.drop_indexes(), lambda world: _cool(world, "task_types")),
        act=_each(lambda world: world.reclaim(), _execute),
    ),
)
assert len({scenario.name for scenario in SCENARIOS}) == len(SCENARIOS)
