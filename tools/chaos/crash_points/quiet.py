"""The ticks after a crash: reclaim as it hears of the death, or later by the lease, and all others until quiet."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Final

from tests.crash_points import crash_if_reached
from tests.fixtures import T0
from tidemill.documents import CONTROL
from tools.chaos.crash_points.world import DEAD, World

SECOND: Final = timedelta(seconds=1)
MOST_TICKS: Final = 20
JITTER: Final = 6 * SECOND
"""What a task waits at most that was lost for the first time, and a little more."""

UNDER_WAY: Final = 61 * SECOND
"""After so long a redrive that was begun is taken for cut short."""

_DID: Final = ("reclaimed", "failed", "cancelled", "expired", "adopted", "quarantined")

_OPEN: Final = {"$or": [{"archived_at": None}, {"redrive_started_at": {"$type": "date"}}]}
"""Letters that the archive may do something with."""

HORIZON: Final = T0 + timedelta(hours=12)
"""What is due later has no reason to end yet."""


def recover(world: World, *, told: bool, dies_at: int | None = None) -> list[str]:
    """Let the ticks go on until there is nothing to do; return what is not as it has to be.

    *told*: the platform tells who died; else only the leases end. It tells only once, so that they do as well where
    the reclaim that hears of it dies, after its call *dies_at*.
    """
    held = {one["_id"] for one in world.db.tasks.find({"status": "processing", "lease.owner": DEAD}, {"_id": 1})}
    if told and dies_at is not None and _dies(world, dies_at):
        told = False
    if told:
        world.clock.move(SECOND)
        world.reclaim(dead_owner=DEAD)
    else:
        world.outlive()
        world.reclaim()
    wrong = [*_left_held(world, told=told), *_left_waiting(world, held)]
    return wrong + _until_quiet(world)


def _dies(world: World, number: int) -> bool:
    """Let reclaim hear of the death, and die; tell whether it came to that."""

    def hear(world: World) -> None:
        world.reclaim(dead_owner=DEAD)

    return crash_if_reached(hear, world, number=number, after=True) is not None


def _left_held(world: World, *, told: bool) -> Iterator[str]:
    now = world.clock.now()
    for one in world.db.tasks.find({"status": "processing", "lease.owner": DEAD}, {"_id": 1}):
        yield f"{one['_id']} is still held by the dead"
    for document in world.db[CONTROL].find({"holds.owner": DEAD}):
        holds = [one for one in document["holds"] if one["owner"] == DEAD and one.get("n") != 0]
        if document["_id"] != "workers" and (told or any(one["until"] > now + JITTER for one in holds)):
            yield f"the dead still hold {document['_id']}"


def _left_waiting(world: World, held: set[Any]) -> Iterator[str]:
    """Tell what a bystander of the crash has to wait for longer than seconds."""
    later = world.clock.now() + JITTER
    where = {"_id": {"$in": list(held)}, "status": "pending", "crashes": 1, "due_at": {"$gt": later}}
    for one in world.db.tasks.find(where, {"due_at": 1}):
        yield f"{one['_id']} was lost for the first time, and is not due before {one['due_at']}"


def _until_quiet(world: World) -> list[str]:
    for tick in range(MOST_TICKS):
        world.clock.move(JITTER)
        if not _tick(world, owner=f"B{tick}"):
            at = _next(world)
            if at is None:
                return []
            world.clock.at = max(at, world.clock.at)
    return [f"the ticks do not come to an end: {MOST_TICKS} of them did something"]


def _tick(world: World, *, owner: str) -> int:
    """Let all work that may find something to do; return how much they did."""
    statuses = set(world.db.tasks.distinct("status"))
    did = 0
    if "pending" in statuses:
        report = world.execute(owner=owner)
        did += report["claimed"] + report["quarantined"] + (report.skipped == "executor_slots")
    if not did and statuses & {"pending", "processing", "failed"}:
        counts = world.reclaim()
        did += sum(counts[name] for name in _DID)
    if not did and ("failed" in statuses or world.db.tasks_dlq.find_one(_OPEN, {"_id": 1})):
        archived = world.archive()
        did += archived.moved + archived.redriven + archived.exported
    return did


def _next(world: World) -> datetime | None:
    """Return when there will be something to do; ``None``: never, as far as can be seen."""
    now = world.clock.now()
    waiting = world.db.tasks.find({"status": "pending", "due_at": {"$type": "date"}}, {"due_at": 1})
    leased = world.db.tasks.find({"status": "processing"}, {"lease.expires_at": 1})
    times = [one["due_at"] for one in waiting if now < one["due_at"] < HORIZON]
    times += [one["lease"]["expires_at"] + SECOND for one in leased]
    if world.db.tasks_dlq.find_one({"redrive_started_at": {"$type": "date"}}, {"_id": 1}):
        times.append(now + UNDER_WAY)
    return min(times, default=None)
