"""Moving failed tasks to the dead letters, and exporting these, beside the same documents taken by the bare driver.

What S3 takes to store an object is not measured: a put here takes it, and keeps nothing.
"""

from __future__ import annotations

import gzip
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, TypeAlias

from bson import json_util
from pymongo import MongoClient
from pymongo.database import Database

from tests.builders import document
from tests.databases import make
from tidemill.clock import ServerClock
from tidemill.dead_letters.archive import move_failed
from tidemill.dead_letters.export import export
from tidemill.documents import DEAD_LETTERS, TASKS
from tidemill.store.connection import open_tasks
from tools.bench.figures import Figure, Scale, Section
from tools.bench.measuring import ratio, seconds, spread

MANY_AND_ROUNDS: Final = {"toy": (20, 1), "quick": (500, 5), "full": (4_000, 5)}
BATCH: Final = 500
FOR_SEC: Final = 300

Step: TypeAlias = Callable[[Database[Any]], int]
"""Takes all there is in a database, and says how many that were."""

Steps: TypeAlias = tuple[Step, ...]


def measure(uri: str, scale: Scale) -> Section:
    """Return what moving and exporting cost."""
    many, rounds = MANY_AND_ROUNDS[scale]
    ours, bare = (_move, _export), (_move_bare, _export_bare)
    took: dict[Steps, list[tuple[float, ...]]] = {ours: [], bare: []}
    with MongoClient[dict[str, Any]](uri, tz_aware=True, w="majority") as client:
        for turn in range(rounds):
            for steps in (bare, ours) if turn % 2 else (ours, bare):
                took[steps].append(_timed(client, many, steps))
    names = (f"move {many:,} failed tasks", f"export {many:,} dead letters, but for S3")
    figures = [
        _figure(name, one, floor, many=many)
        for name, one, floor in zip(names, zip(*took[ours], strict=True), zip(*took[bare], strict=True), strict=True)
    ]
    return Section(title="Failed tasks: to the dead letters, and out of them", figures=figures)


def _figure(name: str, ours: Sequence[float], bare: Sequence[float], *, many: int) -> Figure:
    of_floor = ratio(bare, ours)
    one, other = (spread(took).median / many * 1e3 for took in (ours, bare))
    return Figure(
        name=name,
        value=of_floor.median,
        unit="of the floor",
        absolute=f"{one:.2f} ms each; bare {other:.2f} ms",
        least=of_floor.least,
        most=of_floor.most,
    )


def _timed(client: MongoClient[dict[str, Any]], many: int, steps: Steps) -> tuple[float, ...]:
    """Return the seconds that each of *steps* takes, one after the other, for *many* failed tasks.

    Raises:
        RuntimeError: One did not take all of them.
    """
    db = make(client)
    _fill(db, many)
    return tuple(seconds(partial(_take, step, db, many)) for step in steps)


def _take(step: Step, db: Database[Any], many: int) -> None:
    if (taken := step(db)) != many:
        raise RuntimeError(f"{taken} of {many} were taken")


def _fill(db: Database[Any], many: int) -> None:
    """Insert what failed: *many* webhooks that were refused."""
    now = datetime.now(UTC)
    error = {"message": "ConnectError: https://example.org/hooks/17 refused", "code": "ConnectError", "at": now}
    ended = {"status": "failed", "reason": "exhausted", "error": error, "attempts": 11}
    db[TASKS].insert_many(
        document(now, payload={"url": "https://example.org/hooks/17", "body": {"n": n, "note": "x" * 100}})
        | ended
        | {"finished_at": now + timedelta(milliseconds=n)}
        for n in range(many)
    )


def _move(db: Database[Any]) -> int:
    tasks, dead = open_tasks(db), open_tasks(db, DEAD_LETTERS)
    return move_failed(tasks, dead, clock=ServerClock(db), until=time.monotonic() + FOR_SEC).moved


def _move_bare(db: Database[Any]) -> int:
    tasks, dead = db[TASKS], db[DEAD_LETTERS]
    while found := list(tasks.find({"status": "failed"}).sort("finished_at", 1).limit(BATCH)):
        dead.insert_many(found, ordered=False)
        tasks.delete_many({"_id": {"$in": [one["_id"] for one in found]}})
    return dead.count_documents({})


def _export(db: Database[Any]) -> int:
    taken: list[int] = []
    dead = open_tasks(db, DEAD_LETTERS)
    export(dead, lambda _key, body: taken.append(len(body)), clock=ServerClock(db), until=time.monotonic() + FOR_SEC)
    return len(taken)


def _export_bare(db: Database[Any]) -> int:
    taken: list[int] = []
    dead, now = db[DEAD_LETTERS], datetime.now(UTC)
    while found := list(dead.find({"archived_at": None}).sort("dead_lettered_at", 1).limit(BATCH)):
        taken.extend(len(gzip.compress(json_util.dumps(one).encode())) for one in found)
        dead.update_many({"_id": {"$in": [one["_id"] for one in found]}}, {"$set": {"archived_at": now}})
    return len(taken)
