"""The verdict on a dead letter, by its own state and by what is alive."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from bson import DatetimeMS, Regex

from tests.fixtures import T0
from tests.unit.make import a_task, raw
from tidemill.dead_letters.redrive_checks import (
    AlreadyRedriven,
    Candidate,
    ExistingTask,
    LiveState,
    RateSchedule,
    Redrivable,
    Refused,
    check,
    check_letters,
    read_candidate,
    read_life,
)
from tidemill.documents import decode, id_key

HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)
LIFE = read_life(raw({"created_at": T0}))
OTHER_LIFE = read_life(raw({"created_at": T0 + HOUR}))
STARTED: dict[str, Any] = {"redrive_started_at": T0 - HOUR, "redrive_token": "t"}
BODY: dict[str, Any] = {
    "name": "noop", "queue": "default", "payload": {"n": 1}, "created_at": T0, "expires_at": None,
}  # fmt: skip


def candidate(task: object = "a", *, redrives: int = 0, **fields: Any) -> Candidate:
    stored = {"_id": {"task": task, "redrives": redrives}, "created_at": T0, "dead_lettered_at": T0, "size": 100}
    return read_candidate(raw(stored | fields))


def existing(*, redrives: int = 1, life: bytes = LIFE) -> dict[bytes, ExistingTask]:
    return {id_key("a"): ExistingTask(id="a", life=life, redrives=redrives, status="done")}


def verdict(letter: Candidate, live: LiveState, *, due_at: datetime | None = None, **fields: Any) -> Any:
    body = raw({"_id": letter.raw_id} | BODY | fields)
    return check(letter, body, live, due_at=due_at, drops_expiry=False, now=T0)


NOBODY = LiveState(registered=frozenset({"noop"}))
ALIVE = LiveState(tasks=existing())
FAILED_AGAIN = LiveState(later_failures=frozenset({(id_key("a"), LIFE)}))


@pytest.mark.parametrize(
    ("marks", "live", "expected"),
    [
        ({}, NOBODY, "redrivable"),
        (STARTED, NOBODY, "redrivable"),
        ({}, ALIVE, "conflict"),
        (STARTED, ALIVE, "already redriven"),
        (STARTED, LiveState(tasks=existing(redrives=0)), "conflict"),
        (STARTED, LiveState(tasks=existing(life=OTHER_LIFE)), "conflict"),
        ({}, FAILED_AGAIN, "redrivable"),
        (STARTED, FAILED_AGAIN, "already redriven"),
        (STARTED, LiveState(later_failures=frozenset({(id_key("a"), OTHER_LIFE)})), "redrivable"),
        (STARTED, LiveState(later_failures=frozenset({(id_key("b"), LIFE)})), "redrivable"),
        ({}, LiveState(registered=frozenset()), "unregistered"),
        (STARTED, LiveState(registered=frozenset(), tasks=existing()), "already redriven"),
    ],
)
def test_the_verdict_follows_from_the_marks_and_the_living_tasks(
    marks: dict[str, Any], live: LiveState, expected: str
) -> None:
    assert _word(verdict(candidate(**marks), live)) == expected


@pytest.mark.parametrize(
    ("fields", "live", "expected"),
    [
        ({"idempotency_key": "k"}, NOBODY, "redrivable"),
        ({"idempotency_key": "k"}, LiveState(key_owners={"k": "b"}), "conflict"),
        ({"idempotency_key": "k"}, LiveState(key_owners={"other": "b"}), "redrivable"),
        ({"idempotency_key": ""}, LiveState(key_owners={"": "b"}), "redrivable"),
        ({"expires_at": T0}, NOBODY, "expired"),
        ({"expires_at": T0 + HOUR}, NOBODY, "redrivable"),
        ({"payload": 7}, NOBODY, "malformed"),
        ({"name": "gone"}, NOBODY, "unregistered"),
        ({"name": "gone", "expires_at": T0}, NOBODY, "unregistered"),
        ({"expires_at": T0, "idempotency_key": "k"}, LiveState(key_owners={"k": "b"}), "expired"),
    ],
)
def test_the_verdict_follows_from_the_task_and_the_keys(fields: dict[str, Any], live: LiveState, expected: str) -> None:
    assert _word(verdict(candidate(), live, **fields)) == expected


@pytest.mark.parametrize(("delay", "expected"), [(HOUR, "expired"), (HOUR / 2, "redrivable")])
def test_a_task_must_be_due_before_it_expires(delay: timedelta, expected: str) -> None:
    assert _word(verdict(candidate(), NOBODY, due_at=T0 + delay, expires_at=T0 + HOUR)) == expected


@pytest.mark.parametrize(("task", "redrives"), [(Regex("a"), 0), ("a", -1), ("a", 2**31 - 1)])
def test_an_id_that_no_task_can_have_is_malformed(task: object, redrives: int) -> None:
    assert _word(verdict(candidate(task, redrives=redrives), NOBODY)) == "malformed"


def test_the_task_starts_again_and_keeps_its_request() -> None:
    found = verdict(candidate(redrives=2), NOBODY, due_at=T0 + HOUR)

    anew = {"status": "pending", "attempts": 0, "redrives": 3, "due_at": T0 + HOUR, "next_retry_at": T0 + HOUR}
    assert decode(found.document).items() >= ({"_id": "a", **BODY} | anew).items()


def test_a_task_that_is_to_be_inserted_is_in_the_way_of_later_ones() -> None:
    [first, same_id, same_key] = [candidate(), candidate(redrives=1), candidate("b")]
    letters = [first, same_id, same_key]
    bodies = {letter.key: raw({"_id": letter.raw_id, **BODY, "idempotency_key": "k"}) for letter in letters}

    checked = check_letters(letters, bodies, NOBODY, schedule=None, drops_expiry=False, now=T0)

    assert [ready.letter for ready in checked.redrivable] == [first]
    assert [(refusal.letter, refusal.code) for refusal in checked.refused] == [
        (same_id, "conflict"),
        (same_key, "conflict"),
    ]
    assert NOBODY.tasks == {}, "a live state never changes"
    assert checked.live.has_task(checked.redrivable[0])


def test_only_what_is_redriven_takes_a_place_in_the_schedule() -> None:
    letters = [candidate("a"), candidate("gone"), candidate("c")]
    bodies = {
        letter.key: raw({"_id": letter.raw_id, **BODY} | ({"name": "x"} if letter.task_id == "gone" else {}))
        for letter in letters
    }
    schedule = RateSchedule(per_sec=1, start=T0)

    checked = check_letters(letters, bodies, NOBODY, schedule=schedule, drops_expiry=False, now=T0)

    assert [ready.task.due_at - T0 for ready in checked.redrivable] == [timedelta(0), timedelta(seconds=1)]
    assert checked.schedule == RateSchedule(per_sec=1, start=T0, placed=2)


def test_a_full_schedule_refuses_only_what_could_be_redriven() -> None:
    letters = [candidate("a"), candidate("taken")]
    live = LiveState(tasks={id_key("taken"): ExistingTask(id="taken", life=LIFE, redrives=0, status="pending")})
    bodies = {letter.key: raw({"_id": letter.raw_id, **BODY}) for letter in letters}
    full = RateSchedule(per_sec=1e-12, start=T0, placed=9)

    checked = check_letters(letters, bodies, live, schedule=full, drops_expiry=False, now=T0)

    assert [refusal.code for refusal in checked.refused] == ["too_far_ahead", "conflict"]


@pytest.mark.parametrize(("chosen", "due_at"), [(T0 + HOUR, T0 + HOUR), (T0 - HOUR, T0), (None, T0), ("x", T0)])
def test_without_a_schedule_a_task_is_due_when_its_interrupted_redrive_chose(chosen: object, due_at: datetime) -> None:
    letter = candidate(**STARTED, redrive_due_at=chosen)
    bodies = {letter.key: raw({"_id": letter.raw_id, **BODY})}

    [ready] = check_letters([letter], bodies, NOBODY, schedule=None, drops_expiry=False, now=T0).redrivable

    assert ready.task.due_at == due_at


@pytest.mark.parametrize(
    ("started_at", "is_in_progress"),
    [
        (None, False),
        (T0 - 60 * SECOND, False),
        (T0 - 59 * SECOND, True),
        (T0, True),
        (T0 + 59 * SECOND, True),
        (T0 + 60 * SECOND, False),
        (T0 + timedelta(days=400), False),
        (DatetimeMS(10**15), False),
        ("by hand", False),
    ],
    ids=str,
)
def test_a_redrive_is_in_progress_for_a_minute_whatever_the_clock_said(
    started_at: object, *, is_in_progress: bool
) -> None:
    assert candidate(redrive_started_at=started_at).is_in_progress(now=T0) == is_in_progress


def _word(found: Redrivable | AlreadyRedriven | Refused) -> str:
    match found:
        case Redrivable(task=task):
            assert task == a_task(**decode(found.document))
            return "redrivable"
        case AlreadyRedriven():
            return "already redriven"
        case Refused(code=code):
            return code
