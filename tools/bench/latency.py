"""Pickup: how long after its enqueue a task is started, where that wakes an executor and where a worker idles.

Every process is warm, one of its own, and has nothing else to do; what Lambda's queue of events adds is not measured.
The function says when it was started, in its result: all processes of a machine read one monotonic clock.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

from bson import ObjectId
from pymongo import MongoClient
from pymongo.database import Database

from tests.databases import make
from tests.handlers.calls import request
from tests.template.translating import written
from tests.waiting import eventually
from tidemill import Queue
from tidemill.model import TaskId
from tidemill.store.connection import with_majority
from tools.bench.children import Child
from tools.bench.container import Container, container
from tools.bench.figures import Figure, Scale, Section
from tools.bench.measuring import seconds, spread

TASKS: Final = "tools.bench.stamping"
IN_LAMBDA: Final = {
    "AWS_LAMBDA_FUNCTION_NAME": "enqueue",
    "EXECUTE_FUNCTION": "execute",
    "AWS_DEFAULT_REGION": "eu-central-1",
    "AWS_ACCESS_KEY_ID": "any",
    "AWS_SECRET_ACCESS_KEY": "any",
}

ROUNDS: Final[Mapping[Scale, int]] = {"toy": 1, "quick": 5, "full": 5}
WOKEN: Final[Mapping[Scale, int]] = {"toy": 3, "quick": 12, "full": 50}
FOUND: Final[Mapping[Scale, int]] = {"toy": 3, "quick": 8, "full": 40}
"""So many tasks in each round."""

WORKERS: Final[Mapping[Scale, int]] = {"toy": 1, "quick": 4, "full": 8}
"""So many idle side by side: each gets a task now and then, and all of them enough."""

GAP_SEC: Final = 0.075
"""Between two tasks that wake no executor, on average: they come at any moment of a worker's wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """A task, when it was sent and when it was accepted: readings of the monotonic clock, in nanoseconds."""

    db: Database[Any]
    task_id: TaskId
    at: int
    accepted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pickup:
    """How long after it was sent a task was accepted, and how long after that same moment it was started."""

    accepted_ms: float
    started_ms: float


def measure(uri: str, scale: Scale) -> Section:
    """Return the figures; while it measures, its processes use databases of their own on the server."""
    woken, found, inserts = [], [], []
    with (
        MongoClient[dict[str, Any]](uri, tz_aware=True) as client,
        _looking(uri, [make(client) for _ in range(WORKERS[scale])]) as looking,
        _waking(uri, make(client)) as waking,
    ):
        waking.pickups(2)  # warm up
        looking.pickups(WORKERS[scale])
        for _ in range(ROUNDS[scale]):
            woken.append(waking.pickups(WOKEN[scale]))
            found.append(looking.pickups(FOUND[scale]))
            inserts.append(_insert_ms(client, WOKEN[scale]))
        commands = waking.commands()
    beside = f"a bare insert: {statistics.median(inserts):.1f} ms"
    return Section(
        title="Pickup: from enqueue to start",
        figures=[
            *_figures("woken by POST /tasks", woken, beside),
            *_figures("found by an idle worker", found, beside),
            _tick(),
            Figure(
                name="between the POST and the start",
                value=len(commands),
                unit="commands",
                absolute=", ".join(commands),
            ),
        ],
    )


class Waking:
    """A warm container of the HTTP front, each of whose requests wakes an executor in its own, warm too."""

    def __init__(self, db: Database[Any], front: Container, executor: Container) -> None:
        self._db = db
        self._front = front
        self._executor = executor

    def pickups(self, count: int) -> list[Pickup]:
        """Send so many tasks, each when all is over of the one before."""
        sent = []
        for n in range(count):
            at = time.monotonic_ns()
            task_id = self._post(n)
            sent.append(Sent(db=self._db, task_id=ObjectId(task_id), at=at, accepted=time.monotonic_ns()))
            self._executor.wait_until_idle()
        return [_pickup(one) for one in sent]

    def commands(self) -> list[str]:
        """Return what MongoDB is asked from a request until the start that comes of it, the last time included.

        Now and then something is asked beside: that is not in the shortest of three.
        """
        return min((self._profiled(n) for n in range(3)), key=len)

    def _profiled(self, n: int) -> list[str]:
        self._db.command("profile", 2)
        self._post(n)
        self._executor.wait_until_idle()
        self._db.command("profile", 0)
        profile = self._db["system.profile"]
        operations = list(profile.find({"appName": {"$in": ["tidemill-enqueue", "tidemill-execute"]}}))
        profile.drop()
        [read_back] = [n for n, one in enumerate(operations) if "lease.token" in one["command"].get("filter", {})]
        return [_name(one) for one in operations[: read_back + 1]]

    def _post(self, n: int) -> str:
        answer = self._front.invoke(request(body={"name": "noop", "payload": _payload(n)}))
        assert answer["statusCode"] == 202, answer
        task_id: str = answer["multiValueHeaders"]["Location"][0].rpartition("/")[2]
        return task_id


