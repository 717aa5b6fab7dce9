"""Operators change queues, tasks and dead letters: each operation there is, and what executors and reclaim declare."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

from tests.builders import add
from tests.buried import letter
from tests.fixtures import T0
from tidemill.admin.api import OPERATIONS, operate, read_operation
from tidemill.control.declarer import declare_types
from tidemill.errors import InvalidRequestError, NotDelayedError
from tidemill.model import RetryPolicy
from tidemill.registry import TaskType
from tools.chaos.crash_points.executing import task
from tools.chaos.crash_points.keeping import DAY, HOUR
from tools.chaos.crash_points.quiet import UNDER_WAY
from tools.chaos.crash_points.scenario import NOW, Act, Scenario
from tools.chaos.crash_points.world import World

LONG_AGO: Final = T0 - DAY

EVENTS: Final[Mapping[str, tuple[dict[str, Any], ...]]] = {
    "queue.list": ({},),
    "queue.declare": ({"queue": "eu"},),
    "queue.status": ({"queue": "default"},),
    "queue.pause": ({"queue": "default"}, {"queue": "busy"}),
    "queue.resume": ({"queue": "quiet"},),
    "queue.set": ({"queue": "default", "max_in_flight_retries": 2, "adaptive": {"scale": 5}, "budget": {}},),
    "caller.list": ({},),
    "caller.grant": ({"key_id": "k9p2s7x4q1", "right": "queues.read"},),
    "caller.revoke": ({"key_id": "k9p2s7x4q1", "right": "queues.read"},),
    "task.list": ({},),
    "task.show": ({"id": "waits"},),
    "task.explain": ({"id": "waits"},),
    "task.retry": ({"id": "waits"},),
    "task.cancel": ({"id": "due"}, {"id": "runs"}, {"id": "runs", "force": True}),
    "dlq.groups": ({},),
    "dlq.list": ({},),
    "dlq.show": ({"id": "dead 1"},),
    "dlq.redrive": ({"all": True}, {"all": True, "per_sec": 10, "drop_expiry": True}, {"id": "dead 1"}),
    "dlq.purge": ({"all": True}, {"name": "nobody"}),
    "dlq.export": ({},),
    "stats": ({},),
}
"""How each operation is asked for."""


def _ground(world: World) -> None:
    later = T0 + HOUR
    lease = {"token": "t", "owner": "B", "expires_at": T0 + timedelta(minutes=1)}
    names = [TaskType(name=one.name, function=one.function) for one in world.registry]
    declare_types(world.db, names, package="tasks", release="1", now=T0)
    world.db.queues.insert_one({"_id": "quiet", "paused": True})
    add(world.tasks, [
        task("due", idempotency_key="due"),
        task("waits", due_at=later, next_retry_at=later),
        task("runs", status="processing", attempts=1, lease=lease),
        task("held up", queue="quiet"),
        task("ready", queue="busy"),
    ])  # fmt: skip
    _bury(world)


def _bury(world: World) -> None:
    dead = [letter(LONG_AGO, _id=f"dead {n}", name="ends", payload={"n": f"dead {n}"}) for n in range(3)]
    add(world.dead, [
        *dead,
        letter(LONG_AGO, _id="key taken", name="ends", payload={"n": "key taken"}, idempotency_key="due"),
        letter(LONG_AGO, _id="no function", name="nobody", payload={"n": "no function"}),
        letter(LONG_AGO, _id="over", name="ends", payload={"n": "over"}, expires_at=LONG_AGO),
    ])  # fmt: skip


def _operation(op: str, event: dict[str, Any]) -> Act:
    def act(world: World) -> None:
        operate(read_operation({"op": op} | event), world.context)

    return act


def _repeated(act: Act) -> Act:
    """Return *act* as an operator does it again, who is told where it has been done."""

    def again(world: World) -> None:
        with suppress(InvalidRequestError, NotDelayedError):
            act(world)

    return again


def _named(op: str, event: dict[str, Any]) -> str:
    return f"{op} {event}" if event else op


def _scenario(op: str, event: dict[str, Any]) -> Scenario:
    act = _operation(op, event)
    return Scenario(
        use_case="operate",
        name=_named(op, event),
        prepare=_ground,
        act=act,
        again=_repeated(act),
        again_after=UNDER_WAY if op == "dlq.redrive" else NOW,
        deletes=op == "dlq.purge",
    )


def _types(world: World, *names: str, retries: int) -> None:
    types = [TaskType(name=one, function=_nothing, retry=RetryPolicy(max_retries=retries)) for one in names]
    declare_types(world.db, types, package="tasks", release=str(retries), now=T0)


def _nothing(_: Any) -> None:
    """Be a function."""


def _old_types(world: World) -> None:
    _types(world, "stays", "changes", "goes", retries=1)


def _new_types(world: World) -> None:
    _types(world, "changes", "comes", "stays", retries=2)


SCENARIOS: Final = (
    *(_scenario(op, event) for op in OPERATIONS for event in EVENTS[op]),
    Scenario(use_case="declare types", name="of a new release", prepare=_old_types, act=_new_types, again=_new_types),
)
