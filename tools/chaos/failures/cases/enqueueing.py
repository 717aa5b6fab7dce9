"""An application enqueues: one task, a keyed one, many, and beside a write of its own."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from typing import Any, Final

import pymongo

from tidemill import Queue
from tidemill.documents import CONTROL, TASK_TYPES
from tools.chaos.failures.cases.case import Case, Effect, share
from tools.chaos.failures.world import World

ORDERS: Final = "orders"
"""A collection of the application."""


def _queue(world: World) -> Queue:
    return Queue(world.db, clock=world.clock)


def _one(world: World) -> Any:
    return _queue(world).enqueue("noop", {"n": 1})


def _keyed(world: World) -> Any:
    return _queue(world).enqueue("noop", {"n": 1}, idempotency_key="order-7")


def _many(world: World) -> Any:
    with pymongo.timeout(world.patience_sec):  # else a transaction is tried for half a minute
        return _queue(world).enqueue_many([{"name": "noop", "payload": {"n": n}} for n in range(3)])


def _many_keyed(world: World) -> Any:
    requests = [{"name": "noop", "payload": {"n": n}, "idempotency_key": f"order-{n}"} for n in range(3)]
    with pymongo.timeout(world.patience_sec):
        return _queue(world).enqueue_many(requests)


def _beside_a_write(world: World) -> Any:
    queue = _queue(world)

    def order(session: Any) -> None:
        queue.database[ORDERS].insert_one({"order": 7}, session=session)
        queue.enqueue("noop", {"n": 1}, session=session)
        queue.enqueue("noop", {"n": 2}, idempotency_key="order-7", session=session)

    with pymongo.timeout(world.patience_sec), world.db.client.start_session() as session:
        try:
            session.with_transaction(order)
        finally:  # what the driver left open is the caller's: it would end within a minute
            Context().run(world.sound.client.admin.command, "killSessions", [session.session_id])


def _declared(world: World) -> None:
    world.sound[TASK_TYPES].insert_one({"_id": "noop", "http": True, "package": "tasks", "release": ""})
    world.sound[ORDERS].delete_many({})


def _unmarked(world: World) -> None:
    _declared(world)
    world.sound[CONTROL].delete_many({})


def _stored(of: int) -> Callable[[World], Effect]:
    return lambda world: share(world.sound["tasks"].count_documents({}), of)


def _ordered(world: World) -> Effect:
    orders = world.sound[ORDERS].count_documents({})
    return share(world.sound["tasks"].count_documents({}) + orders, 3)


CASES: Final = (
    Case(name="enqueue", prepare=_declared, run=_one, effect=_stored(1)),
    Case(name="the first enqueue", prepare=_unmarked, run=_one, effect=_stored(1)),
    Case(name="enqueue, keyed", prepare=_declared, run=_keyed, effect=_stored(1), again=_keyed),
    Case(name="enqueue many", prepare=_declared, run=_many, effect=_stored(3)),
    Case(name="enqueue many, keyed", prepare=_declared, run=_many_keyed, effect=_stored(3), again=_many_keyed),
    Case(name="enqueue in a transaction", prepare=_declared, run=_beside_a_write, effect=_ordered),
)
