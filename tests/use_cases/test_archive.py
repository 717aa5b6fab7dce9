"""Failed tasks become dead letters: once each, byte for byte, whatever happens half-way."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import bson
import pytest
from bson import Decimal128, ObjectId, Regex
from bson.raw_bson import RawBSONDocument

from tests.builders import MINUTE, add, claim, document, lease, stored
from tests.conftest import ManualClock
from tests.use_cases.conftest import Bench
from tidemill import dead_letters
from tidemill.archive import archive
from tidemill.store import Tasks, claims


def run(tasks: Tasks, dead: Tasks, clock: ManualClock) -> dict[str, int]:
    return archive(tasks, dead, clock=clock, until=time.monotonic() + 60)


def failed(now: datetime, **fields: Any) -> dict[str, Any]:
    error = {"message": "ValueError: no", "code": "ValueError", "at": now}
    return document(now, **({"status": "failed", "reason": "exhausted", "finished_at": now, "error": error} | fields))


def test_failed_tasks_are_moved_and_all_others_stay(
    tasks: Tasks, dead: Tasks, clock: ManualClock, now: datetime
) -> None:
    ids = add(tasks, [failed(now) for _ in range(3)])
    add(tasks, [document(now, status=status) for status in ("pending", "processing", "done", "cancelled")])

    assert run(tasks, dead, clock) == {"moved": 3, "stuck": 0}

    assert tasks.count_documents({}) == 4
    assert [raw["_id"]["task"] for raw in dead.find()] == ids
    found = stored(dead, {"task": ids[0], "redrives": 0})
    assert (found["reason"], found["dead_lettered_at"], found["status"]) == ("exhausted", now, "failed")
    assert len(found["fingerprint"]) == 16
    assert "retain_from" not in found


def test_the_fields_of_a_task_survive_the_move_byte_for_byte(
    tasks: Tasks, dead: Tasks, clock: ManualClock, now: datetime
) -> None:
    payload = {
        "user.email": "a",
        "$gt": "",
        "a": {"$where": "1"},
        "": 1,
        "when": now,
        "bytes": b"\x00\xff",
        "big": 2**53 + 1,
        "float": 1.0,
        "id": ObjectId(),
        "money": Decimal128("1.10"),
        "pattern": Regex("a.*", "i"),
    }
    not_utf8 = bytearray(bson.encode(failed(now, payload=payload | {"text": "xxxx"})))
    not_utf8[not_utf8.index(b"xxxx")] = 0xFF
    original = RawBSONDocument(bytes(not_utf8))
    add(tasks, [original])

    run(tasks, dead, clock)

    [letter] = list(dead.find())
    assert letter["payload"].raw == original["payload"].raw
    elements_without_id = bytes(original.raw)[4 + len(bson.encode({"_id": original["_id"]})) - 5 :]
    assert bytes(letter.raw).endswith(elements_without_id)


@pytest.mark.parametrize("task_id", ["text", 7, {"a": 1}, 2**40, True, datetime(2031, 1, 1), b"\x01"], ids=str)  # noqa: DTZ001
def test_any_id_is_moved(tasks: Tasks, dead: Tasks, clock: ManualClock, now: datetime, task_id: Any) -> None:
    add(tasks, [failed(now, _id=task_id)])

    assert run(tasks, dead, clock) == {"moved": 1, "stuck": 0}
    assert dead.count_documents({}) == 1


def test_a_move_that_stopped_after_the_insert_is_finished_by_the_next(
    tasks: Tasks, dead: Tasks, clock: ManualClock, now: datetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(tasks, [failed(now) for _ in range(3)])
    with monkeypatch.context() as patched:
        patched.setattr(dead_letters, "remove", _die)
        with pytest.raises(KeyboardInterrupt):
            run(tasks, dead, clock)
    assert (tasks.count_documents({}), dead.count_documents({})) == (3, 3)

    clock.move(MINUTE)
    assert run(tasks, dead, clock)["moved"] == 3
    assert (tasks.count_documents({}), dead.count_documents({})) == (0, 3)
    assert {stored(dead, raw["_id"])["dead_lettered_at"] for raw in dead.find({}, {"_id": 1})} == {now}


def test_more_than_a_batch_is_moved_and_what_cannot_be_stored_stays_and_stops_nothing(
    tasks: Tasks, dead: Tasks, clock: ManualClock, now: datetime
) -> None:
    yesterday = now - timedelta(days=1)
    room = 16 * 1024 * 1024 - len(bson.encode(failed(yesterday, payload={"filler": ""})))
    add(tasks, [failed(yesterday, payload={"filler": "x" * (room - 50)})])
    add(tasks, [failed(now) for _ in range(1200)])

    assert run(tasks, dead, clock) == {"moved": 1200, "stuck": 1}
    assert (tasks.count_documents({}), dead.count_documents({})) == (1, 1200)


def test_a_document_failed_by_hand_is_a_dead_letter_too(tasks: Tasks, dead: Tasks, clock: ManualClock) -> None:
    add(tasks, [{"_id": 1, "status": "failed"}, {"_id": 2, "status": "failed", "error": "text", "redrives": "x"}])

    assert run(tasks, dead, clock) == {"moved": 2, "stuck": 0}
    assert {raw["reason"] for raw in dead.find()} == {"not_retryable"}


def test_who_failed_a_task_makes_no_difference_to_its_dead_letter(bench: Bench, dead: Tasks, now: datetime) -> None:
    bench.task("broken")(lambda _payload, _ctx: 1 / 0)
    by_function, by_reclaim = add(
        bench.tasks, [document(now, name="broken", max_retries=0), document(now, crashes=1, max_retries=0)]
    )

    claims.take(bench.tasks, [by_reclaim], lease=lease(now), now=now)
    bench.execute()
    bench.clock.move(2 * MINUTE)
    bench.reclaim()

    run(bench.tasks, dead, bench.clock)

    one, two = (stored(dead, {"task": task_id, "redrives": 0}) for task_id in (by_function, by_reclaim))
    assert set(one) == set(two)
    assert (one["reason"], two["reason"]) == ("exhausted", "worker_lost")


def test_two_archivers_at_once_make_one_dead_letter_a_task(bench: Bench, dead: Tasks, now: datetime) -> None:
    add(bench.tasks, [failed(now) for _ in range(1500)])

    with ThreadPoolExecutor(2) as pool:
        reports = list(pool.map(lambda _: run(bench.tasks, dead, bench.clock), range(2)))

    assert sum(report["moved"] for report in reports) == 1500
    assert (bench.tasks.count_documents({}), dead.count_documents({})) == (0, 1500)


def test_a_task_claimed_after_a_failure_is_not_deleted(tasks: Tasks, now: datetime) -> None:
    [task_id] = add(tasks, [document(now)])
    claim(tasks, now)

    assert dead_letters.remove(tasks, [task_id]) == 0


def _die(*_: Any) -> int:
    raise KeyboardInterrupt
