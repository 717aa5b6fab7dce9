"""Taking tasks in: `Queue` beside the same documents inserted by the bare driver, and what the HTTP handler adds.

The bare documents are made beforehand, but for their ids: those the driver makes, as for any application.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import count
from typing import Any, Final, TypeAlias

from bson import ObjectId
from pymongo import MongoClient, ReturnDocument, WriteConcern
from pymongo.client_session import ClientSession
from pymongo.collection import Collection
from pymongo.database import Database
from pymongo.monitoring import CommandListener, CommandStartedEvent

from tests.builders import document
from tests.databases import make
from tidemill import Queue, indexes
from tidemill.control.declarer import declare_types
from tidemill.registry import Registry
from tidemill.requests.tasks import MAX_TASKS
from tidemill.store.connection import with_majority
from tools.bench import front
from tools.bench.figures import Figure, Scale, Section, Target
from tools.bench.measuring import in_turns, ratio, seconds, spread

MANY: Final = MAX_TASKS
FLOOR: Final = Target(at_least=0.7)
TIMES: Final = ("due_at", "created_at", "updated_at")
"""What differs between a document of ours and a bare one, beside the id."""

_MS: Final = 1000.0

Work: TypeAlias = Callable[[], float]
"""Takes tasks in and returns the seconds of that, without those of what it prepared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much is measured: in each round so many tasks one by one and so many requests; rounds of thousands."""

    rounds: int
    ones: int
    requests: int
    thousands: int


SIZES: Final[Mapping[Scale, Size]] = {
    "toy": Size(rounds=1, ones=3, requests=2, thousands=1),
    "quick": Size(rounds=5, ones=80, requests=40, thousands=11),
    "full": Size(rounds=15, ones=200, requests=100, thousands=51),
}


def measure(uri: str, scale: Scale) -> Section:
    """Return the figures; what is taken in stays in databases of its own on the server."""
    size = SIZES[scale]
    gc.collect()
    gc.freeze()  # what the bench has loaded is not to be looked through while a task is made
    with MongoClient[dict[str, Any]](uri, tz_aware=True) as client:
        ours, bare = Ours(_registered(make(client))), Bare(make(client))
        in_turns(1, _ones(ours, bare, 1) | _thousands(ours, bare))  # warm up
        seen = in_turns(size.rounds, _ones(ours, bare, size.ones)) | in_turns(size.thousands, _thousands(ours, bare))
        figures = [
            *_beside(seen),
            *_round_trips(uri),
            *front.figures(uri, _registered(make(client)), rounds=size.rounds, requests=size.requests),
        ]
    return Section(title="Enqueue: beside the bare driver", figures=figures)


class Ours:
    """Takes tasks in with `Queue`."""

    def __init__(self, db: Database[Any]) -> None:
        self._queue = Queue(db)
        self._numbers = count()

    def one(self) -> float:
        """Enqueue one task."""
        payload = front.payload(0)
        return seconds(lambda: self._queue.enqueue("noop", payload))

    def keyed(self) -> float:
        """Enqueue one task under a new key."""
        payload, key = front.payload(0), f"one-{next(self._numbers)}"
        return seconds(lambda: self._queue.enqueue("noop", payload, idempotency_key=key))

    def many(self) -> float:
        """Enqueue a thousand."""
        requests = [{"name": "noop", "payload": front.payload(n)} for n in range(MANY)]
        return seconds(lambda: self._queue.enqueue_many(requests))

    def many_keyed(self) -> float:
        """Enqueue a thousand, each under a new key."""
        batch = next(self._numbers)
        requests = [
            {"name": "noop", "payload": front.payload(n), "idempotency_key": f"{batch}-{n}"} for n in range(MANY)
        ]
        return seconds(lambda: self._queue.enqueue_many(requests))


class Bare:
    """Inserts the same documents with the driver alone, majority-committed as ours are."""

    def __init__(self, db: Database[Any]) -> None:
        self._tasks: Collection[dict[str, Any]] = with_majority(db)["tasks"]
        self._numbers = count()

    def one(self) -> float:
        """Insert one document."""
        [made] = _documents(1)
        return seconds(lambda: self._tasks.insert_one(made))

    def keyed(self) -> float:
        """Insert one document by an upsert on its key."""
        [made] = _documents(1)
        key = f"one-{next(self._numbers)}"
        return seconds(
            lambda: self._tasks.find_one_and_update(
                {"idempotency_key": key},
                {"$setOnInsert": {"_id": ObjectId()} | made},
                upsert=True,
                return_document=ReturnDocument.AFTER,
                hint=indexes.KEY,
            )
        )

    def many(self) -> float:
        """Insert a thousand documents: a crash may leave the first of them alone."""
        made = _documents(MANY)
        return seconds(lambda: self._tasks.insert_many(made))

    def many_with_ids(self) -> float:
        """Insert a thousand documents whose ids are made already."""
        made = [{"_id": ObjectId()} | one for one in _documents(MANY)]
        return seconds(lambda: self._tasks.insert_many(made))

    def together(self) -> float:
        """Insert a thousand documents in a transaction."""
        made = _documents(MANY)
        return seconds(lambda: self._in_transaction(made))

    def together_keyed(self) -> float:
        """Insert a thousand documents with new keys in a transaction, without a look at who holds them."""
        batch = next(self._numbers)
        made = [one | {"idempotency_key": f"{batch}-{n}"} for n, one in enumerate(_documents(MANY))]
        return seconds(lambda: self._in_transaction(made))

    def _in_transaction(self, made: Sequence[dict[str, Any]]) -> None:
        def insert(session: ClientSession) -> None:
            self._tasks.insert_many(made, session=session)

        with self._tasks.database.client.start_session() as session:
            session.with_transaction(insert, write_concern=WriteConcern("majority"))


class Sent(CommandListener):
    """Keeps the names of the commands."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def started(self, event: CommandStartedEvent) -> None:
        """Keep this one."""
        self.names.append(event.command_name)

    def succeeded(self, event: object) -> None:
        """Nothing is kept of it."""

    def failed(self, event: object) -> None:
        """Nothing is kept of it."""


