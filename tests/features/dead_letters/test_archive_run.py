"""A run of the archive as a whole: its steps, and what may expire."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from tests.builders import MINUTE, add, all_of, stored
from tests.buried import bury, failed, letter, letters
from tests.faults import failing
from tests.fixtures import ManualClock
from tidemill.dead_letters.archive import ArchiveContext, ArchiveError, Report, archive
from tidemill.dead_letters.export import RETENTION_BATCH_SIZE
from tidemill.documents import DEAD_LETTERS
from tidemill.store.connection import Tasks, open_tasks

INTERRUPTED = 11601
DAY = timedelta(days=1)


@pytest.fixture
def bucket() -> dict[str, bytes]:
    return {}


@pytest.fixture
def archives(mine: Tasks, clock: ManualClock, bucket: dict[str, bytes]) -> ArchiveContext:
    """With a bucket that takes everything, and a client whose commands can be made to fail."""
    return ArchiveContext(
        tasks=mine,
        dead=open_tasks(mine.database, DEAD_LETTERS),
        clock=clock,
        task_retention=7 * DAY,
        put=bucket.__setitem__,
    )


def run(archives: ArchiveContext) -> Report:
    return archive(archives, until=time.monotonic() + 60)


def test_what_failed_is_moved_and_exported_in_one_run(
    archives: ArchiveContext, tasks: Tasks, dead: Tasks, now: datetime, bucket: dict[str, bytes]
) -> None:
    add(tasks, [failed(now) for _ in range(3)])

    assert run(archives) == Report(moved=3, exported=3)

    assert (tasks.count_documents({}), dead.count_documents({"archived_at": now, "retain_from": now})) == (0, 3)
    assert len(bucket) == 3
    assert run(archives) == Report()


@pytest.mark.parametrize(
    ("command", "moved", "exported"),
    [
        ("delete tasks", 0, 2),  # the letter of the task, too, was inserted before
        ("insert tasks_dlq", 0, 1),
        ("update tasks_dlq", 1, 0),
    ],
)
def test_a_step_that_fails_keeps_no_other_from_its_work(  # F57
    archives: ArchiveContext, bucket: dict[str, bytes], command: str, moved: int, exported: int
) -> None:
    tasks, dead, now = archives.tasks, archives.dead, archives.clock.now()
    add(tasks, [failed(now)])
    add(dead, [letter(now, _id="earlier")])
    name, collection = command.split()
    fault = {"errorCode": INTERRUPTED, "namespace": f"{tasks.database.name}.{collection}"}

    with failing(tasks, name, times=99, **fault), pytest.raises(ArchiveError) as failure:
        run(archives)

    assert (failure.value.report.moved, failure.value.report.exported) == (moved, exported)
    assert tasks.count_documents({}) == 1 - moved
    assert dead.count_documents({"archived_at": now}) == exported
    assert run(archives).moved == 1 - moved
    assert (tasks.count_documents({}), dead.count_documents({"archived_at": now}), len(bucket)) == (0, 2, 2)


def test_without_a_bucket_nothing_is_exported_and_nothing_expires(
    archives: ArchiveContext, tasks: Tasks, dead: Tasks, now: datetime
) -> None:
    add(tasks, [failed(now) for _ in range(3)])

    assert run(replace(archives, put=None)) == Report(moved=3, unexported=3)

    assert dead.count_documents({"archived_at": None, "retain_from": None}) == 3


def test_unexported_letters_expire_where_the_deployment_says_so_counted_from_then_on(
    archives: ArchiveContext, tasks: Tasks, dead: Tasks, clock: ManualClock, now: datetime
) -> None:
    long_ago = now - 400 * DAY
    add(
        dead,
        [letter(long_ago, _id="old"), letter(long_ago, _id="exported", archived_at=long_ago, retain_from=long_ago)],
    )
    add(tasks, [failed(now, _id="new")])
    archives = replace(archives, put=None, expire_unexported=True)

    run(archives)
    first = {one: stored(dead, {"task": one, "redrives": 0})["retain_from"] for one in ("old", "exported", "new")}
    clock.move(MINUTE)
    run(archives)

    assert first == {"old": now, "exported": long_ago, "new": now}
    assert {one: stored(dead, {"task": one, "redrives": 0})["retain_from"] for one in first} == first

    run(replace(archives, expire_unexported=False))
    assert [raw["_id"]["task"] for raw in dead.find({"retain_from": {"$type": "date"}})] == ["exported"]


def test_what_may_expire_is_marked_in_parts(archives: ArchiveContext, dead: Tasks, now: datetime) -> None:
    add(dead, [letter(now, _id=n) for n in range(RETENTION_BATCH_SIZE + 1)])

    run(replace(archives, put=None, expire_unexported=True))

    assert dead.count_documents({"retain_from": now}) == RETENTION_BATCH_SIZE + 1


def test_a_run_whose_time_is_over_does_nothing(
    archives: ArchiveContext, tasks: Tasks, dead: Tasks, now: datetime
) -> None:
    add(tasks, [failed(now)])
    add(dead, [letter(now, _id="x")])

    archive(archives, until=time.monotonic() - 1)

    assert (tasks.count_documents({}), dead.count_documents({"archived_at": None})) == (1, 1)


@pytest.mark.parametrize("expire", [True, False])
def test_a_letter_that_mongodb_refuses_to_change_keeps_no_other_from_its_expiry(
    archives: ArchiveContext, dead: Tasks, now: datetime, *, expire: bool
) -> None:
    every = range(RETENTION_BATCH_SIZE + 1)
    bury(dead, letters(now, every, retain_from=None if expire else now))
    dead.update_one({"_id.task": 1}, {"$set": {"name": "barred"}})
    dead.database.command("collMod", DEAD_LETTERS, validator={"name": {"$ne": "barred"}})

    run(replace(archives, put=None, expire_unexported=expire))

    expiring = [one["_id"]["task"] for one in all_of(dead) if one.get("retain_from")]
    assert expiring == ([n for n in every if n != 1] if expire else [1])


def test_without_the_settings_of_the_deployment_it_moves_and_changes_no_mark(
    archives: ArchiveContext, now: datetime
) -> None:
    bury(archives.dead, [letter(now - DAY)])
    before = all_of(archives.dead)
    add(archives.tasks, [failed(now)])

    report = run(replace(archives, only_moves=True, expire_unexported=True))

    found = all_of(archives.dead)
    assert report == Report(moved=1)
    assert [old for old in found if old in before] == before
    assert not any("retain_from" in new or "archived_at" in new for new in found)


@pytest.mark.parametrize(("kept", "returned"), [(2 * DAY, 1), (MINUTE, 0)])
def test_the_retention_of_the_database_decides_whether_a_redrive_is_completed(
    archives: ArchiveContext, clock: ManualClock, now: datetime, kept: timedelta, returned: int
) -> None:
    index = {"name": "retention", "expireAfterSeconds": int(kept.total_seconds())}
    archives.tasks.database.command("collMod", "tasks", index=index)
    bury(archives.dead, [letter(now, redrive_started_at=now, redrive_due_at=now, redrive_token="t", redriven_at=None)])
    clock.move(DAY)

    report = run(replace(archives, only_moves=True, task_retention=None))

    assert report == Report(redriven=returned)
    assert archives.tasks.count_documents({"status": "pending"}) == returned
    assert not any("redrive_started_at" in found for found in all_of(archives.dead))
