"""What is there when there is nothing to do: empty ticks, the connections of a warm executor, and its memory.

Each function is a container of its own, with the handler that is deployed.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import psutil
from pymongo import MongoClient
from pymongo.database import Database

from tests.commands import Commands
from tests.databases import make
from tidemill.control.fleet import ExecutorSlots
from tidemill.executor.context import ExecutionOptions
from tidemill.executor.invocation import run_invocation
from tidemill.settings import Settings
from tools.bench import drains
from tools.bench.children import ROOT
from tools.bench.container import Container, container
from tools.bench.figures import Figure, Scale, Section, Target
from tools.bench.measuring import spread

COMMANDS: Final = Target(at_most=6)
KEYS: Final = Target(at_most=20)
FLAT: Final = Target(at_most=1.05)
POOL: Final = 4
CONNECTIONS: Final = Target(at_most=POOL + 1)
"""The pool of an executor, and the connection by which the driver watches the one node."""

QUEUES: Final = ("default", "eu", "us")
_MB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much there is beside what is due, and what the executor whose memory is looked at works off."""

    others: int
    executors: int
    invocations: int
    tasks: int


SIZES: Final[Mapping[Scale, Size]] = {
    "toy": Size(others=50, executors=1, invocations=1, tasks=100),
    "quick": Size(others=1000, executors=1, invocations=10, tasks=1000),
    "full": Size(others=10_000, executors=3, invocations=10, tasks=1000),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """What one invocation asked: the commands, and the keys and documents that the server examined for them."""

    commands: Sequence[str]
    keys: int
    documents: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Warm:
    """A warm executor: what an empty tick of it asks, and its memory after a first and a last batch, in bytes."""

    tick: Tick
    first: int
    last: int
    connections: int


def measure(uri: str, scale: Scale) -> Section:
    """Return the figures, for which some databases are filled on the server, and some containers started."""
    size = SIZES[scale]
    with MongoClient[dict[str, Any]](uri, tz_aware=True) as client:
        db = make(client)
        leave_nothing_due(db, size.others)
        commands = asked(uri, db)
        others = {function: swept(uri, db, function) for function in ("reclaim", "archive")}
        warm = [worked(uri, db, size) for _ in range(size.executors)]
    return Section(
        title="Idle: empty ticks, memory, connections",
        figures=[
            _commands("execute", commands, COMMANDS),
            _keys("execute", warm[0].tick, KEYS),
            *(_commands(function, found.commands) for function, found in others.items()),
            *(_keys(function, found) for function, found in others.items()),
            _memory(warm, size),
            _connections(warm),
        ],
    )


def leave_nothing_due(db: Database[Any], count: int) -> None:
    """Insert so many tasks each, in three queues, that are done, or wait until tomorrow."""
    today = drains.this_second()
    tomorrow = today + timedelta(days=1)
    for queue in QUEUES:
        drains.fill(db, count, queue=queue, status="done", finished_at=today, retain_from=today)
        drains.fill(db, count, queue=queue, due_at=tomorrow, next_retry_at=tomorrow)


def asked(uri: str, db: Database[Any]) -> Sequence[str]:
    """Return the commands of an empty tick of the executor, with what it asks only once a minute."""
    commands = Commands()
    with MongoClient[dict[str, Any]](
        uri, tz_aware=True, appname="tidemill-execute", event_listeners=[commands]
    ) as client:
        own = client[db.name]
        order = ExecutionOptions(owner=uuid.uuid4().hex, remaining=drains.LIFE)
        run_invocation(
            drains.runtime(own, settings=Settings()), order, executor_slots=ExecutorSlots(own, limit=5), launcher=None
        )
        return list(commands.names)


def tick(db: Database[Any], function: str, invoke: Callable[[], object]) -> Tick:
    """Return what *invoke* has *function* ask of its database: all but the time, for which nothing is looked up."""
    db.command("profile", 2)
    try:
        invoke()
    finally:
        db.command("profile", 0)
    profiled = list(db["system.profile"].find({"appName": f"tidemill-{function}"}).sort("ts"))
    db.drop_collection("system.profile")
    return Tick(
        commands=[_name(one) for one in profiled],
        keys=sum(one.get("keysExamined", 0) for one in profiled),
        documents=sum(one.get("docsExamined", 0) for one in profiled),
    )


def swept(uri: str, db: Database[Any], function: str) -> Tick:
    """Return what an empty tick of a warm *function* asks."""
    with _container(uri, db, function) as warm:
        warm.invoke({})
        return tick(db, function, lambda: warm.invoke({}))


def worked(uri: str, db: Database[Any], size: Size) -> Warm:
    """Return what an empty tick of an executor asks, and what it holds after one invocation with work and after many.

    It lingers for next to nothing, which it would do after each of them.
    """
    with _container(uri, db, "execute", LINGER_SEC="0.001") as executor:
        executor.invoke({})
        empty = tick(db, "execute", lambda: executor.invoke({}))

        def invoke() -> int:
            drains.fill(db, size.tasks)
            done = executor.invoke({})["done"]
            if done != size.tasks:
                raise RuntimeError(f"of {size.tasks} tasks, {done} were done")
            resident: int = psutil.Process(executor.pid).memory_info().rss
            return resident

        first, *_, last = [invoke() for _ in range(1 + size.invocations)]
        return Warm(tick=empty, first=first, last=last, connections=_connected(db, "tidemill-execute"))


def _container(uri: str, db: Database[Any], function: str, **choices: str) -> AbstractContextManager[Container]:
    variables = choices | {
        "MONGODB_URI": uri,
        "MONGODB_DATABASE": db.name,
        "PYTHONPATH": str(ROOT / "layers" / "tasks"),
        "AWS_EXECUTION_ENV": "AWS_Lambda_python3.13",  # the driver watches servers in another way there
    }
    return container(function, **variables)


def _name(profiled: Mapping[str, Any]) -> str:
    command: Mapping[str, Any] = profiled["command"]
    return str(next(iter(command))) if profiled["op"] in {"command", "query"} else str(profiled["op"])


def _connected(db: Database[Any], name: str) -> int:
    """Return how many connections to the server a client of that name has."""
    stages: list[dict[str, Any]] = [
        {"$currentOp": {"allUsers": True, "idleConnections": True}},
        {"$match": {"appName": name, "client": {"$exists": True}}},
        {"$group": {"_id": "$client"}},
    ]
    with db.client["admin"].aggregate(stages) as found:
        return sum(1 for _ in found)


def _commands(function: str, commands: Sequence[str], target: Target | None = None) -> Figure:
    return Figure(
        name=f"an empty tick of {function}",
        value=len(commands),
        unit="commands",
        absolute=", ".join(f"{count} {name}" for name, count in Counter(commands).items()),
        target=target,
    )


def _keys(function: str, found: Tick, target: Target | None = None) -> Figure:
    return Figure(
        name=f"what an empty tick of {function} examines",
        value=found.keys,
        unit="keys",
        absolute=f"{found.documents} documents",
        target=target,
    )


def _memory(warm: Sequence[Warm], size: Size) -> Figure:
    found = spread([one.last / one.first for one in warm])
    first, last = (spread(values).median / _MB for values in ([one.first for one in warm], [one.last for one in warm]))
    return Figure(
        name=f"memory after {size.invocations * size.tasks:,} tasks more",
        value=found.median,
        unit="times",
        absolute=f"{first:.1f} MB after {size.tasks:,}, {last:.1f} MB then",
        least=found.least,
        most=found.most,
        target=FLAT,
    )


def _connections(warm: Sequence[Warm]) -> Figure:
    return Figure(
        name="connections of a warm executor",
        value=max(one.connections for one in warm),
        unit="connections",
        absolute=f"at most {POOL} in the pool, and one to watch the node",
        target=CONNECTIONS,
    )