def _registered(db: Database[Any]) -> Database[Any]:
    """Return *db* once an executor has registered ``noop`` in it: what is enqueued is checked against that."""
    registry = Registry()
    registry.task("noop", http=True)(lambda _: None)
    declare_types(db, registry, package="tasks", release="1", now=datetime.now(UTC))
    return db


def _documents(number: int) -> list[dict[str, Any]]:
    now = datetime.now(UTC)
    made = [document(now, payload=front.payload(n)) for n in range(number)]
    for one in made:
        del one["_id"]
    return made


def _ones(ours: Ours, bare: Bare, times: int) -> dict[str, Work]:
    works = {"one": ours.one, "bare one": bare.one, "one keyed": ours.keyed, "bare one keyed": bare.keyed}
    return {name: _mean(work, times) for name, work in works.items()}


def _mean(work: Work, times: int) -> Work:
    return lambda: statistics.mean(work() for _ in range(times))


def _thousands(ours: Ours, bare: Bare) -> dict[str, Work]:
    return {
        "many": ours.many,
        "bare many": bare.many,
        "bare many with ids": bare.many_with_ids,
        "bare together": bare.together,
        "many keyed": ours.many_keyed,
        "bare together keyed": bare.together_keyed,
    }


def _beside(seen: Mapping[str, Sequence[float]]) -> Iterator[Figure]:
    """Yield what the bare driver took of what ours did, round by round."""
    thousand, together = f"{MANY:,}", "in a transaction"
    for name, ours, bare, target, beside in (
        ("enqueue", "one", "bare one", None, "insert_one"),
        ("enqueue with a key", "one keyed", "bare one keyed", None, "the upsert"),
        (f"enqueue_many of {thousand}", "many", "bare many", FLOOR, "insert_many"),
        (f"enqueue_many of {thousand}, ids not counted", "many", "bare many with ids", None, "insert_many with ids"),
        (f"enqueue_many of {thousand}, all or none", "many", "bare together", None, f"insert_many {together}"),
        (f"enqueue_many of {thousand} with keys", "many keyed", "bare together keyed", None, f"the same {together}"),
    ):
        found = ratio(seen[bare], seen[ours])
        took, floor = (spread(seen[one]).median * _MS for one in (ours, bare))
        yield Figure(
            name=name,
            value=found.median,
            unit="of the floor",
            absolute=f"{took:.2f} ms; {beside} {floor:.2f} ms",
            least=found.least,
            most=found.most,
            target=target,
        )


def _round_trips(uri: str) -> Iterator[Figure]:
    """Yield how many commands a call is, once the registered names are known, which are read once a minute."""
    sent = Sent()
    with MongoClient[dict[str, Any]](uri, tz_aware=True, event_listeners=[sent]) as client:
        ours = Ours(_registered(make(client)))
        ours.one()
        for name, call in (
            ("enqueue", ours.one),
            ("enqueue with a key", ours.keyed),
            (f"enqueue_many of {MANY:,}", ours.many),
            (f"enqueue_many of {MANY:,} with keys", ours.many_keyed),
        ):
            sent.names.clear()
            call()
            yield Figure(name=name, value=len(sent.names), unit="round trips", absolute=", ".join(sent.names))
