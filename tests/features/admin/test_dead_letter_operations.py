"""What an operator does to dead letters, on a database, with the real executor and archive where they are needed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bson import ObjectId
from pymongo import MongoClient
from pymongo.database import Database

from tests.builders import add, document, stored
from tests.buried import FINGERPRINT, bury, letter, letters
from tests.commands import Commands
from tests.fixtures import ManualClock
from tidemill.admin.api import operate, read_operation
from tidemill.admin.context import AdminContext
from tidemill.dead_letters.export_format import ExportError
from tidemill.dead_letters.queries import GroupLimits
from tidemill.errors import InvalidRequestError, TaskNotFoundError
from tidemill.policy.retry import DEFAULT
from tidemill.store.connection import Tasks
from tidemill.testing import Mongod

HOUR = timedelta(hours=1)
SECRET = "s3cret-of-a-customer"


@pytest.fixture
def context(db: Database[Any], clock: ManualClock) -> AdminContext:
    db["task_types"].insert_one({"_id": "noop"})
    return AdminContext(db=db, clock=clock, retry=DEFAULT)


def do(context: AdminContext, op: str, **fields: Any) -> dict[str, Any]:
    answer = operate(read_operation({"op": op, **fields}), context).document()
    return dict(json.loads(json.dumps(answer, allow_nan=False)))


def do_all(context: AdminContext, op: str, counted: str, **fields: Any) -> list[int]:
    """How many each page did."""
    answer = do(context, op, **fields)
    done = [answer[counted]]
    while answer["next"] is not None:
        answer = do(context, op, **fields, cursor=answer["next"])
        done.append(answer[counted])
    return done


# Groups


def test_groups_say_how_many_since_when_and_of_what(context: AdminContext, dead: Tasks, now: datetime) -> None:
    bury(dead, [letter(now - n * HOUR) for n in range(3)])
    bury(dead, [letter(now, fingerprint="b", redriven_at=now), letter(now, fingerprint="c")])

    answer = do(context, "dlq.groups", limit=1)

    [group] = answer["groups"]
    newest = do(context, "dlq.list", fingerprint=FINGERPRINT)["dead_letters"][0]
    names = ("dead_letters", "total_groups", "sampled_newest", "warnings")
    assert [answer[name] for name in names] == [4, 2, None, []]
    assert group == {
        "fingerprint": FINGERPRINT,
        "dead_letters": 3,
        "first_at": "2031-07-01T07:00:00.000Z",
        "last_at": "2031-07-01T09:00:00.000Z",
        "trend": [0] * 21 + [1, 1, 1],
        "sample": {
            "id": newest["id"],
            "redrives": 0,
            "name": "noop",
            "reason": "exhausted",
            "error": {"code": "http_503", "message": "the receiver answered 503", "at": "2031-07-01T09:00:00.000Z"},
        },
    }


def test_where_not_all_groups_can_be_counted_the_answer_says_of_how_many_it_is(
    context: AdminContext, dead: Tasks, now: datetime
) -> None:
    context = replace(context, group_limits=GroupLimits(max_counted=4, sampled_newest=3))
    assert do(context, "dlq.groups")["sampled_newest"] is None
    bury(dead, [letter(now - 9 * HOUR, fingerprint="a") for _ in range(4)])
    bury(dead, [letter(now - HOUR, fingerprint="z") for _ in range(2)])

    answer = do(context, "dlq.groups")

    assert (answer["sampled_newest"], answer["dead_letters"], answer["total_groups"]) == (3, 3, 2)
    assert [(one["fingerprint"], one["dead_letters"]) for one in answer["groups"]] == [("z", 2), ("a", 1)]


@pytest.mark.parametrize(("op", "fields"), [("dlq.groups", {}), ("dlq.list", {}), ("dlq.redrive", {"all": True})])
def test_a_database_where_no_executor_ever_was_is_told(
    context: AdminContext, dead: Tasks, now: datetime, *, op: str, fields: dict[str, Any]
) -> None:
    context.db["task_types"].delete_many({})
    warning = f"no executor has ever registered its functions in {context.db.name}: is MONGODB_DATABASE right?"

    assert do(context, op, **fields)["warnings"] == [warning]
    bury(dead, [letter(now)])
    assert do(context, op, **fields)["warnings"] == []


# Lists


def test_the_letters_of_a_group_are_listed_page_by_page(context: AdminContext, dead: Tasks, now: datetime) -> None:
    made = bury(dead, [letter(now - n * HOUR) for n in range(5)])
    bury(dead, [letter(now, fingerprint="b")])

    first = do(context, "dlq.list", fingerprint=FINGERPRINT, limit=3)
    rest = do(context, "dlq.list", fingerprint=FINGERPRINT, limit=3, cursor=first["next"])

    assert [one["id"] for one in first["dead_letters"] + rest["dead_letters"]] == list(map(str, made))
    assert rest["next"] is None


def test_letters_of_what_nobody_registered_cost_no_look_each(
    mongod: Mongod, context: AdminContext, dead: Tasks, clock: ManualClock, now: datetime
) -> None:
    bury(dead, letters(now, range(100), name="gone", reason="unknown_task"))
    noted = Commands()
    with MongoClient[dict[str, Any]](mongod.uri, tz_aware=True, event_listeners=[noted]) as client:
        told = do(AdminContext(db=client[context.db.name], clock=clock, retry=DEFAULT), "dlq.list", limit=100)

    assert len(told["dead_letters"]) == 100
    assert len(noted.names) == 7


def test_a_listed_letter_says_where_it_stands(context: AdminContext, dead: Tasks, now: datetime) -> None:
    bury(dead, [letter(now, archived_at=now, redriven_at=now, redrives=2)])

    [listed] = do(context, "dlq.list", redriven=True)["dead_letters"]

    assert listed["dead_letter"] is True
    assert (listed["redrives"], listed["fingerprint"], listed["reason"]) == (2, FINGERPRINT, "exhausted")
    for field in ("dead_lettered_at", "archived_at", "redriven_at"):
        assert listed[field] == "2031-07-01T09:00:00.000Z"
    assert (listed["redrive_started_at"], listed["export_attempts"], listed["export_error"]) == (None, 0, None)


@pytest.mark.parametrize("op", ["dlq.list", "dlq.redrive", "dlq.purge"])
@pytest.mark.parametrize(
    ("which", "warning"),
    [
        (
            {"fingerprint": "00000000000000ab"},
            f"no dead letter has the fingerprint 00000000000000ab, did you mean {FINGERPRINT}?",
        ),
        ({"name": "nooop"}, "no executor has registered a function nooop, did you mean noop?"),
        ({"queue": "eurpoe"}, "there is no queue eurpoe, did you mean europe?"),
        ({"name": "noop", "until": "2001-01-01T00:00:00Z"}, None),
        ({"fingerprint": FINGERPRINT, "queue": "europe"}, None),
    ],
)
def test_what_matches_nothing_is_told_with_what_may_be_meant(
    context: AdminContext,
    dead: Tasks,
    tasks: Tasks,
    now: datetime,
    *,
    op: str,
    which: dict[str, Any],
    warning: str | None,
) -> None:
    bury(dead, [letter(now)])
    add(tasks, [document(now, queue="europe")])

    answer = do(context, op, **which)

    assert answer["warnings"] == ([] if warning is None else [warning])
    assert dead.count_documents({"redriven_at": None}) == 1


def test_what_may_be_meant_is_looked_for_among_the_newest_letters_alone(
    db: Database[Any], context: AdminContext, dead: Tasks, now: datetime
) -> None:
    bury(dead, [letter(now - n * HOUR, fingerprint=f"{n:016x}") for n in range(2_000)])
    db.command("profile", 2)

    answer = do(context, "dlq.list", fingerprint="0000000000003e7")

    db.command("profile", 0)
    examined = [one.get("keysExamined", 0) for one in db["system.profile"].find({"ns": f"{db.name}.tasks_dlq"})]
    assert sum(examined) < 1_100
    assert "did you mean 00000000000003e7?" in answer["warnings"][0]


@pytest.mark.parametrize("op", ["dlq.list", "dlq.redrive", "dlq.purge"])
@pytest.mark.parametrize(
    ("which", "warning"),
    [
        ({"name": "nooop"}, "no executor has registered a function nooop, did you mean noop?"),
        ({"queue": "eurpoe"}, "there is no queue eurpoe, did you mean europe?"),
    ],
)
def test_a_name_that_nobody_has_is_told_by_the_first_call_however_many_follow(
    context: AdminContext, dead: Tasks, tasks: Tasks, now: datetime, *, op: str, which: dict[str, str], warning: str
) -> None:
    bury(dead, [letter(now - n * HOUR) for n in range(9)])
    add(tasks, [document(now, queue="europe")])
    every = {} if op == "dlq.list" else {"all": True, "dry_run": True}
    cursor = do(context, op, limit=1, **every)["next"]

    first = do(context, op, **which)
    second = do(context, op, **which, cursor=cursor)

    assert (first["warnings"], second["warnings"]) == ([warning], [])


# One letter


def test_a_letter_is_shown_with_its_attempts_and_the_other_deaths_of_its_task(
    context: AdminContext, dead: Tasks, now: datetime
) -> None:
    log = [{"attempt": 1, "status": "failed", "started_at": now, "duration_ms": 1, "note": "503"}]
    bury(dead, [letter(now - n * HOUR, _id="x", redrives=2 - n, redriven_at=now if n else None) for n in range(3)])
    dead.update_one(
        {"_id.redrives": 2}, {"$set": {"attempt_log": log, "export_attempts": 3, "export_error": "S3 says no"}}
    )

    answer = do(context, "dlq.show", id="x")

    shown = answer["letter"]
    assert (shown["id"], shown["redrives"], shown["attempt_log"][0]["note"]) == ("x", 2, "503")
    assert (shown["archived_at"], shown["export_attempts"], shown["export_error"]) == (None, 3, "S3 says no")
    others = [(failure["redrives"], failure["redriven_at"] is not None) for failure in answer["other_failures"]]
    assert others == [(1, True), (0, True)]
    first = do(context, "dlq.show", id="x", redrives=0)
    assert (first["letter"]["redrives"], [one["redrives"] for one in first["other_failures"]]) == (0, [2, 1])


def test_the_open_letter_of_a_task_is_shown_before_newer_ones(
    context: AdminContext, dead: Tasks, now: datetime
) -> None:
    bury(dead, [letter(now, _id="x", redrives=0), letter(now, _id="x", redrives=1, redriven_at=now)])
    bury(dead, [letter(now, _id="y", redrives=n, redriven_at=now) for n in range(2)])

    assert do(context, "dlq.show", id="x")["letter"]["redrives"] == 0
    assert do(context, "dlq.show", id="y")["letter"]["redrives"] == 1


@pytest.mark.parametrize(
    ("task_id", "shown"),
    [
        (42, "42"), ("42", "42"), (ObjectId("6b0a99c7baf140d0cc3848ad"), "6b0a99c7baf140d0cc3848ad"), ("-f", "-f"),
    ],
)  # fmt: skip
def test_a_dead_letter_of_an_object_id_a_text_or_a_number_is_shown_redriven_and_purged_as_it_is_shown(
    context: AdminContext, dead: Tasks, tasks: Tasks, now: datetime, *, task_id: Any, shown: str
) -> None:
    bury(dead, [letter(now, _id=task_id), letter(now, _id="other")])

    assert shown in [one["id"] for one in do(context, "dlq.list")["dead_letters"]]
    assert do(context, "dlq.show", id=shown)["letter"]["id"] == shown
    assert do(context, "dlq.redrive", id=shown)["redriven"] == 1
    assert stored(tasks, task_id)["status"] == "pending"
    assert do(context, "dlq.purge", id=shown, redrives=0)["purged"] == 1
    assert [one["id"] for one in do(context, "dlq.list", redriven=None)["dead_letters"]] == ["other"]


@pytest.mark.parametrize(
    ("letter_id", "shown"),
    [("by hand", "by hand"), (42, "42")],
)
def test_a_letter_that_a_person_has_put_there_is_found_by_its_own_id(
    context: AdminContext, dead: Tasks, tasks: Tasks, now: datetime, *, letter_id: Any, shown: str
) -> None:
    dead.insert_one({**letter(now), "_id": letter_id})
    bury(dead, [letter(now, _id="other")])

    assert shown in [one["id"] for one in do(context, "dlq.list")["dead_letters"]]
    assert do(context, "dlq.show", id=shown)["letter"]["id"] == shown
    assert do(context, "dlq.purge", id=shown, dry_run=True)["purged"] == 1
    assert do(context, "dlq.redrive", id=shown)["redriven"] == 1
    assert stored(tasks, letter_id)["redrives"] == 1
    assert do(context, "dlq.show", id=shown)["letter"]["redriven_at"] is not None
    assert do(context, "dlq.purge", id=shown, redrives=0)["purged"] == 1
    assert [raw["_id"]["task"] for raw in dead.find({}, {"_id": 1})] == ["other"]


@pytest.mark.parametrize(
    ("stored_id", "shown"),
    [
        ({"task": {"tenant": 7}, "redrives": 0}, '{"tenant": 7}'),
        ({"task": datetime(2031, 7, 1, tzinfo=UTC), "redrives": 0}, '{"$date": "2031-07-01T00:00:00Z"}'),
        (None, "null"),
        ({"redrives": 0, "task": "x"}, '{"redrives": 0, "task": "x"}'),
    ],
)
def test_a_dead_letter_with_an_id_of_another_type_is_listed_redriven_by_filter_and_not_addressed(
    context: AdminContext, dead: Tasks, now: datetime, stored_id: Any, shown: str
) -> None:
    dead.insert_one({**letter(now), "_id": stored_id})

    assert [found["id"] for found in do(context, "dlq.list")["dead_letters"]] == [shown]
    for op in ("dlq.show", "dlq.redrive", "dlq.purge"):
        with pytest.raises(InvalidRequestError, match="id: is neither an ObjectId, a text nor a number"):
            do(context, op, id=shown)
    assert do(context, "dlq.redrive", all=True)["redriven"] == 1
    assert do(context, "dlq.purge", all=True)["purged"] == 1


def test_an_id_that_stands_for_two_tasks_with_dead_letters_changes_neither(
    context: AdminContext, dead: Tasks, now: datetime
) -> None:
    bury(dead, [letter(now, _id=42), letter(now, _id="42")])

    for op in ("dlq.show", "dlq.redrive", "dlq.purge"):
        with pytest.raises(InvalidRequestError, match="id: stands for two tasks"):
            do(context, op, id="42")
    assert dead.count_documents({"redriven_at": None}) == 2


@pytest.mark.parametrize("op", ["dlq.show", "dlq.redrive", "dlq.purge"])
def test_a_task_without_dead_letters_is_not_found_and_called_alive_where_it_is(
    context: AdminContext, dead: Tasks, tasks: Tasks, now: datetime, op: str
) -> None:
    add(tasks, [document(now, _id="alive")])
    bury(dead, [letter(now, _id="dead")])

    for text, sentence in (
        ("nobody", f"there is no dead letter of task nobody in {context.db.name}"),
        ("alive", f"there is no dead letter of task alive in {context.db.name}; the task is among the living ones"),
    ):
        with pytest.raises(TaskNotFoundError) as refused:
            do(context, op, id=text)
        assert str(refused.value) == sentence
    with pytest.raises(TaskNotFoundError, match="there is no dead letter of task dead with redrives 7 in"):
        do(context, op, id="dead", redrives=7)


@pytest.mark.parametrize("op", ["dlq.redrive", "dlq.purge"])
def test_by_its_id_alone_a_letter_that_went_back_is_left_alone(
    context: AdminContext, dead: Tasks, now: datetime, op: str
) -> None:
    bury(dead, [letter(now, _id="x", redriven_at=now)])

    with pytest.raises(InvalidRequestError, match="id: has been redriven"):
        do(context, op, id="x")
    with pytest.raises(InvalidRequestError, match="redrives: this dead letter has been redriven"):
        do(context, "dlq.redrive", id="x", redrives=0)
    assert dead.count_documents({}) == 1


def test_neither_payload_nor_result_nor_key_is_in_any_answer(
    context: AdminContext, dead: Tasks, now: datetime
) -> None:  # F80, F81
    secret = {"card": SECRET}
    bury(dead, [letter(now, _id=n, payload=secret, result=secret, idempotency_key=f"{SECRET}{n}") for n in (1, 2)])

    answers = [
        do(context, "dlq.groups"),
        do(context, "dlq.list"),
        do(context, "dlq.show", id="1"),
        do(context, "dlq.redrive", id="1"),
        do(context, "dlq.redrive", all=True, dry_run=True),
        do(context, "dlq.purge", all=True),
    ]

    assert SECRET not in str(answers)


# Redrive


def test_a_dry_run_says_what_a_redrive_does(context: AdminContext, dead: Tasks, tasks: Tasks, now: datetime) -> None:
    bury(dead, [letter(now, _id=n) for n in range(3)])
    bury(dead, [letter(now, _id="gone", name="retired"), letter(now, _id="alive")])
    add(tasks, [document(now, _id="alive")])

    looked = do(context, "dlq.redrive", all=True, dry_run=True)
    untouched = tasks.count_documents({})
    done = do(context, "dlq.redrive", all=True)

    assert untouched == 1
    assert (looked.pop("dry_run"), done.pop("dry_run")) == (True, False)
    assert looked == done
    assert (done["examined"], done["redriven"], done["next"]) == (5, 3, None)
    assert done["refused"] == {"unregistered": 1, "conflict": 1}
    assert done["unregistered"] == {"retired": 1}
    examples = {one["id"]: (one["redrives"], one["code"]) for one in done["examples"]}
    assert examples == {"gone": (0, "unregistered"), "alive": (0, "conflict")}
    assert tasks.count_documents({}) == 4


@pytest.mark.parametrize(
    ("which", "expected"),
    [
        ({"all": True}, {"a", "b", "eu", "other"}),
        ({"fingerprint": "b"}, {"b"}),
        ({"queue": "eu"}, {"eu"}),
        ({"name": "other"}, {"other"}),
        ({"since": "2031-07-01T09:00:00Z"}, {"a"}),
        ({"until": "2031-07-01T09:00:00Z", "fingerprint": FINGERPRINT}, {"eu", "other"}),
        ({"id": "a"}, {"a"}),
    ],
)
def test_what_was_chosen_is_redriven_or_purged_and_nothing_else(
    context: AdminContext, dead: Tasks, tasks: Tasks, now: datetime, *, which: dict[str, Any], expected: set[str]
) -> None:
    context.db["task_types"].insert_one({"_id": "other"})
    bury(dead, [letter(now, _id="a"), letter(now - HOUR, _id="b", fingerprint="b")])
    bury(dead, [letter(now - HOUR, _id="eu", queue="eu"), letter(now - HOUR, _id="other", name="other")])

    assert do(context, "dlq.purge", **which, dry_run=True)["purged"] == len(expected)
    assert do(context, "dlq.redrive", **which)["redriven"] == len(expected)
    assert {raw["_id"] for raw in tasks.find({}, {"_id": 1})} == expected
    purge = which | ({"redrives": 0} if "id" in which else {})
    assert do(context, "dlq.purge", **purge)["purged"] == len(expected)
    assert dead.count_documents({}) == 4 - len(expected)


def test_pages_lead_through_all_letters(context: AdminContext, dead: Tasks, tasks: Tasks, now: datetime) -> None:
    bury(dead, [letter(now - n * HOUR) for n in range(7)])

    assert sum(do_all(context, "dlq.redrive", "redriven", all=True, limit=3, dry_run=True)) == 7
    assert tasks.count_documents({}) == 0
    pages = do_all(context, "dlq.redrive", "redriven", all=True, limit=3)
    assert (sum(pages), max(pages), tasks.count_documents({})) == (7, 3, 7)
    assert do(context, "dlq.redrive", all=True)["redriven"] == 0
    purged = do_all(context, "dlq.purge", "purged", all=True, limit=3)
    assert (sum(purged), max(purged), dead.count_documents({})) == (7, 3, 0)


def test_with_a_rate_tasks_become_due_one_after_the_other_over_all_pages(
    context: AdminContext, dead: Tasks, tasks: Tasks, now: datetime
) -> None:
    bury(dead, [letter(now - HOUR) for _ in range(6)])

    do_all(context, "dlq.redrive", "redriven", all=True, limit=2, per_sec=2)

    due = sorted((raw["due_at"] for raw in tasks.find({}, {"due_at": 1})), key=str)
    assert [(at.astimezone(UTC) - now).total_seconds() for at in due] == [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]


# Purge


def test_a_purge_says_how_many_were_not_exported_and_keeps_what_is_on_its_way(
    context: AdminContext, dead: Tasks, now: datetime
) -> None:
    bury(dead, [letter(now, archived_at=now), letter(now), letter(now, _id="on its way", redrive_started_at=now)])

    looked, done = do(context, "dlq.purge", all=True, dry_run=True), do(context, "dlq.purge", all=True)

    for answer in (looked, done):
        counts = [answer[name] for name in ("examined", "purged", "unexported", "in_progress")]
        assert counts == [3, 2, 1, 1]
    assert [raw["_id"]["task"] for raw in dead.find({})] == ["on its way"]


# Export


def _bucket(put: dict[str, bytes]) -> Callable[[str, bytes], None]:
    return lambda key, body: put.update({key: body})


def test_letters_are_exported_by_hand(db: Database[Any], dead: Tasks, clock: ManualClock, now: datetime) -> None:
    objects: dict[str, bytes] = {}
    context = AdminContext(db=db, clock=clock, retry=DEFAULT, put=_bucket(objects))
    bury(dead, [letter(now) for _ in range(3)])

    first, second = do(context, "dlq.export", limit=2), do(context, "dlq.export")

    about = {"database": db.name, "now": "2031-07-01T09:00:00.000Z"}
    assert first == {"exported": 2, "refused": 0, "failed": 0, "left": 1, "last_error": None} | about
    assert second == {"exported": 1, "refused": 0, "failed": 0, "left": 0, "last_error": None} | about
    assert len(objects) == 3


def test_a_bucket_that_is_away_is_told(db: Database[Any], dead: Tasks, clock: ManualClock, now: datetime) -> None:
    def away(_key: str, _body: bytes) -> None:
        raise ExportError("SlowDown", blame="bucket")

    bury(dead, [letter(now)])

    answer = do(AdminContext(db=db, clock=clock, retry=DEFAULT, put=away), "dlq.export")

    assert [answer[name] for name in ("exported", "failed", "left", "last_error")] == [0, 1, 1, "SlowDown"]


def test_without_a_bucket_an_export_is_refused(context: AdminContext) -> None:
    with pytest.raises(InvalidRequestError, match="op: there is no bucket to export to: ARCHIVE_BUCKET names one"):
        do(context, "dlq.export")
