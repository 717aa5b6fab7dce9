"""Why a task is not running: facts in, reasons out, what decides first."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from bson import ObjectId

from tests.fixtures import T0
from tests.unit.explained import CAPPED, FAILURE, HOUR, MINUTE, SECOND, A, B, W, codes, facts, only
from tests.unit.make import a_claimed_task, a_task
from tidemill.control.fleet import FleetStatus, Permit
from tidemill.explain.facts import Facts
from tidemill.explain.reasons import NEXT_REASON, Reason, find_reasons
from tidemill.model import Lease, Malformed, QueueOptions
from tidemill.store.counts import COUNT_LIMIT

# Pending


def test_where_nothing_stands_in_the_way_the_next_claim_takes_it() -> None:
    assert find_reasons(facts()) == (NEXT_REASON,)


@pytest.mark.parametrize(
    ("known", "code", "message"),
    [
        (
            facts({"due_at": T0 + timedelta(seconds=303)}),
            "not_due",
            (
                "It is not due until 2031-07-01 09:05:03 UTC (in 5m 3s); `tidemill ops task retry t-1` makes it "
                "due at once."
            ),
        ),
        (
            facts({"due_at": T0 + HOUR, "lane": "retry", "attempts": 2, "error": FAILURE}),
            "not_due",
            (
                "Its last attempt, Retry #1, failed (TimeoutError); Retry #2 is not due until 2031-07-01 10:00:00 UTC "
                "(in 1h); `tidemill ops task retry t-1` makes it due at once."
            ),
        ),
        (
            facts({"due_at": T0 + HOUR, "expires_at": T0 + MINUTE}),
            "not_due",
            (
                "It is not due until 2031-07-01 10:00:00 UTC (in 1h); `tidemill ops task retry t-1` makes it due at "
                "once. But it has to start before 2031-07-01 09:01:00 UTC (in 1m), or it fails."
            ),
        ),
        (
            facts({"due_at": T0 + MINUTE, "expires_at": T0 + MINUTE}),
            "not_due",
            (
                "It is not due until 2031-07-01 09:01:00 UTC (in 1m); `tidemill ops task retry t-1` makes it due at "
                "once. But it has to start before 2031-07-01 09:01:00 UTC (in 1m), or it fails."
            ),
        ),
        (
            facts({"expires_at": T0}),
            "expired",
            "It had to start before 2031-07-01 09:00:00 UTC (0s ago): the next claim or reclaim makes it fail.",
        ),
        (
            facts({"expires_at": T0 - SECOND}),
            "expired",
            "It had to start before 2031-07-01 08:59:59 UTC (1s ago): the next claim or reclaim makes it fail.",
        ),
        (
            facts({"cancel_requested_at": T0 - SECOND}),
            "cancel_asked",
            "It was cancelled at 2031-07-01 08:59:59 UTC (1s ago): the next claim ends it.",
        ),
        (
            facts({"queue": "eu"}, options=QueueOptions(paused=True)),
            "paused",
            "Queue eu is paused: none of its tasks starts until `tidemill ops queue resume eu`.",
        ),
        (
            facts({"name": "gone", "created_at": T0 - MINUTE}, is_known=False),
            "unknown_task",
            (
                "No executor has registered a function gone: it waits, and the first claim after "
                "2031-07-01 09:09:00 UTC (in 9m) makes it fail, and it becomes a dead letter. Deploy one that has it."
            ),
        ),
        (
            facts({"name": "gone", "created_at": T0 - HOUR}, is_known=False),
            "unknown_task",
            (
                "No executor has registered a function gone: the next claim makes it fail, and it becomes a "
                "dead letter. Deploy one that has it."
            ),
        ),
        (
            facts({"lane": "retry"}, options=CAPPED, standing=FleetStatus(slot_permits=(A,), retries=(A, B))),
            "retry_cap",
            (
                "Queue default has as many retries in flight as it allows, 3: 1 by A until 2031-07-01 09:01:00 "
                "UTC (in 1m), 2 by B until 2031-07-01 09:02:00 UTC (in 2m). It has to wait for one of them to "
                "end; `tidemill ops queue set default --max-in-flight-retries N` sets how many."
            ),
        ),
        (
            facts({"lane": "retry"}, options=QueueOptions(max_in_flight_retries=0)),
            "retries_paused",
            (
                "Retries of queue default are paused, because it allows 0 of them in flight: none starts until "
                "`tidemill ops queue set default --max-in-flight-retries N`, with N above 0 or none."
            ),
        ),
        (
            facts(standing=FleetStatus()),
            "no_tick",
            (
                "No executor is running, and none has ever been started. A tick starts one every minute "
                "unless ExecuteSchedule says otherwise: see whether the schedule is enabled and what the "
                "function execute logs, or start `tidemill work`."
            ),
        ),
        (
            facts(standing=FleetStatus(last_acquired_at=T0 - 2 * HOUR)),
            "no_tick",
            (
                "No executor is running, and none has started since 2031-07-01 07:00:00 UTC (2h ago). A tick "
                "starts one every minute unless ExecuteSchedule says otherwise: see whether the schedule is "
                "enabled and what the function execute logs, or start `tidemill work`."
            ),
        ),
        (
            facts(standing=FleetStatus(last_acquired_at=T0 - 30 * SECOND)),
            "no_executor",
            (
                "No executor is running now: the last one started at 2031-07-01 08:59:30 UTC (30s ago), and the "
                "next tick starts one."
            ),
        ),
        (
            facts(standing=FleetStatus(slot_permits=(A,), slot_count=1, last_acquired_at=T0)),
            "executor_slots",
            (
                "All executor slots are taken (1): 1 by A until 2031-07-01 09:01:00 UTC (in 1m). The task "
                "waits until one of these executors claims it; MAX_EXECUTORS sets the number of slots."
            ),
        ),
        (
            facts({"due_at": T0 - MINUTE, "priority": 3}, ahead={"fresh": 7}),
            "behind",
            (
                "It is behind 7 other due tasks of queue default and lane fresh: a higher priority than its 3 "
                "goes first, then who was due before 2031-07-01 08:59:00 UTC (1m ago). Retries hold 0.2 of the "
                "slots while both lanes have due tasks."
            ),
        ),
    ],
)
def test_what_stands_in_the_way_is_said_in_a_sentence(known: Facts, code: str, message: str) -> None:
    assert find_reasons(known) == (Reason(code=code, message=message),)


@pytest.mark.parametrize(
    ("ahead", "words"),
    [
        (1, "1 other due task "),
        (COUNT_LIMIT, f"{COUNT_LIMIT} other due tasks"),
        (COUNT_LIMIT + 1, f"{COUNT_LIMIT}+ other due tasks"),
    ],
)
def test_counts_end_in_a_plus_where_counting_stopped(ahead: int, words: str) -> None:
    assert words in only(facts(ahead={"fresh": ahead})).message


@pytest.mark.parametrize(
    "known",
    [
        facts({"expires_at": T0 + SECOND}),
        facts({"expires_at": T0 - SECOND, "attempts": 1}),
        facts({"expires_at": T0 - SECOND, "crashes": 1}),
        facts({"lane": "fresh"}, options=CAPPED, standing=FleetStatus(slot_permits=(A,), retries=(A, B))),
        facts({"lane": "retry"}, options=CAPPED, standing=FleetStatus(slot_permits=(A,), retries=(B,))),
        facts({"lane": "retry"}, standing=FleetStatus(slot_permits=(A,), retries=(A, B))),
        facts(standing=FleetStatus(workers=(W,))),
        facts(standing=FleetStatus(workers=(W,), slot_permits=(A,), slot_count=1)),
        facts(standing=FleetStatus(slot_permits=(A,), slot_count=2)),
        facts(standing=FleetStatus(slot_permits=(A,), last_acquired_at=T0 - HOUR)),
        facts(ahead={"retry": 5}),
        facts({"lane": "retry"}, ahead={"fresh": 5}),
    ],
)
def test_what_does_not_hold_is_not_said(known: Facts) -> None:
    assert codes(known) == ["next"]


def test_three_minutes_without_a_tick_are_long() -> None:
    last_acquired_at = T0 - 3 * MINUTE

    assert codes(facts(standing=FleetStatus(last_acquired_at=last_acquired_at))) == ["no_executor"]
    assert codes(facts(standing=FleetStatus(last_acquired_at=last_acquired_at - SECOND))) == ["no_tick"]


def test_before_any_executor_has_come_no_function_is_unknown() -> None:
    assert codes(facts(standing=FleetStatus(), is_known=False, is_any_known=False)) == ["no_tick"]
    assert codes(facts(standing=FleetStatus(workers=(W,)), is_known=False, is_any_known=False)) == ["unknown_task"]


def test_all_that_holds_is_said_and_what_decides_is_first() -> None:
    everything = facts(
        {"lane": "retry", "expires_at": T0 - HOUR, "cancel_requested_at": T0},
        options=QueueOptions(paused=True, max_in_flight_retries=1),
        standing=FleetStatus(last_acquired_at=T0 - HOUR, slot_count=0, retries=(B,)),
        is_known=False,
        ahead={"retry": 3},
    )

    assert codes(everything) == [
        "expired", "cancel_asked", "paused", "unknown_task", "retry_cap", "no_tick", "executor_slots", "behind"
    ]  # fmt: skip


def test_before_it_is_due_nobody_is_in_its_way() -> None:
    crowded = FleetStatus(slot_permits=(A,), slot_count=1, last_acquired_at=T0)

    assert codes(facts({"due_at": T0 + SECOND}, standing=crowded, ahead={"fresh": 9})) == ["not_due"]
    assert codes(facts({"due_at": T0 + SECOND}, standing=FleetStatus(), options=QueueOptions(paused=True))) == [
        "not_due", "paused", "no_tick"
    ]  # fmt: skip


def test_only_so_many_holders_are_named() -> None:
    held = FleetStatus(
        slot_permits=tuple(Permit(owner=f"E{n}", n=1, until=T0 + MINUTE) for n in range(8)), slot_count=8
    )

    assert ", 1 by E4 until 2031-07-01 09:01:00 UTC (in 1m), 3 more." in only(facts(standing=held)).message


def test_words_that_anybody_wrote_are_cut() -> None:
    known = facts({"name": "n" * 10_000, "queue": "q" * 10_000}, is_known=False, options=QueueOptions(paused=True))

    assert all(len(one.message) < 500 for one in find_reasons(known))


# Processing and ended


@pytest.mark.parametrize(
    ("fields", "code", "message"),
    [
        (
            {},
            "running",
            (
                "It runs (Initial): A claimed it at 2031-07-01 08:59:50 UTC (10s ago), under a lease until 2031-07-01 "
                "09:01:00 UTC (in 1m)."
            ),
        ),
        (
            {"lease": {"token": "t", "owner": "A", "expires_at": T0}},
            "lease_over",
            (
                "A claimed it at 2031-07-01 08:59:50 UTC (10s ago) and its lease ended at 2031-07-01 09:00:00 "
                "UTC (0s ago): reclaim, which runs every minute, takes it back."
            ),
        ),
        (
            {"lease": {"owner": 7}},
            "lease_over",
            (
                "It was claimed at 2031-07-01 08:59:50 UTC (10s ago) and its lease is malformed: reclaim, "
                "which runs every minute, takes it back."
            ),
        ),
    ],
)
def test_one_that_is_held_says_by_whom(fields: dict[str, Any], code: str, message: str) -> None:
    task = a_claimed_task(updated_at=T0 - 10 * SECOND, **fields)

    assert find_reasons(Facts(task=task, now=T0)) == (Reason(code=code, message=message),)


def test_one_that_was_asked_to_stop_says_so() -> None:
    running, asked = find_reasons(Facts(task=a_claimed_task(_id=7, cancel_requested_at=T0 - SECOND), now=T0))

    assert (running.code, asked.code) == ("running", "cancel_asked")
    assert asked.message == (
        "It was asked to stop at 2031-07-01 08:59:59 UTC (1s ago): it ends as cancelled unless it succeeds; "
        "`tidemill ops task cancel --force 7` ends it now."
    )


@pytest.mark.parametrize(
    ("fields", "is_dead_letter", "message"),
    [
        ({"status": "done"}, False, "It has ended at 2031-07-01 08:00:00 UTC (1h ago): done."),
        ({"status": "cancelled"}, False, "It has ended at 2031-07-01 08:00:00 UTC (1h ago): cancelled."),
        ({"status": "cancelled", "finished_at": None}, False, "It has ended: cancelled."),
        (
            {"status": "failed", "reason": "exhausted", "error": FAILURE},
            False,
            (
                "It failed at 2031-07-01 08:00:00 UTC (1h ago), exhausted (TimeoutError), and becomes a dead "
                "letter with the next archive, which runs every 5 minutes."
            ),
        ),
        (
            {"status": "failed", "reason": "exhausted", "archive_error": "MongoDB refuses it (code 121)"},
            False,
            (
                "It failed at 2031-07-01 08:00:00 UTC (1h ago), exhausted, and cannot be moved to the dead letters: "
                "MongoDB refuses it (code 121)."
            ),
        ),
        (
            {"status": "failed", "reason": "exhausted", "error": FAILURE},
            True,
            (
                "It failed at 2031-07-01 08:00:00 UTC (1h ago), exhausted (TimeoutError), and is a dead "
                "letter: `tidemill dlq redrive 7` runs it again."
            ),
        ),
        (
            {"status": "failed"},
            True,
            (
                "It failed at 2031-07-01 08:00:00 UTC (1h ago), for no reason that is known, and is a dead "
                "letter: `tidemill dlq redrive 7` runs it again."
            ),
        ),
    ],
)
def test_what_has_ended_says_how(fields: dict[str, Any], is_dead_letter: bool, message: str) -> None:  # noqa: FBT001
    known: dict[str, Any] = {"_id": 7, "finished_at": T0 - HOUR}
    task = a_task(**known | fields)

    found = only(Facts(task=task, now=T0, is_dead_letter=is_dead_letter))

    assert found == Reason(code="ended", message=message)


# Malformed


@pytest.mark.parametrize(
    ("status", "fields", "message"),
    [
        (
            "pending",
            {},
            (
                "It is pending: reclaim, which runs every minute, completes it where its meaning is plain, and "
                "otherwise makes it fail."
            ),
        ),
        ("pending", {"expires_at": T0 + MINUTE}, "It is pending: reclaim, which runs every minute, completes it "),
        ("processing", {"expires_at": T0 + MINUTE}, "A holds it until 2031-07-01 09:01:00 UTC (in 1m); then it fails."),
        (
            "processing",
            {"expires_at": T0},
            "A held it until 2031-07-01 09:00:00 UTC (0s ago): reclaim, which runs every minute, makes it fail.",
        ),
        (
            "processing",
            {},
            "Its lease is missing or malformed: reclaim, which runs every minute, adopts it or makes it fail.",
        ),
        (
            "failed",
            {},
            "It has failed, and becomes a dead letter with the next archive, which runs every 5 minutes.",
        ),
        ("done", {}, "It has ended: done."),
        ("cancelled", {"expires_at": T0}, "It has ended: cancelled."),
        (
            "Ready",
            {},
            "It stays as it is: its status has to be one of pending, processing, done, failed, cancelled.",
        ),
        (None, {"expires_at": T0}, "It stays as it is: "),
    ],
)
def test_a_malformed_document_says_what_is_wrong_with_it_and_what_becomes_of_it(
    status: str | None, fields: dict[str, Any], message: str
) -> None:
    lease = Lease(token="t", owner="A", **fields) if fields else None
    malformed = Malformed(id=1, problem="due_at is missing", lease=lease, status=status)

    found = only(Facts(task=malformed, now=T0))

    assert found.code == "malformed"
    assert found.message.startswith(f"No executor can run it: due_at is missing. {message}")
    dead = only(Facts(task=malformed, now=T0, is_dead_letter=True))
    assert dead.message == (
        "No executor can run it: due_at is missing. It is a dead letter: `tidemill dlq show 1` has more of it."
    )


# Commands


@pytest.mark.parametrize(
    ("task_id", "shown"),
    [
        (ObjectId("0" * 24), "0" * 24), ("order:7", "order:7"), ("-x", "ID"), ("a b", "ID"), ("a`b", "ID"), ("é", "ID"),
        ("", "ID"), ("x" * 200, "x" * 200), ("x" * 201, "ID"), ("a\n", "ID"), ("$(rm)", "ID"), (7, "7"),
        ({"a": 1}, "ID"),
    ],
)  # fmt: skip
def test_a_command_is_one_that_a_shell_can_be_given(task_id: object, shown: str) -> None:
    message = only(facts({"_id": task_id, "due_at": T0 + HOUR})).message

    assert f"; `tidemill ops task retry {shown}` makes" in message


def test_a_queue_that_a_shell_cannot_be_given_is_not_in_the_command() -> None:
    message = only(facts({"queue": "a; b"}, options=QueueOptions(paused=True))).message

    assert message == "Queue a; b is paused: none of its tasks starts until `tidemill ops queue resume QUEUE`."
