"""What is asked of MongoDB for a task, counted: round trips, keys examined, and documents written."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from pymongo import DESCENDING, MongoClient
from pymongo.database import Database
from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent

from tests.databases import make
from tidemill import Retry, TaskContext
from tidemill.documents import TASKS
from tidemill.settings import Settings
from tools.bench import bare, drains
from tools.bench.drains import BATCH
from tools.bench.figures import Figure, Scale, Section, Target

ROUND_TRIPS: Final = Target(at_most=0.07)
CYCLE: Final = Target(at_most=6)
WRITES: Final = Target(at_most=3)
RETRIED: Final = Target(at_most=5)
BESIDE: Final = Target(at_most=1)

PARTS: Final = ("look for ids", "stamp", "read back", "settle")
"""The commands of one claim-and-settle cycle; all others are asked beside it."""

TASKS_OF: Final[Mapping[Scale, int]] = {"toy": 200, "quick": 2000, "full": 10_000}
MOST_WRITTEN: Final = 3000
"""More tasks than this would not make it more exact, and the oplog of a test's server is small."""

_EDGES: Final = 2
"""What an executor asks when it comes, and once more before it leaves."""


class Sent(CommandListener):
    """Counts what a client sends, by what it is for."""

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()

    @property
    def beside(self) -> Counter[str]:
        """What was sent that belongs to no cycle."""
        return Counter({kind: count for kind, count in self.kinds.items() if kind not in PARTS})

    def started(self, event: CommandStartedEvent) -> None:
        self.kinds[_kind(event.command_name, event.command)] += 1

    def succeeded(self, event: CommandSucceededEvent) -> None:
        """Nothing is kept of it."""

    def failed(self, event: CommandFailedEvent) -> None:
        """There are none."""


def _kind(name: str, command: Mapping[str, Any]) -> str:
    """Return which part of a cycle the command is; of another, its name and collection."""
    collection = command.get(name)
    if collection == TASKS and name == "find" and "lease.token" in str(command["filter"]):
        return "read back"
    if collection == TASKS and name == "find" and "sort" in command and "priority" in command.get("projection", ()):
        return "look for ids"
    if collection == TASKS and name == "update":
        stamps = any("lease" in one["u"].get("$set", ()) for one in command["updates"] if isinstance(one["u"], dict))
        return "stamp" if stamps else "settle"
    return f"{name} {collection}" if isinstance(collection, str) else name


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """What an executor sent while it drained so many tasks."""

    tasks: int
    seconds: float
    kinds: Mapping[str, int]
    beside: Mapping[str, int] = field(default_factory=dict)

    @property
    def a_task(self) -> float:
        """Round trips for one task, all counted."""
        return sum(self.kinds.values()) / self.tasks

    @property
    def beside_a_second(self) -> float:
        """How often one and the same thing was asked beside the cycles in a second, apart from first and last."""
        return max((max(count - _EDGES, 0) / self.seconds for count in self.beside.values()), default=0.0)