class Looking:
    """Idle workers, each in a database of its own, and clients that wake no executor."""

    def __init__(self, databases: Sequence[Database[Any]]) -> None:
        self._queues = [(db, Queue(db)) for db in databases]
        self._rng = random.Random(20260701)

    def pickups(self, count: int) -> list[Pickup]:
        """Send so many tasks, at any moments, to one worker after the other."""
        sent = []
        for n in range(count):
            db, queue = self._queues[n % len(self._queues)]
            time.sleep(self._rng.uniform(0, 2 * GAP_SEC))
            at = time.monotonic_ns()
            task_id = queue.enqueue("noop", _payload(n))
            sent.append(Sent(db=db, task_id=task_id, at=at, accepted=time.monotonic_ns()))
        return [_pickup(one) for one in sent]


@contextmanager
def _waking(uri: str, db: Database[Any]) -> Iterator[Waking]:
    where = {"MONGODB_URI": uri, "MONGODB_DATABASE": db.name}
    # An executor that does not linger is woken for each task: else it would be one of them in a second.
    settings = where | {"TASK_PACKAGE": TASKS, "LINGER_SEC": "0"}
    with container("execute", **settings) as executor:
        executor.invoke({})
        with container("enqueue", **settings, **IN_LAMBDA, AWS_ENDPOINT_URL_LAMBDA=executor.url) as front:
            yield Waking(db, front, executor)


@contextmanager
def _looking(uri: str, databases: Sequence[Database[Any]]) -> Iterator[Looking]:
    with ExitStack() as workers:
        for db in databases:
            where = {"MONGODB_URI": uri, "MONGODB_DATABASE": db.name}
            workers.enter_context(Child("tidemill", "work", "--tasks", TASKS, variables=where))
        yield Looking(databases)


def _pickup(sent: Sent) -> Pickup:
    """Wait until it is done, and return how long it took to start."""
    done = {"_id": sent.task_id, "status": "done"}
    assert eventually(lambda: sent.db.tasks.count_documents(done) == 1, within=60), "a task was not started"
    [started] = sent.db.tasks.distinct("result", done)
    return Pickup(accepted_ms=(sent.accepted - sent.at) / 1e6, started_ms=(started - sent.at) / 1e6)


def _name(operation: Mapping[str, Any]) -> str:
    """Return the command that an entry of the profile is of; of an update it does not say."""
    return str(operation["op"]) if operation["op"] == "update" else next(iter(operation["command"]))


def _insert_ms(client: MongoClient[Any], count: int) -> float:
    tasks = with_majority(client["bare"])["tasks"]
    return statistics.median(seconds(lambda: tasks.insert_one({"payload": _payload(0)})) for _ in range(count)) * 1000


def _payload(n: int) -> dict[str, Any]:
    return {"url": "https://example.org/hooks/17", "body": {"n": n, "note": "x" * 100}}


def _figures(name: str, rounds: Sequence[Sequence[Pickup]], beside: str) -> list[Figure]:
    every = [one for several in rounds for one in several]
    answer = statistics.median(one.accepted_ms for one in every)
    absolute = {50: f"{len(every)} tasks; accepted after {answer:.1f} ms; {beside}", 99: ""}
    return [_percentile(f"{name}, p{n}", n, rounds, absolute=absolute[n]) for n in absolute]


def _percentile(name: str, n: int, rounds: Sequence[Sequence[Pickup]], *, absolute: str) -> Figure:
    def of(pickups: Sequence[Pickup]) -> float:
        return statistics.quantiles([one.started_ms for one in pickups], n=100, method="inclusive")[n - 1]

    each = spread([of(one) for one in rounds])
    value = of([one for several in rounds for one in several])
    return Figure(name=name, value=value, unit="ms", absolute=absolute, least=each.least, most=each.most)


def _tick() -> Figure:
    """Return what the template says; nobody waits for it here."""
    rate = written()["Parameters"]["ExecuteSchedule"]["Default"]
    minutes = int(rate.removeprefix("rate(").partition(" minute")[0])
    return Figure(name="at the next tick, at most", value=minutes * 60.0, unit="s", absolute=rate)
