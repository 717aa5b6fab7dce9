"""Failed tasks, dead letters and a bucket: where the archive and redrives are at work."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import boto3
import pytest
from bson.raw_bson import RawBSONDocument
from moto import mock_aws
from pymongo.database import Database

from tests.builders import add
from tests.fixtures import ManualClock
from tidemill.aws.s3 import Bucket
from tidemill.dead_letters.archive import ArchiveContext, Report, archive
from tidemill.dead_letters.export_format import PutObject, decode_object
from tidemill.dead_letters.redrive import RedriveContext, RedriveRequest, RedriveResult, redrive
from tidemill.dead_letters.selection import DeadLetterFilter
from tidemill.documents import DEAD_LETTERS
from tidemill.store.connection import Tasks, open_tasks

BUCKET: Final = "letters"


@dataclass(frozen=True, kw_only=True)
class Graveyard:
    """A database and a bucket, with what is run by hand over them."""

    db: Database[Any]
    clock: ManualClock
    s3: Any
    put: PutObject | None
    registered: frozenset[str] = frozenset({"noop"})
    batch_size: int = 500

    @property
    def tasks(self) -> Tasks:
        return open_tasks(self.db)

    @property
    def dead(self) -> Tasks:
        return open_tasks(self.db, DEAD_LETTERS)

    def archive(self) -> Report:
        """Run the archive once, over a client's collections of its own."""
        archives = ArchiveContext(
            tasks=self.tasks,
            dead=self.dead,
            clock=self.clock,
            task_retention=timedelta(days=7),
            put=self.put,
            batch_size=self.batch_size,
        )
        return archive(archives, until=time.monotonic() + 60)

    def redrive(
        self, *, limit: int = 1000, after: str | None = None, per_sec: float | None = None, **which: Any
    ) -> RedriveResult:
        """Redrive letters once, the next page of them at most."""
        on = RedriveContext(tasks=self.tasks, dead=self.dead, registered=lambda: self.registered, clock=self.clock)
        plan = RedriveRequest(which=DeadLetterFilter(**which), per_sec=per_sec)
        return redrive(on, plan, limit=limit, dry_run=False, after=after, until=time.monotonic() + 60)

    def redrive_all(self, **options: Any) -> RedriveResult:
        """Redrive letters page after page and return what was done with the last."""
        done = self.redrive(**options)
        while done.next:
            done = self.redrive(after=done.next, **options)
        return done

    def objects(self) -> dict[str, RawBSONDocument]:
        """Return the letters in the bucket by their keys."""
        return {key: decode_object(self.s3.get_object(Bucket=BUCKET, Key=key)["Body"].read()) for key in self.etags()}

    def etags(self) -> dict[str, str]:
        """Return what S3 says of the bodies in the bucket, by their keys."""
        return {one["Key"]: one["ETag"] for one in self.s3.list_objects_v2(Bucket=BUCKET).get("Contents", ())}

    def holdings(self) -> tuple[list[RawBSONDocument], list[RawBSONDocument]]:
        """Return the tasks and the letters, for `fill`."""
        return list(self.tasks.find().sort("_id", 1)), list(self.dead.find().sort("_id", 1))

    def fill(self, tasks: list[RawBSONDocument], letters: list[RawBSONDocument]) -> None:
        """Leave these tasks and letters here, and nothing else."""
        for collection, documents in ((self.tasks, tasks), (self.dead, letters)):
            collection.delete_many({})
            if documents:
                add(collection, documents)
        if keys := [{"Key": key} for key in self.etags()]:
            self.s3.delete_objects(Bucket=BUCKET, Delete={"Objects": keys})


@contextmanager
def opened(db: Database[Any], clock: ManualClock) -> Iterator[Graveyard]:
    """Open one with an empty bucket."""
    with pytest.MonkeyPatch.context() as patched, mock_aws():
        patched.setenv("AWS_DEFAULT_REGION", "us-east-1")
        s3 = boto3.client("s3")
        s3.create_bucket(Bucket=BUCKET)
        yield Graveyard(db=db, clock=clock, s3=s3, put=_one_by_one(Bucket(BUCKET).put))


def _one_by_one(put: PutObject) -> PutObject:
    """Return *put* for a bucket of moto's, whose buffer of an object two puts at once would spoil."""
    turn = threading.Lock()

    def put_in_turn(key: str, body: bytes) -> None:
        with turn:
            put(key, body)

    return put_in_turn
