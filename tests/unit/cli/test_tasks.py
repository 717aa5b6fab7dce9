"""`tidemill ops task show`: how one task stands, on a database."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from pymongo.database import Database

from tests.builders import MINUTE, add, claim_one, document
from tests.conftest import T0
from tests.unit.cli.conftest import CommandLine, Said
from tidemill.admin.responses import AttemptView
from tidemill.cli.task_view import count_missing_attempts
from tidemill.client import Queue
from tidemill.store.connection import Tasks

SECRET = "s3cret-of-a-customer"


def _line(attempt: int, **fields: Any) -> dict[str, Any]:
    started = T0 + attempt * MINUTE
    return {
        "attempt": attempt, "status": "failed", "started_at": started, "duration_ms": 1500, "note": "503",
    } | fields  # fmt: skip


def _facts(said: Said) -> dict[str, str]:
    """The header: what stands above the empty line."""
    header = said.lines[: said.lines.index("")]
    pairs = (line.partition("  ") for line in header)
    return {label: value.strip() for label, _, value in pairs}


def _bury(db: Database[Any], task: dict[str, Any], *, redrives: int = 0) -> None:
    letter = task | {"_id": {"task": task["_id"], "redrives": redrives}, "dead_lettered_at": T0, "reason": "exhausted"}
    db["tasks_dlq"].insert_one(letter)


def test_a_task_that_waits_for_its_retry_says_when_and_why(
    operator: CommandLine, db: Database[Any], tasks: Tasks, now: datetime
) -> None:
    retry_at = now + 5 * MINUTE
    error = {"message": "the receiver answered 503", "code": "http_503", "at": now}
    [task_id] = add(
        tasks,
        [
            document(
                now,
                lane="retry",
                attempts=2,
                max_retries=5,
                priority=3,
                due_at=retry_at,
                next_retry_at=retry_at,
                error=error,
                attempt_log=[_line(0), _line(1, status="timed_out", note="longer than 30 s")],
            )
        ],
    )

    said = operator.done("ops", "task", "show", str(task_id))

    facts = _facts(said)
    assert facts.pop("next retry").startswith("2031-07-01 09:05:00 UTC (in ")
    assert facts == {
        "task": str(task_id),
        "kept": f"among the tasks of {db.name}",
        "name": "noop",
        "queue": "default",
        "status": "pending",
        "priority": "3",
        "attempts": "2 of 6",
        "last error": "http_503: the receiver answered 503 (2031-07-01 09:00:00 UTC)",
        "result": "none",
    }
    assert said.lines[-4:] == [
        "attempt  status     started (UTC)            duration  note",
        "-------- ---------- ------------------------ --------- ----------------",
        "      0  failed     2031-07-01 09:00:00.000      1.5s  503",
        "      1  timed_out  2031-07-01 09:01:00.000      1.5s  longer than 30 s",
    ]


def test_a_fresh_task_is_due_and_has_no_log(operator: CommandLine, tasks: Tasks, now: datetime) -> None:
    [task_id] = add(tasks, [document(now, max_retries=0, next_retry_at=now, expires_at=now + MINUTE)])

    said = operator.done("ops", "task", "show", str(task_id))

    assert _facts(said)["due"].startswith("2031-07-01 09:00:00 UTC (in ")
    assert _facts(said)["expires"].startswith("2031-07-01 09:01:00 UTC (in ")
    assert _facts(said)["attempts"] == "0 of 1"
    assert said.lines[-1] == "no attempt is logged"


def test_a_running_task_says_who_holds_it_since_and_until_when(
    operator: CommandLine, tasks: Tasks, now: datetime
) -> None:
    add(tasks, [document(now)])
    task = claim_one(tasks, now, owner="request-7")

    said = operator.done("ops", "task", "show", str(task.id))

    assert task.lease is not None
    assert "held by   request-7 since 2031-07-01 09:00:00 UTC" in said.out
    assert " until 2031-07-01 09:01:00 UTC" in " ".join(said.out.split())
    assert task.lease.token not in said.out


def test_a_request_to_stop_leaves_the_time_of_the_claim(
    operator: CommandLine, db: Database[Any], tasks: Tasks, now: datetime
) -> None:
    add(tasks, [document(now)])
    task = claim_one(tasks, now, owner="request-7")
    Queue(db).cancel(task.id)

    facts = _facts(operator.done("ops", "task", "show", str(task.id)))

    assert facts["held by"].startswith("request-7 since 2031-07-01 09:00:00 UTC")
    assert facts["cancel asked"].endswith("ago)")


@pytest.mark.parametrize("lease", [None, "mine", {"token": 3}])
def test_a_lease_that_proves_nothing_is_nobodys(
    operator: CommandLine, tasks: Tasks, now: datetime, lease: object
) -> None:
    [task_id] = add(tasks, [document(now, status="processing", lease=lease)])

    facts = _facts(operator.done("ops", "task", "show", str(task_id)))

    assert facts["held by"] == "unknown: the lease is malformed"


def test_neither_payload_nor_result_is_shown(operator: CommandLine, tasks: Tasks, now: datetime) -> None:
    fields = {"status": "done", "finished_at": now, "payload": {"card": SECRET}, "result": {"card": SECRET}}
    [task_id] = add(tasks, [document(now, **fields)])

    shown = operator.done("ops", "task", "show", str(task_id))
    as_json = operator.done("ops", "task", "show", str(task_id), "--json")

    assert _facts(shown)["result"] == "stored"
    assert as_json.json["task"]["has_result"] is True
    assert SECRET not in shown.out + as_json.out


def test_a_dead_letter_is_found_and_called_one(operator: CommandLine, db: Database[Any], now: datetime) -> None:
    task = document(now, status="failed", attempts=3, max_retries=2, finished_at=now, attempt_log=[_line(0)])
    _bury(db, task)

    facts = _facts(operator.done("ops", "task", "show", str(task["_id"])))

    assert facts["kept"] == f"among the dead letters of {db.name}: see `tidemill dlq show`"
    assert (facts["status"], facts["attempts"]) == ("failed", "3 of 3")
    assert facts["reason"] == "exhausted"
    assert facts["finished"].startswith("2031-07-01 09:00:00 UTC")
    assert operator.done("ops", "task", "show", str(task["_id"]), "--json").json["task"]["dead_letter"] is True


def test_what_cannot_be_archived_says_why(operator: CommandLine, tasks: Tasks, now: datetime) -> None:
    [task_id] = add(tasks, [document(now, status="failed", archive_error="MongoDB refuses it (code 121)")])

    assert _facts(operator.done("ops", "task", "show", str(task_id)))["not archived"] == "MongoDB refuses it (code 121)"


@pytest.mark.parametrize("alive", [True, False])
def test_a_malformed_document_says_what_is_wrong_with_it(
    operator: CommandLine, db: Database[Any], tasks: Tasks, now: datetime, *, alive: bool
) -> None:
    task = document(now, payload={"card": SECRET}, name=7, attempt_log=[_line(0)])
    if alive:
        add(tasks, [task])
    else:
        _bury(db, task)

    said = operator.done("ops", "task", "show", str(task["_id"]))
    as_json = operator.done("ops", "task", "show", str(task["_id"]), "--json")

    assert _facts(said)["malformed"] == "name is not what it has to be: no executor can run it"
    assert said.lines[-1].split() == ["0", "failed", "2031-07-01", "09:00:00.000", "1.5s", "503"]
    assert as_json.json["task"]["malformed"] == "name is not what it has to be"
    assert as_json.json["task"]["dead_letter"] is not alive
    assert SECRET not in said.out + as_json.out


def test_an_id_that_is_no_object_id_is_taken_as_it_is(operator: CommandLine, tasks: Tasks, now: datetime) -> None:
    add(tasks, [document(now, _id="order-7")])

    assert _facts(operator.done("ops", "task", "show", "order-7"))["task"] == "order-7"


@pytest.mark.parametrize("task_id", ["0" * 24, "order-8", "no\nway"])
def test_a_task_that_is_not_there_is_told_in_one_line(operator: CommandLine, db: Database[Any], task_id: str) -> None:
    shown = task_id.replace("\n", " ")
    assert operator.refused("ops", "task", "show", task_id) == f"there is no task {shown} in {db.name}"


def test_where_no_executor_ever_was_another_database_may_be_meant(operator: CommandLine, db: Database[Any]) -> None:
    db["task_types"].delete_many({})

    assert operator.refused("ops", "task", "show", "x") == (
        f"there is no task x in {db.name}; "
        f"no executor has ever registered its functions in {db.name}: is MONGODB_DATABASE right?"
    )


def test_how_many_attempts_are_allowed_comes_from_the_registration(
    operator: CommandLine, db: Database[Any], tasks: Tasks, now: datetime
) -> None:
    db["task_types"].insert_one({"_id": "noop", "http": False, "max_retries": 7, "backoff_policy": None})
    [task_id] = add(tasks, [document(now)])

    assert _facts(operator.done("ops", "task", "show", str(task_id)))["attempts"] == "0 of 8"


def test_where_neither_task_nor_registration_say_the_deployment_may_differ(
    operator: CommandLine, tasks: Tasks, now: datetime
) -> None:
    [task_id] = add(tasks, [document(now)])

    said = operator.done("ops", "task", "show", str(task_id))
    as_json = operator.done("ops", "task", "show", str(task_id), "--json").json["task"]

    assert _facts(said)["attempts"] == "0 of 11, unless RETRY_POLICY of the deployment says otherwise"
    assert (as_json["attempts_allowed"], as_json["attempts_allowed_assumed"]) == (11, True)


def test_the_log_shows_where_lines_are_missing(operator: CommandLine, tasks: Tasks, now: datetime) -> None:
    log = [_line(0), *(_line(number) for number in range(6, 25))]
    [task_id] = add(tasks, [document(now, attempts=25, attempt_log=log)])

    rows = operator.done("ops", "task", "show", str(task_id)).lines[-21:]

    assert rows[1].split() == ["...", "-", "-", "-", "5", "not", "kept"]
    assert [row.split()[0] for row in rows] == ["0", "...", *map(str, range(6, 25))]


def test_a_log_that_was_edited_by_hand_is_shown_as_far_as_it_makes_sense(
    operator: CommandLine, tasks: Tasks, now: datetime
) -> None:
    log = [_line(0, duration_ms=2**62, note="x" * 1_000_000), "nonsense", _line(1, status=7)]
    error = {"message": "y" * 1_000_000, "code": "c", "at": now}
    [task_id] = add(tasks, [document(now, attempt_log=log, error=error)])

    said = operator.done("ops", "task", "show", str(task_id))

    assert said.lines[-1].split()[:2] == ["1", "7"]
    assert len(said.out) < 20_000


@pytest.mark.parametrize(
    ("attempts", "missing"),
    [
        ([], []),
        ([1, 2, 3], [0, 0, 0]),
        ([1, 4], [0, 2]),
        ([5, 6], [4, 0]),
        ([1, 1, 2], [0, 0, 0]),  # a lost one is refunded: its number comes again
        ([1, 2, 3, 1, 2], [0, 0, 0, 0, 0]),  # redriven
    ],
)
def test_gaps_are_counted(attempts: list[int], missing: list[int]) -> None:
    log = [AttemptView(attempt=number, status="failed", started_at=T0, duration_ms=1, note="") for number in attempts]

    assert [count for count, _ in count_missing_attempts(log)] == missing


def test_as_json_times_have_a_zone_and_the_token_stays_out(operator: CommandLine, tasks: Tasks, now: datetime) -> None:
    add(tasks, [document(now, max_retries=1, error={"message": "m", "code": "c", "at": now}, attempt_log=[_line(0)])])
    task = claim_one(tasks, now + timedelta(milliseconds=5), owner="request-7")

    assert operator.done("ops", "task", "show", str(task.id), "--json").json["task"] == {
        "id": str(task.id),
        "dead_letter": False,
        "name": "noop",
        "queue": "default",
        "status": "processing",
        "lane": "fresh",
        "priority": 0,
        "attempts": 1,
        "attempts_allowed": 2,
        "attempts_allowed_assumed": False,
        "due_at": "2031-07-01T09:00:00.000Z",
        "next_retry_at": None,
        "created_at": "2031-07-01T09:00:00.000Z",
        "updated_at": "2031-07-01T09:00:00.005Z",
        "finished_at": None,
        "expires_at": None,
        "cancel_requested_at": None,
        "reason": None,
        "archive_error": None,
        "error": {"code": "c", "message": "m", "at": "2031-07-01T09:00:00.000Z"},
        "crashes": 0,
        "redrives": 0,
        "source": None,
        "correlation_id": None,
        "has_result": False,
        "lease": {"owner": "request-7", "expires_at": "2031-07-01T09:01:00.005Z"},
        "attempt_log": [
            {
                "attempt": 0,
                "status": "failed",
                "started_at": "2031-07-01T09:00:00.000Z",
                "duration_ms": 1500,
                "note": "503",
            }
        ],
    }
