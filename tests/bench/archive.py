"""``make bench``: what moving and exporting dead letters costs, beside the same documents moved by the bare driver."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import boto3
import pymongo
from moto import mock_aws
from pymongo.collection import Collection

from tests.builders import document
from tests.databases import make
from tidemill.archive import move
from tidemill.buckets import Bucket
from tidemill.clock import ServerClock
from tidemill.documents import DEAD_LETTERS
from tidemill.export import export
from tidemill.store import open_tasks
from tidemill.testing import Mongod

MANY: Final = 10_000
BATCH: Final = 500
BUCKET: Final = "letters"


def fill(tasks: Collection[Any]) -> None:
    """Insert what failed: `MANY` webhooks that were refused."""
    now = datetime.now(UTC)
    error = {"message": "ConnectError: https://example.org/hooks/17 refused", "code": "ConnectError", "at": now}
    ended = {"status": "failed", "reason": "exhausted", "error": error, "attempts": 11}
    for start in range(0, MANY, 1000):
        tasks.insert_many(
            document(now, payload={"url": "https://example.org/hooks/17", "body": {"n": n, "note": "x" * 200}})
            | ended
            | {"finished_at": now + timedelta(milliseconds=n)}
            for n in range(start, start + 1000)
        )


def bare(tasks: Collection[Any], dead: Collection[Any]) -> None:
    """Move them with the driver alone."""
    while found := list(tasks.find({"status": "failed"}).sort("finished_at", 1).limit(BATCH)):
        dead.insert_many(found, ordered=False)
        tasks.delete_many({"_id": {"$in": [one["_id"] for one in found]}})


def timed(work: Callable[[], object]) -> float:
    """How many seconds *work* takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main() -> int:
    """Print three runs of each, in turns, and one export."""
    with Mongod() as mongod, pymongo.MongoClient[dict[str, Any]](mongod.uri, tz_aware=True) as client:
        ours, floor = [], []
        for _ in range(3):
            db, other = make(client), make(client)
            fill(db["tasks"])
            fill(other["tasks"])
            tasks, dead, clock = open_tasks(db), open_tasks(db, DEAD_LETTERS), ServerClock(db)
            ours.append(timed(lambda: move(tasks, dead, clock=clock, until=time.monotonic() + 60)))  # noqa: B023 - called at once
            plain = other.with_options(write_concern=pymongo.WriteConcern("majority"))
            floor.append(timed(lambda: bare(plain["tasks"], plain[DEAD_LETTERS])))  # noqa: B023
        with mock_aws():
            boto3.client("s3", region_name="us-east-1").create_bucket(Bucket=BUCKET)
            exported = timed(lambda: export(dead, Bucket(BUCKET).put, clock=clock, until=time.monotonic() + 300))
    print(f"{MANY} failed tasks moved: {min(ours):.2f} to {max(ours):.2f} s")  # noqa: T201
    print(f"the bare driver:          {min(floor):.2f} to {max(floor):.2f} s")  # noqa: T201
    print(f"exported into moto's S3:  {exported:.1f} s, moto's own time included")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
