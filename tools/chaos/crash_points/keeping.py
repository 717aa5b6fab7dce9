"""Housekeeping: lost leases, strays, the archive, and what operators do with dead letters."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

import bson
from bson.raw_bson import RawBSONDocument

from tests.builders import add
from tests.buried import failed, letter
from tests.fixtures import T0
from tests.redrives import cut_short
from tidemill.control.queues import change_queue
from tidemill.control.semaphores import PermitOwner, acquire
from tidemill.dead_letters.documents import DeadLetterId
from tidemill.dead_letters.export_format import encode_object, restore
from tidemill.dead_letters.redrive import RedriveContext
from tidemill.dead_letters.selection import DeadLetterFilter
from tidemill.model import Adaptive, Budget, Pressure, QueueOptions
from tools.chaos.crash_points.executing import retry, task
from tools.chaos.crash_points.scenario import Scenario
from tools.chaos.crash_points.world import BARRED, DEAD, World

MINUTE: Final = timedelta(minutes=1)
HOUR: Final = timedelta(hours=1)
DAY: Final = timedelta(days=1)

NOT_UTF8: Final = RawBSONDocument(bson.encode({"n": "text", "x": "x"}).replace(b"x\x00\x02\x00", b"\xff\x00\x02\x00"))


def _lost(n: str, name: str = "ends", *, owner: str = "gone", **fields: Any) -> dict[str, Any]:
    lease = {"token": f"token of {n}", "owner": owner, "expires_at": T0 - MINUTE}
    return task(n, name, status="processing", attempts=1, lease=lease) | fields


def _lost_ones(world: World) -> None:
    options = QueueOptions(pressure=Pressure(adaptive=Adaptive(), budget=Budget(per_minute=1)))
    change_queue(world.db, "default", options, now=T0)
    lines = [{"attempt": 1, "status": "failed", "started_at": T0, "duration_ms": 1, "note": "before"}] * 3
    add(world.tasks, [
        *(_lost(f"lost {n}") for n in range(3)),
        *(_lost(f"again {n}", crashes=1) for n in range(2)),
        _lost("for the last time", crashes=1, attempts=4, attempt_log=lines),
        _lost("to stop", cancel_requested_at=T0, idempotency_key="k"),
        _lost("leaseless") | {"lease": None},
        _lost("scraps") | {"lease": {"token": "t"}},
        _lost("no task") | {"payload": "text"},
    ])  # fmt: skip


def _strays(world: World) -> None:
    past = T0 - MINUTE
    add(world.tasks, [
        *(task(f"expired {n}", expires_at=past) for n in range(2)),
        {"_id": "adopted", "payload": {"n": "adopted"}, "status": "pending", "attempts": 0, "next_retry_at": None},
        {"_id": "adopted too", "payload": {"n": "adopted too"}, "status": "pending", "attempts": 0},
        task("no lane", lane="slow"),
        task("no time", due_at="now"),
        task("no queue", queue=7),
    ])  # fmt: skip


def _foreign_ones(world: World) -> None:
    attempts = {"processing": 1, "failed": 20, "done": 0, "cancelled": 0}
    add(world.tasks, [
        *(_foreign(f"foreign {status}", status=status, attempts=count) for status, count in attempts.items()),
        _foreign("no priority", status="failed", attempts=20, priority="high"),
    ])  # fmt: skip


def _foreign(label: str, **fields: Any) -> dict[str, Any]:
    return {"_id": label, "payload": {"n": label}, "next_retry_at": None} | fields


def _dead_one(world: World) -> None:
    end = T0 + MINUTE
    lease = {"token": "t", "owner": DEAD, "expires_at": end}
    add(world.tasks, [task(f"held {n}", status="processing", attempts=1, lease=lease) for n in range(3)])
    add(world.tasks, [retry("retry", status="processing", attempts=2, lease=lease), task("waits")])
    holder = PermitOwner(owner=DEAD, execution="e")
    assert world.executor_slots.acquire(holder, until=end, now=T0)
    acquire(world.db, "retries:default", holder, seq=1, held=0, wanted=1, limit=1, until=end, now=T0)


def _reclaim_dead(world: World) -> None:
    world.reclaim(dead_owner=DEAD)


def _failed_ones(world: World) -> None:
    now = T0 - MINUTE
    add(world.dead, [letter(now, _id=one, name="ends", payload={"n": one}) for one in ("begun", "back")])
    _cut_short(world, "begun", after=False)
    _cut_short(world, "back", after=True)
    add(world.dead, [letter(now, _id="lived before", payload={"n": "lived before"}, redriven_at=now)])
    add(world.dead, [letter(now, _id="moved by half", name="ends", payload={"n": "moved by half"})])
    add(world.tasks, [
        failed(now, _id="plain", payload={"n": "plain"}),
        failed(now, _id="text", payload=NOT_UTF8),
        failed(now, _id="moved by half", name="ends", payload={"n": "moved by half"}),
        failed(now, _id="lived before", payload={"n": "lived before"}, finished_at=now + timedelta(seconds=1)),
        {"_id": "hardly one", "status": "failed", "payload": {"n": "hardly one"}},
    ])  # fmt: skip
    world.clock.move(2 * MINUTE)


def _cut_short(world: World, of: str, *, after: bool) -> None:
    """Leave a redrive half done: before its task is inserted, or after."""
    names = frozenset(one.name for one in world.registry)
    on = RedriveContext(tasks=world.tasks, dead=world.dead, registered=lambda: names, clock=world.clock)
    cut_short(on, "insert", after=after, which=DeadLetterFilter(ids=(DeadLetterId(task=of, redrives=0),)))


def _archive_without_bucket(world: World) -> None:
    world.has_bucket = False
    _failed_ones(world)


def _archive_what_expires(world: World) -> None:
    world.has_bucket, world.expires_unexported = False, True
    _failed_ones(world)
    add(world.dead, [letter(T0 - DAY, _id="old", payload={"n": "old"})])


def _died_once_more(world: World) -> None:
    now = T0 - MINUTE
    add(world.dead, [letter(now - DAY, _id="again", payload={"n": "again"}, redrive_started_at=now - HOUR)])
    add(world.tasks, [
        failed(now, _id="again", payload={"n": "again"}, redrives=1, created_at=now - DAY),
        failed(now, _id="refused by the bucket", payload={"n": "refused"}),
    ])  # fmt: skip


def _unmovable(world: World) -> None:
    add(world.tasks, [failed(T0 - MINUTE, _id="plain"), failed(T0 - MINUTE, _id="barred", name=BARRED, redrives=1)])


def _restore(world: World) -> None:
    raw = RawBSONDocument(bson.encode(letter(T0 - DAY, _id="restored", payload={"n": "restored"})))
    restore(world.dead, encode_object(raw), now=T0)


SCENARIOS: Final = (
    Scenario(use_case="reclaim", name="lost leases", prepare=_lost_ones, act=World.reclaim),
    Scenario(use_case="reclaim", name="strays and the expired", prepare=_strays, act=World.reclaim),
    Scenario(use_case="reclaim", name="of another program", prepare=_foreign_ones, act=World.reclaim),
    Scenario(use_case="reclaim", name="what the dead held", prepare=_dead_one, act=_reclaim_dead),
    Scenario(use_case="archive", name="with a bucket", prepare=_failed_ones, act=World.archive),
    Scenario(use_case="archive", name="without a bucket", prepare=_archive_without_bucket, act=World.archive),
    Scenario(
        use_case="archive", name="where unexported letters expire", prepare=_archive_what_expires, act=World.archive
    ),
    Scenario(use_case="archive", name="what died once more", prepare=_died_once_more, act=World.archive),
    Scenario(use_case="archive", name="what cannot be moved", prepare=_unmovable, act=World.archive),
    Scenario(use_case="restore", name="a letter from its object", act=_restore, again=_restore),
)
