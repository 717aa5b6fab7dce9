"""Tasks are taken in: by applications, in transactions of their own, and by schedules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, Final
from unittest.mock import patch

from pymongo.client_session import ClientSession

from tests.builders import add, document, make_service
from tests.fixtures import T0
from tidemill.enqueue import inserts
from tidemill.enqueue.rules import EnqueueRules
from tidemill.errors import RefusedError
from tidemill.requests.events import Occurrence
from tidemill.requests.tasks import NewTask
from tidemill.store import tasks, writes
from tidemill.store.connection import Tasks
from tools.chaos.crash_points.scenario import Scenario, nothing
from tools.chaos.crash_points.world import World

BATCH: Final = 2
"""So many tasks go into one transaction here, not a thousand."""


def _new(n: str, **fields: Any) -> NewTask:
    return NewTask(name="ends", payload={"n": n}, **fields)


def _one(world: World, **fields: Any) -> None:
    world.queue.enqueue("ends", {"n": "one"}, **fields)


def _keyed(world: World) -> None:
    _one(world, idempotency_key="k")


def _ordered(world: World, **fields: Any) -> None:
    def order(session: ClientSession) -> None:
        world.db.orders.insert_one({"_id": "order"}, session=session)
        world.queue.enqueue("ends", {"n": "one"}, session=session, **fields)

    with world.db.client.start_session() as session:
        session.with_transaction(order)


def _ordered_keyed(world: World) -> None:
    if world.db.orders.find_one({"_id": "order"}) is None:
        _ordered(world, idempotency_key="k")


def _ordered_many(world: World) -> None:
    with world.db.client.start_session() as session, session.start_transaction():
        world.db.orders.insert_one({"_id": "order"}, session=session)
        world.queue.enqueue_many([_new(f"{n}") for n in range(3)], session=session)


def _many(world: World, count: int = 5, *, is_keyed: bool = False) -> None:
    keys = [{"idempotency_key": f"k{n}"} if is_keyed and n % 2 else {} for n in range(count)]
    with patch.object(inserts, "MAX_TASKS", BATCH):
        world.queue.enqueue_many([_new(f"{n}", **key) for n, key in enumerate(keys)])


def _all_keyed(world: World) -> None:
    with patch.object(inserts, "MAX_TASKS", BATCH):
        world.queue.enqueue_many([_new(f"{n}", idempotency_key=f"k{n}") for n in range(5)])


def _all_keyed_alone(world: World) -> None:
    with patch.object(inserts, "has_transactions", return_value=False):
        _all_keyed(world)


def _hold_a_key(world: World) -> None:
    world.queue.enqueue("ends", {"n": "1"}, idempotency_key="k1")


def _occurs(world: World) -> None:
    at = T0 - timedelta(minutes=1)
    rules = EnqueueRules(origin=Occurrence(schedule="arn:nightly", at=at))
    make_service(world.db, clock=world.clock).submit([_new(f"{n}") for n in range(3)], rules=rules)


def _occurs_alone(world: World) -> None:
    with patch.object(inserts, "has_transactions", return_value=False):
        _occurs(world)


def _delayed(world: World) -> None:
    _one(world, delay=timedelta(hours=1), expires_at=T0 + timedelta(hours=2))


def _expired_since(world: World) -> None:
    _one(world, idempotency_key="k", expires_at=T0 + timedelta(seconds=30))


def _expire(world: World) -> None:
    _expired_since(world)
    world.clock.move(timedelta(seconds=40))


def _held(world: World) -> None:
    now = world.clock.now()
    lease = {"token": "t", "owner": "B", "expires_at": now + timedelta(minutes=1)}
    add(world.tasks, [
        document(now, _id="waits", name="ends", payload={"n": "waits"}, idempotency_key="k"),
        document(now, _id="runs", name="ends", payload={"n": "runs"}, status="processing", attempts=1, lease=lease),
    ])  # fmt: skip


def _delay(world: World) -> None:
    later = world.clock.now() + timedelta(days=1)
    add(world.tasks, [
        document(world.clock.now(), _id="waits", name="ends", payload={"n": "waits"}, due_at=later, next_retry_at=later)
    ])  # fmt: skip


def _cancel(world: World, task: str = "waits", **how: Any) -> None:
    world.queue.cancel(task, **how)


@contextmanager
def _minding_names() -> Iterator[None]:
    """As MongoDB 4.4 is where a payload has names like ``$x``."""
    refused = RefusedError("DollarPrefixedFieldName")

    def plainly(tasks: Tasks, where: Any, change: Any) -> Any:
        if isinstance(change, list):
            raise refused
        return writes.find_and_modify(tasks, where, change)

    with patch.object(tasks, "find_and_modify", plainly), patch.object(writes, "_upsert", side_effect=refused):
        yield


def _keyed_plainly(world: World) -> None:
    with _minding_names():
        _keyed(world)


def _cancel_plainly(world: World, task: str) -> None:
    with _minding_names():
        _cancel(world, task)


def _hurry(world: World) -> None:
    if world.db.tasks.find_one({"_id": "waits"}, {"next_retry_at": 1}) != {"_id": "waits", "next_retry_at": None}:
        world.queue.retry_now("waits")


SCENARIOS: Final = (
    Scenario(use_case="enqueue", name="one", act=_one, otherwise=[nothing]),
    Scenario(use_case="enqueue", name="one with a key", act=_keyed, again=_keyed),
    Scenario(
        use_case="enqueue", name="one with a key, whose caller does not ask again", act=_keyed, otherwise=[nothing]
    ),
    Scenario(use_case="enqueue", name="one with a key on MongoDB 4.4", act=_keyed_plainly, again=_keyed_plainly),
    Scenario(use_case="enqueue", name="one for later", act=_delayed, otherwise=[nothing]),
    Scenario(
        use_case="enqueue", name="one that has expired since", prepare=_expire, act=_expired_since, again=_expired_since
    ),
    Scenario(use_case="enqueue", name="one beside an order", act=_ordered, otherwise=[nothing]),
    Scenario(use_case="enqueue", name="one with a key beside an order", act=_ordered_keyed, again=_ordered_keyed),
    Scenario(use_case="enqueue", name="many beside an order", act=_ordered_many, otherwise=[nothing]),
    Scenario(
        use_case="enqueue_many",
        name="many, a part at a time",
        act=_many,
        otherwise=[nothing, lambda world: _many(world, 2), lambda world: _many(world, 4)],
    ),
    Scenario(
        use_case="enqueue_many",
        name="many with keys, one of them held",
        prepare=_hold_a_key,
        act=_all_keyed,
        again=_all_keyed,
    ),
    Scenario(
        use_case="enqueue_many",
        name="many with keys on a standalone server",
        prepare=_hold_a_key,
        act=_all_keyed_alone,
        again=_all_keyed_alone,
    ),
    Scenario(use_case="schedule", name="an occurrence", act=_occurs, again=_occurs),
    Scenario(use_case="schedule", name="an occurrence on a standalone server", act=_occurs_alone, again=_occurs_alone),
    Scenario(use_case="cancel", name="one that waits", prepare=_held, act=_cancel, again=_cancel),
    Scenario(
        use_case="cancel",
        name="one that runs",
        prepare=_held,
        act=lambda world: _cancel(world, "runs"),
        again=lambda world: _cancel(world, "runs"),
    ),
    Scenario(
        use_case="cancel",
        name="one that runs, by force",
        prepare=_held,
        act=lambda world: _cancel(world, "runs", force=True),
        again=lambda world: _cancel(world, "runs", force=True),
    ),
    *(
        Scenario(
            use_case="cancel",
            name=f"one that {task} on MongoDB 4.4",
            prepare=_held,
            act=partial(_cancel_plainly, task=task),
            again=partial(_cancel_plainly, task=task),
        )
        for task in ("waits", "runs")
    ),
    Scenario(use_case="retry now", name="one that waits for tomorrow", prepare=_delay, act=_hurry, again=_hurry),
)
