"""Dead letters that may not go back: each stays byte for byte as it was, and the report says why."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import bson
import pytest
from bson import ObjectId
from bson.raw_bson import RawBSONDocument

from tests.at_once import at_once
from tests.builders import add, all_of, document
from tests.buried import bury_tasks, failed, letter, letter_bytes
from tests.fixtures import T0, ManualClock
from tests.redrives import acting, redrive_all, redriver
from tidemill.dead_letters.redrive import MAX_EXAMPLES
from tidemill.dead_letters.selection import DeadLetterFilter
from tidemill.store.connection import Tasks

HOUR = timedelta(hours=1)

TAKEN = ObjectId("64b000000000000000000001")
HOLDER = ObjectId("64b000000000000000000002")
REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "another function": ({"name": "gone"}, "unregistered", "no function is registered as 'gone'"),
    "no payload": ({"payload": 7}, "malformed", "it could not run: payload is not what it has to be"),
    "no retries": ({"max_retries": -1}, "malformed", "it could not run: max_retries is not what it has to be"),
    "over": ({"expires_at": T0 + HOUR}, "expired", "its expires_at is not after its start"),
    "id": ({"_id": TAKEN}, "conflict", f"task {TAKEN} is there: it is done"),
    "key": ({"idempotency_key": "k"}, "conflict", f"its idempotency key is held by task {HOLDER}"),
}


def alive() -> list[dict[str, Any]]:
    """A task with the id, and a task with the key, of a letter."""
    done = document(T0, _id=TAKEN, status="done", finished_at=T0)
    return [done, document(T0, _id=HOLDER, idempotency_key="k", request_hash="other")]


@pytest.mark.parametrize("why", REFUSED)
def test_a_refused_letter_stays_as_it_is_and_keeps_no_other_back(
    tasks: Tasks, dead: Tasks, clock: ManualClock, why: str
) -> None:
    fields, code, message = REFUSED[why]
    add(tasks, alive())
    [letter_id] = bury_tasks(dead, [failed(T0, **fields)], at=T0)
    before = letter_bytes(dead)
    bury_tasks(dead, [failed(T0)], at=T0)
    clock.move(HOUR)

    done = redrive_all(redriver(tasks, dead, clock))

    assert (done.examined, done.redriven, done.refused) == (2, 1, {code: 1})
    [example] = done.examples
    assert (example.id, example.code, example.message) == (letter_id, code, message)
    assert done.unregistered == ({"gone": 1} if code == "unregistered" else {})
    assert before.items() <= letter_bytes(dead).items()
    assert tasks.count_documents({"status": "pending", "redrives": 1}) == 1


def test_names_that_are_not_registered_are_counted(tasks: Tasks, dead: Tasks, clock: ManualClock) -> None:  # F61
    bury_tasks(dead, [failed(T0, name=f"gone-{n % 2}") for n in range(5)], at=T0)

    done = redrive_all(redriver(tasks, dead, clock))

    assert done.unregistered == {"gone-0": 3, "gone-1": 2}
    assert all_of(tasks) == []


def test_only_some_of_the_refused_are_shown(tasks: Tasks, dead: Tasks, clock: ManualClock) -> None:
    bury_tasks(dead, [failed(T0, name="x" * 5000) for _ in range(MAX_EXAMPLES + 5)], at=T0)

    done = redrive_all(redriver(tasks, dead, clock))

    assert (done.refused, len(done.examples)) == ({"unregistered": MAX_EXAMPLES + 5}, MAX_EXAMPLES)
    assert max(len(one.message) for one in done.examples) < 200


def test_what_has_to_start_by_a_time_goes_back_without_one_if_asked(
    tasks: Tasks, dead: Tasks, clock: ManualClock
) -> None:
    bury_tasks(dead, [failed(T0, expires_at=T0)], at=T0)

    done = redrive_all(redriver(tasks, dead, clock), drop_expiry=True)

    assert (done.redriven, [one["expires_at"] for one in all_of(tasks)]) == (1, [None])


def test_a_spread_that_would_be_too_late_for_a_task_is_refused(tasks: Tasks, dead: Tasks, clock: ManualClock) -> None:
    bury_tasks(dead, [failed(T0), failed(T0), failed(T0, expires_at=T0 + timedelta(seconds=2))], at=T0)

    assert redrive_all(redriver(tasks, dead, clock), per_sec=1).refused == {"expired": 1}


@pytest.mark.parametrize("fields", [{"_id": "same"}, {"idempotency_key": "same"}], ids=["id", "key"])
def test_of_two_letters_with_the_same_id_or_key_the_first_goes_back(
    tasks: Tasks, dead: Tasks, clock: ManualClock, fields: dict[str, Any]
) -> None:
    first, _ = bury_tasks(dead, [failed(T0, **{"_id": ObjectId()} | fields, redrives=n) for n in (0, 1)], at=T0)

    done = redrive_all(redriver(tasks, dead, clock))

    assert (done.redriven, done.refused) == (1, {"conflict": 1})
    assert [one["redrives"] for one in all_of(tasks)] == [first.redrives + 1]


@pytest.mark.parametrize("fields", [{"_id": TAKEN}, {"idempotency_key": "k"}], ids=["id", "key"])
def test_a_conflict_that_only_the_insert_meets_leaves_the_letter_as_it_was(
    tasks: Tasks, dead: Tasks, clock: ManualClock, fields: dict[str, Any]
) -> None:
    bury_tasks(dead, [failed(T0, **fields)], at=T0)
    before = letter_bytes(dead)
    bury_tasks(dead, [failed(T0)], at=T0)

    with acting(redriver(tasks, dead, clock), "insert", before=lambda _: add(tasks, alive())) as on:
        done = redrive_all(on)

    assert (done.redriven, done.refused) == (1, {"conflict": 1})
    assert str(TAKEN if "_id" in fields else HOLDER) in done.examples[0].message
    assert before.items() <= letter_bytes(dead).items()


def test_a_task_that_the_database_refuses_leaves_the_letter_as_it_was(
    tasks: Tasks, dead: Tasks, clock: ManualClock
) -> None:
    bury_tasks(dead, [failed(T0, queue="bad")], at=T0)
    before = letter_bytes(dead)
    bury_tasks(dead, [failed(T0)], at=T0)
    tasks.database.command("collMod", "tasks", validator={"queue": {"$ne": "bad"}})

    done = redrive_all(redriver(tasks, dead, clock))

    assert (done.redriven, done.refused) == (1, {"malformed": 1})
    assert done.examples[0].message == "MongoDB refuses its task (code 121)"
    assert before.items() <= letter_bytes(dead).items()


def _not_utf_8(letter: bytes) -> bytes:
    return letter.replace(b"???", b"\xff\xff\xff")


@pytest.mark.parametrize("fields", [{"_id": "???"}, {"payload": {"x": "???"}}, {"queue": "???"}], ids=repr)
def test_text_that_is_no_utf_8_is_refused(
    tasks: Tasks, dead: Tasks, clock: ManualClock, fields: dict[str, Any]
) -> None:
    dead.insert_one(RawBSONDocument(_not_utf_8(bson.encode(letter(T0, **fields)))))
    before = letter_bytes(dead)

    done = redrive_all(redriver(tasks, dead, clock))

    assert (done.refused, letter_bytes(dead), all_of(tasks)) == ({"malformed": 1}, before, [])


@pytest.mark.parametrize("letter_id", [{"task": bson.Regex("a"), "redrives": 0}, {"task": 1, "redrives": -1}], ids=repr)
def test_an_id_that_no_task_can_have_is_refused(
    tasks: Tasks, dead: Tasks, clock: ManualClock, letter_id: dict[str, Any]
) -> None:
    add(dead, [failed(T0, _id=letter_id)])

    [refused] = redrive_all(redriver(tasks, dead, clock)).examples

    assert (refused.code, refused.message) == ("malformed", "it could not run: no task can have its id")


def test_two_redrives_at_once_bring_each_task_back_once(tasks: Tasks, dead: Tasks, clock: ManualClock) -> None:
    bury_tasks(dead, [failed(T0) for _ in range(300)], at=T0)

    both = at_once([redriver(tasks, dead, clock)] * 2, redrive_all)

    assert sum(one.redriven for one in both) == 300
    assert all(set(one.refused) <= {"in_progress", "conflict"} for one in both)
    assert (tasks.count_documents({}), dead.count_documents({"redriven_at": T0, "redrive_token": None})) == (300, 300)


def test_a_letter_that_somebody_else_has_taken_meanwhile_is_theirs(
    tasks: Tasks,
    dead: Tasks,
    clock: ManualClock,
) -> None:
    bury_tasks(dead, [failed(T0, _id=one) for one in ("gone", "closed", "theirs", "ours")], at=T0)

    def change(_: object) -> None:
        dead.delete_one({"_id.task": "gone"})
        dead.update_one({"_id.task": "closed"}, {"$set": {"redriven_at": T0}})
        dead.update_one({"_id.task": "theirs"}, {"$set": {"redrive_started_at": T0, "redrive_token": "t"}})

    with acting(redriver(tasks, dead, clock), "mark", before=change) as on:
        done = redrive_all(on)

    assert (done.examined, done.redriven, done.refused) == (4, 1, {"in_progress": 1})
    assert [one["_id"] for one in all_of(tasks)] == ["ours"]
    assert dead.count_documents({"_id.task": "closed", "redrive_token": None}) == 1


SECOND = timedelta(seconds=1)


@pytest.mark.parametrize(
    ("started_at", "is_under_way"), [(T0, True), (T0 - 60 * SECOND, False), (T0 + 60 * SECOND, False)], ids=str
)
def test_a_redrive_that_is_under_way_is_left_alone(
    tasks: Tasks, dead: Tasks, clock: ManualClock, started_at: object, *, is_under_way: bool
) -> None:
    bury_tasks(dead, [failed(T0)], at=T0)
    dead.update_one({}, {"$set": {"redrive_started_at": started_at, "redrive_due_at": T0, "redrive_token": "t"}})
    before = letter_bytes(dead)

    done = redrive_all(redriver(tasks, dead, clock), DeadLetterFilter(name="noop"))

    assert (done.redriven, done.refused) == ((0, {"in_progress": 1}) if is_under_way else (1, {}))
    assert (letter_bytes(dead) == before) == is_under_way
