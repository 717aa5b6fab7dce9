"""Failed tasks become dead letters: once each, byte for byte, whatever happens half-way."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import Any

import bson
import pytest
from bson import Decimal128, ObjectId, Regex
from bson.datetime_ms import DatetimeMS
from bson.raw_bson import RawBSONDocument
from pymongo.monitoring import CommandListener

from tests.builders import MINUTE, add, all_of, document, lease, stored
from tests.buried import bury_tasks, failed, letter
from tests.commands import Commands
from tests.faults import Afterwards, Beforehand, heard
from tests.features.conftest import Bench
from tests.fixtures import T0, ManualClock
from tidemill.dead_letters.archive import Report, move_failed
from tidemill.dead_letters.documents import CHANGING_FIELDS, MARK_FIELDS, MAX_DOCUMENT_BYTES
from tidemill.documents import DEAD_LETTERS
from tidemill.policy.fingerprint import fingerprint
from tidemill.store import claims
from tidemill.store.connection import Tasks, open_tasks
from tidemill.store.paging import MAX_BATCH_BYTES


def run(tasks: Tasks, dead: Tasks, clock: ManualClock) -> Report:
    return move_failed(tasks, dead, clock=clock, until=time.monotonic() + 60)


def run_heard(tasks: Tasks, clock: ManualClock, listener: CommandListener) -> Report:
    """Move through a client whose commands *listener* hears."""
    with heard(tasks.database, listener) as db:
        return run(open_tasks(db), open_tasks(db, DEAD_LETTERS), clock)


def die_before_the_delete(tasks: Tasks, clock: ManualClock) -> None:
    def die() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_heard(tasks, clock, Beforehand("delete", die))


def test_failed_tasks_are_moved_and_all_others_stay(
    tasks: Tasks, dead: Tasks, clock: ManualClock, now: datetime
) -> None:
    ids = add(tasks, [failed(now) for _ in range(3)])
    add(tasks, [document(now, status=status) for status in ("pending", "processing", "done", "cancelled")])

    assert run(tasks, dead, clock) == Report(moved=3)

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

    [buried] = list(dead.find())
    assert buried["payload"].raw == original["payload"].raw
    elements_without_id = bytes(original.raw)[4 + len(bson.encode({"_id": original["_id"]})) - 5 :]
    assert bytes(buried.raw).endswith(elements_without_id)


@pytest.mark.parametrize("task_id", ["text", 7, {"a": 1}, 2**40, True, datetime(2031, 1, 1), b"\x01"], ids=str)  # noqa: DTZ001
def test_any_id_is_moved(tasks: Tasks, dead: Tasks, clock: ManualClock, now: datetime, task_id: Any) -> None:
    add(tasks, [failed(now, _id=task_id)])

    assert run(tasks, dead, clock) == Report(moved=1)
    assert dead.count_documents({}) == 1


def test_a_move_that_stopped_after_the_insert_is_finished_by_the_next(
    tasks: Tasks, dead: Tasks, clock: ManualClock, now: datetime
) -> None:
    add(tasks, [failed(now) for _ in range(3)])
    die_before_the_delete(tasks, clock)
    assert (tasks.count_documents({}), dead.count_documents({})) == (3, 3)

    clock.move(MINUTE)
    assert run(tasks, dead, clock) == Report(moved=3, repeated=3)
    assert (tasks.count_documents({}), dead.count_documents({})) == (0, 3)
    assert {stored(dead, raw["_id"])["dead_lettered_at"] for raw in dead.find({}, {"_id": 1})} == {now}


def test_a_document_that_is_full_loses_what_nobody_needs_and_is_moved_all_the_same(  # F43
    tasks: Tasks, dead: Tasks, clock: ManualClock, now: datetime
) -> None:
    settings = {"priority": 7, "max_retries": 2, "timeout_sec": 600, "idempotency_key": "k", "settled_by": "t" * 32}
    full = failed(now, payload={"filler": ""}, **settings)
    full["payload"]["filler"] = "x" * (MAX_DOCUMENT_BYTES - len(bson.encode(full)))
    [task_id] = add(tasks, [full])
    of_its_error = fingerprint(name="noop", code="http_503", message="the receiver answered 503")

    assert run(tasks, dead, clock) == Report(moved=1)

    buried = stored(dead, {"task": task_id, "redrives": 0})
    assert buried["payload"] == full["payload"]
    kept = ("priority", "max_retries", "timeout_sec", "idempotency_key", "reason", "created_at", "finished_at", "name")
    assert {name: buried[name] for name in kept} == {name: full[name] for name in kept}
    assert (buried["error"]["code"], buried["fingerprint"]) == ("http_503", of_its_error)


def test_what_cannot_be_stored_stays_with_a_reason_and_is_tried_again_later_each_time(
    tasks: Tasks, dead: Tasks, clock: ManualClock, now: datetime
) -> None:
    dead.database.command("collMod", DEAD_LETTERS, validator={"name": {"$ne": "barred"}})
    barred, *_ = add(tasks, [failed(now - MINUTE, name="barred"), *(failed(now) for _ in range(1200))])

    assert run(tasks, dead, clock) == Report(moved=1200, stuck=1)

    waits = []
    for attempts in range(1, 12):
        task = stored(tasks, barred)
        assert (task["archive_attempts"], task["archive_error"]) == (attempts, "MongoDB refuses it (code 121)")
        waits.append(task["archive_retry_at"] - clock.at)
        assert run(tasks, dead, clock) == Report()
        clock.at = task["archive_retry_at"]
        assert run(tasks, dead, clock) == Report(stuck=1)
    assert waits == [min(timedelta(minutes=10) * 2**n, timedelta(days=1)) for n in range(11)]

    dead.database.command("collMod", DEAD_LETTERS, validator={})
    clock.move(timedelta(days=1))
    assert run(tasks, dead, clock) == Report(moved=1)
    assert (
        not {"archive_attempts", "archive_error", "archive_retry_at"}
        & stored(dead, {"task": barred, "redrives": 0}).keys()
    )


def test_a_death_of_another_task_with_the_same_id_is_a_dead_letter_of_its_own(
    tasks: Tasks, dead: Tasks, clock: ManualClock, now: datetime
) -> None:
    for day in range(3):
        died = now + timedelta(days=day)
        add(tasks, [failed(died, _id="daily-report", created_at=died, payload={"day": day})])
        die_before_the_delete(tasks, clock)
        assert run(tasks, dead, clock) == Report(moved=1, repeated=1)

    letters = [stored(dead, raw["_id"]) for raw in dead.find({}, {"_id": 1})]
    assert [(one["_id"]["redrives"], one["payload"]["day"]) for one in letters] == [(0, 0), (1, 1), (2, 2)]


def test_marks_that_somebody_left_on_a_task_are_none_of_its_letter(
    tasks: Tasks, dead: Tasks, clock: ManualClock, now: datetime
) -> None:
    long_ago = now - timedelta(days=400)
    [task_id] = add(tasks, [failed(now, **dict.fromkeys(MARK_FIELDS, long_ago))])

    run(tasks, dead, clock)

    buried = stored(dead, {"task": task_id, "redrives": 0})
    assert (buried["dead_lettered_at"], len(buried["fingerprint"])) == (now, 16)
    assert not set(CHANGING_FIELDS) & buried.keys()
    assert bytes(next(dead.find()).raw).count(b"dead_lettered_at") == 1


def test_a_document_failed_by_hand_is_a_dead_letter_too(tasks: Tasks, dead: Tasks, clock: ManualClock) -> None:
    add(tasks, [{"_id": 1, "status": "failed"}, {"_id": 2, "status": "failed", "error": "text", "redrives": "x"}])

    assert run(tasks, dead, clock) == Report(moved=2)
    assert {raw["reason"] for raw in dead.find()} == {"not_retryable"}


def test_who_failed_a_task_makes_no_difference_to_its_dead_letter(  # F19
    bench: Bench, dead: Tasks, now: datetime
) -> None:
    bench.task("broken")(lambda _payload, _ctx: 1 / 0)
    bench.clock.move(timedelta(hours=1))
    later = bench.clock.now()
    by_function, by_reclaim, by_admission, by_sweep, by_quarantine = add(
        bench.tasks,
        [
            document(now, name="broken", max_retries=0),
            document(later, crashes=1, max_retries=0),
            document(now, name="gone"),
            document(later, expires_at=later + MINUTE, due_at=later + MINUTE, next_retry_at=later + MINUTE),
            document(now, lane="sideways"),
        ],
    )

    claims.take(bench.tasks, [by_reclaim], lease=lease(later), now=later)
    bench.execute()
    bench.clock.move(2 * MINUTE)
    bench.reclaim()

    assert run(bench.tasks, dead, bench.clock).moved == 5

    letters = {one["_id"]["task"]: one for one in (stored(dead, raw["_id"]) for raw in dead.find({}, {"_id": 1}))}
    assert {task_id: one["reason"] for task_id, one in letters.items()} == {
        by_function: "exhausted",
        by_reclaim: "worker_lost",
        by_admission: "unknown_task",
        by_sweep: "expired",
        by_quarantine: "malformed",
    }
    assert len({frozenset(one) for one in letters.values()}) == 1
    assert {one["next_retry_at"] for one in letters.values()} == {None}
    assert len({one["fingerprint"] for one in letters.values()}) == 5


def by_hand(task_id: Any, **fields: Any) -> dict[str, Any]:
    """What a person has failed, who set no times."""
    return {"_id": task_id, "name": "noop", "status": "failed"} | fields


@pytest.mark.parametrize(
    ("failed_before", "meanwhile"),
    [
        (failed(T0, _id="a"), {"status": "pending"}),
        (failed(T0, _id="a"), {"status": "failed", "finished_at": T0 + MINUTE, "redrives": 1}),
        (by_hand("a"), {"redrives": 1}),
        (by_hand("a"), {"created_at": T0}),
    ],
    ids=["claimed once more", "died again", "failed by hand again", "enqueued and failed by hand again"],
)
def test_what_has_a_new_life_when_it_would_be_deleted_stays(
    tasks: Tasks, clock: ManualClock, failed_before: dict[str, Any], meanwhile: dict[str, Any]
) -> None:
    add(tasks, [failed_before])
    change = Beforehand("delete", lambda: tasks.update_one({"_id": "a"}, {"$set": meanwhile}))

    assert run_heard(tasks, clock, change).moved == 0

    assert meanwhile.items() <= stored(tasks, "a").items()


def test_two_deaths_of_one_id_that_people_gave_no_times_are_told_by_their_payloads(
    tasks: Tasks, dead: Tasks, clock: ManualClock
) -> None:
    for n in (1, 2, 2):
        add(tasks, [by_hand("nightly", payload={"n": n})])
        run(tasks, dead, clock)

    letters = [stored(dead, raw["_id"]) for raw in dead.find({}, {"_id": 1})]
    assert [(one["_id"]["redrives"], one["payload"]["n"]) for one in letters] == [(0, 1), (1, 2)]


def test_a_task_stays_whose_letter_is_neither_stored_nor_found(
    tasks: Tasks, dead: Tasks, clock: ManualClock, now: datetime
) -> None:
    add(tasks, [failed(now - MINUTE, _id="a")])
    run(tasks, dead, clock)
    add(tasks, [failed(now, _id="a")])

    assert run_heard(tasks, clock, Afterwards("insert", lambda: dead.delete_many({}))) == Report()

    assert (tasks.count_documents({}), dead.count_documents({})) == (1, 0)
    assert run(tasks, dead, clock) == Report(moved=1)


@pytest.mark.parametrize(
    "odd",
    [*({"redrives": odd} for odd in (2**63 - 1, 2**31, 1.0, -1, True, "many", None)), {"try": 1}, {}],
    ids=str,
)
def test_letters_with_odd_ids_keep_no_other_back(
    tasks: Tasks, dead: Tasks, clock: ManualClock, now: datetime, odd: dict[str, Any]
) -> None:
    add(dead, [failed(now - MINUTE) | {"_id": {"task": "a"} | rest} for rest in (odd, {"redrives": 0})])
    add(tasks, [failed(now, _id="a"), failed(now, _id="other")])

    assert run(tasks, dead, clock) == Report(moved=2)
    assert (tasks.count_documents({}), dead.count_documents({})) == (0, 4)


@pytest.mark.parametrize("field", ["created_at", "updated_at", "finished_at", "redrives"])
def test_a_task_with_text_that_is_no_utf8_among_its_times_is_moved(
    tasks: Tasks, dead: Tasks, clock: ManualClock, now: datetime, field: str
) -> None:
    spoilt = bytearray(bson.encode(failed(now, **{field: "xxxx"})))
    spoilt[spoilt.index(b"xxxx")] = 0xFF
    add(tasks, [RawBSONDocument(bytes(spoilt))])

    assert run(tasks, dead, clock) == Report(moved=1)
    assert (tasks.count_documents({}), dead.count_documents({})) == (0, 1)


def test_a_task_that_cannot_be_deleted_is_not_tried_for_ever(tasks: Tasks, clock: ManualClock, now: datetime) -> None:
    add(tasks, [failed(now)])

    def change() -> None:
        tasks.update_many({}, {"$set": {"updated_at": clock.move(MINUTE)}})

    for repeated in (0, 2):
        report = run_heard(tasks, clock, Beforehand("delete", change, always=True))
        assert report.moved == 0
        assert report.repeated <= repeated


@pytest.mark.parametrize("odd", [float("nan"), DatetimeMS(2**62), "text", [1]], ids=str)
def test_a_death_at_an_odd_time_is_known_again(tasks: Tasks, dead: Tasks, clock: ManualClock, odd: Any) -> None:
    add(tasks, [failed(clock.now(), finished_at=odd)])
    die_before_the_delete(tasks, clock)

    assert run(tasks, dead, clock).repeated == 1
    assert dead.count_documents({}) == 1


def test_an_id_that_is_a_date_out_of_range_keeps_no_other_back(
    tasks: Tasks, dead: Tasks, clock: ManualClock, now: datetime
) -> None:
    add(tasks, [failed(now, _id=DatetimeMS(2**62)), failed(now)])
    die_before_the_delete(tasks, clock)

    assert run(tasks, dead, clock) == Report(moved=2, repeated=2)


def test_a_task_that_died_again_closes_the_letter_its_redrive_was_cut_short_of(
    tasks: Tasks, dead: Tasks, clock: ManualClock, now: datetime
) -> None:
    marks: dict[str, Any] = {
        "redrive_started_at": now,
        "redrive_token": "t",
        "redrive_due_at": now,
        "redrive_drops_expiry": False,
    }
    for task_id in ("a", "b"):
        add(dead, [letter(now, _id=task_id, **marks)])
    add(tasks, [failed(now, _id="a", redrives=1), failed(now, _id="b", redrives=1, created_at=now - MINUTE)])

    assert run(tasks, dead, clock) == Report(moved=2)

    closed, of_another_life = (stored(dead, {"task": task_id, "redrives": 0}) for task_id in ("a", "b"))
    assert (closed["redriven_at"], closed.keys() & marks.keys()) == (now, set())
    assert of_another_life.items() >= marks.items()


def test_a_move_holds_no_more_at_once_than_a_function_has_memory_for(
    tasks: Tasks, clock: ManualClock, now: datetime
) -> None:
    add(tasks, [failed(now, payload={"filler": "x" * (MAX_BATCH_BYTES // 3)}) for _ in range(5)])
    commands = Commands()

    assert run_heard(tasks, clock, commands).moved == 5
    assert [name for name in commands.names if name in {"insert", "delete"}] == ["insert", "delete"] * 2


def test_a_task_that_dies_twice_in_an_instant_keeps_its_second_letter_though_its_number_is_taken(
    tasks: Tasks, dead: Tasks, clock: ManualClock, now: datetime
) -> None:
    earlier = failed(now - MINUTE, _id="a", redrives=1)
    first = failed(now, _id="a", redrives="many")  # edited by hand, so it came back under a number it had before
    bury_tasks(dead, [earlier, first], at=now)
    dead.update_many({}, {"$set": {"redriven_at": now}})
    add(tasks, [failed(now, _id="a", redrives=1)])

    assert run(tasks, dead, clock) == Report(moved=1)

    assert [one["_id"]["redrives"] for one in all_of(dead) if "redriven_at" not in one] == [2]


def test_a_task_that_dies_twice_in_an_instant_keeps_its_second_letter_though_its_number_was_taken_away(
    tasks: Tasks, dead: Tasks, clock: ManualClock, now: datetime
) -> None:
    bury_tasks(dead, [failed(now, _id="a", settled_by="first lease")], at=now)
    dead.update_many({}, {"$set": {"redriven_at": now}})
    add(tasks, [failed(now, _id="a", redrives="many", settled_by="second lease")])  # edited by hand

    assert run(tasks, dead, clock) == Report(moved=1)

    assert [found["_id"]["redrives"] for found in all_of(dead) if "redriven_at" not in found] == [1]


def test_a_document_put_by_hand_under_the_id_of_an_open_letter_is_a_failure_of_its_own(
    tasks: Tasks, dead: Tasks, clock: ManualClock, now: datetime
) -> None:
    bury_tasks(dead, [failed(now, _id="a", settled_by="a lease")], at=now)
    add(tasks, [failed(now, _id="a")])  # in the same millisecond, and nothing of ours has settled it

    assert run(tasks, dead, clock) == Report(moved=1)

    assert [found["_id"]["redrives"] for found in all_of(dead)] == [0, 1]