def measure(uri: str, scale: Scale) -> Section:
    """Return the figures, for which some databases are filled on the server."""
    count = TASKS_OF[scale]
    sent = Sent()
    with MongoClient[dict[str, Any]](uri, tz_aware=True, event_listeners=[sent]) as client:
        default = drained(make(client), sent, count)
        figures = [
            _cycle(make(client), sent),
            _round_trips(f"an executor, {Settings().concurrency} tasks at a time", default),
            _round_trips(f"{BATCH} tasks at a time", drained(make(client), sent, count, at_once=BATCH)),
            _round_trips("half of the tasks retries", drained(make(client), sent, count, retries=count // 2)),
            _beside(default),
            *_keys(make(client), make(client)),
            _writes(make(client), min(count, MOST_WRITTEN)),
            _retried(make(client), BATCH),
        ]
    return Section(title="Counted: round trips, keys and writes", figures=figures)


def drained(
    db: Database[Any], sent: Sent, count: int, *, at_once: int | None = None, retries: int = 0, **choices: Any
) -> Drained:
    """Return what an executor sends that drains *count* tasks of *db*, *retries* of them in the lane of these.

    It runs *at_once* of them at the same time; *choices* replace fields of its runtime.
    """
    drains.fill(db, count - retries)
    drains.fill(db, retries, lane="retry", attempts=1)
    runtime = drains.runtime(db, **choices)
    sent.kinds.clear()
    started = time.perf_counter()
    done = drains.run(runtime, concurrency=at_once)["done"]
    took = time.perf_counter() - started
    if done != count:
        raise RuntimeError(f"of {count} tasks, {done} were done")
    return Drained(tasks=count, seconds=took, kinds=dict(sent.kinds), beside=dict(sent.beside))


def cycle(db: Database[Any], sent: Sent) -> dict[str, int]:
    """Return what the second claim-and-settle cycle sends: the first one looks from the head."""
    drains.fill(db, 3 * BATCH)
    mover = drains.Mover(db, now=drains.this_second())
    mover.settle(mover.claim(BATCH))
    sent.kinds.clear()
    mover.settle(mover.claim(BATCH))
    return dict(sent.kinds)


def keys_examined(db: Database[Any], mover: drains.Mover | bare.Mover) -> tuple[int, int]:
    """Return the keys that the server examines for a claim of `BATCH`, and for settling it, in the midst of a drain."""
    drains.fill(db, 3 * BATCH)
    mover.settle(mover.claim(BATCH))  # type: ignore[arg-type]
    db.command("profile", 2)
    claimed = mover.claim(BATCH)
    claims = _profiled(db)
    mover.settle(claimed)  # type: ignore[arg-type]
    db.command("profile", 0)
    return claims, _profiled(db) - claims


def written(db: Database[Any], count: int, *, retried: bool = False) -> dict[str, int]:
    """Have *count* tasks enqueued and run, each twice if *retried*; return the documents written, by collection.

    They are counted in the oplog: every document that is inserted or changed is an entry of it, alone or among others.
    """
    start = _newest(db)
    drains.enqueue(db, count)
    report = drains.run(drains.runtime(db, _fails_at_first if retried else drains.nothing))
    if (report["done"], report["retried"]) != (count, count if retried else 0):
        raise RuntimeError(f"of {count} tasks, {report['done']} were done and {report['retried']} retried")
    return _entries(db, start)


def _fails_at_first(_payload: dict[str, Any], ctx: TaskContext) -> None:
    if ctx.attempt == 1:
        raise Retry("as expected", after=timedelta(0))


def _newest(db: Database[Any]) -> Any:
    newest = db.client["local"]["oplog.rs"].find_one({}, {"ts": 1}, sort=[("$natural", DESCENDING)])
    assert newest is not None
    return newest["ts"]


def _entries(db: Database[Any], start: Any) -> dict[str, int]:
    """Return how many documents were written since *start*, by collection."""
    counts: Counter[str] = Counter()
    for entry in db.client["local"]["oplog.rs"].find({"ts": {"$gt": start}, "op": {"$in": ["i", "u", "c"]}}):
        for one in entry["o"].get("applyOps", ()) if entry["op"] == "c" else (entry,):
            name, _, collection = one["ns"].partition(".")
            if name == db.name and one["op"] in {"i", "u"}:
                counts[collection] += 1
    return dict(counts)


def _profiled(db: Database[Any]) -> int:
    return sum(one.get("keysExamined", 0) for one in db["system.profile"].find({"ns": f"{db.name}.{TASKS}"}))


def _round_trips(how: str, one: Drained) -> Figure:
    parts = ", ".join(f"{one.kinds.get(part, 0)} {part}" for part in PARTS)
    return Figure(
        name=f"round trips: {how}",
        value=one.a_task,
        unit="a task",
        absolute=f"{sum(one.kinds.values())} for {one.tasks:,} tasks: {parts}, {sum(one.beside.values())} beside",
        target=ROUND_TRIPS,
    )


def _cycle(db: Database[Any], sent: Sent) -> Figure:
    sent_by_kind = cycle(db, sent)
    return Figure(
        name=f"round trips: claiming and settling {BATCH}",
        value=sum(sent_by_kind.values()),
        unit="a cycle",
        absolute=", ".join(sent_by_kind),
        target=CYCLE,
    )


def _beside(one: Drained) -> Figure:
    return Figure(
        name="what is asked beside that, each",
        value=one.beside_a_second,
        unit="a second",
        absolute=f"in {one.seconds:.1f} s: " + ", ".join(f"{n} {kind}" for kind, n in one.beside.items()),
        target=BESIDE,
    )


def _keys(db: Database[Any], other: Database[Any]) -> list[Figure]:
    now = drains.this_second()
    ours = keys_examined(db, drains.Mover(db, now=now))
    floor = keys_examined(other, bare.Mover(bare.open_plain(other), now=now))
    return [
        Figure(
            name=f"keys examined to {what} {BATCH}",
            value=keys / BATCH,
            unit="keys a task",
            absolute=f"{keys}; bare {bare_keys}",
        )
        for what, keys, bare_keys in zip(("claim", "settle"), ours, floor, strict=True)
    ]


def _writes(db: Database[Any], count: int) -> Figure:
    found = written(db, count)
    return _written("documents written: enqueue, claim, settle", found, count, WRITES)


def _retried(db: Database[Any], count: int) -> Figure:
    found = written(db, count, retried=True)
    return _written("the same with one retry", found, count, RETRIED)


def _written(name: str, found: Mapping[str, int], count: int, target: Target) -> Figure:
    beside = ", ".join(f"{n} in {collection}" for collection, n in found.items() if collection != TASKS)
    return Figure(
        name=name,
        value=found[TASKS] / count,
        unit="a task",
        absolute=f"{found[TASKS]:,} for {count:,} tasks; beside them {beside}",
        target=target,
    )
