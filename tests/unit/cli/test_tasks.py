"""`tidemill ops task show`: how one task stands, on a database."""

from __future__ import annotations

from datetime import datetime
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


def test_what_cannot_be_archived_says_why(operator: CommandLine, tasks: Tasks, now: datetime) -> None:
    [task_id] = add(tasks, [document(now, status="failed", archive_error="MongoDB refuses it (code 121)")])

    assert _facts(operator.done("ops", "task", "show", str(task_id)))["not archived"] == "MongoDB refuses it (code 121)"


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
