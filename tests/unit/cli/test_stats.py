"""`tidemill ops stats`: how retries went, on a database."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from pymongo.database import Database

from tests.builders import add, document
from tests.unit.cli.conftest import CommandLine
from tidemill.clock import ServerClock
from tidemill.store.connection import Tasks

COUNTS = {
    "retry_runs": 8, "retry_successes": 6, "exhausted": 1, "retried": 4, "backoff_ms": 20_000, "saved_ms": 1_500,
}  # fmt: skip


def _count(db: Database[Any], queue: str, counts: Mapping[str, int], *, ago: timedelta = timedelta()) -> None:
    minute = (ServerClock(db).now() - ago).replace(second=0, microsecond=0)
    db["queue_stats"].insert_one(
        {"_id": {"queue": queue, "minute": minute, "name": "noop"}, "minute": minute, **counts}
    )


def test_each_queue_has_a_row_and_the_saving_is_called_an_estimate(
    operator: CommandLine, db: Database[Any], tasks: Tasks
) -> None:
    _count(db, "default", COUNTS)
    _count(db, "eu", {"done": 3})
    now = ServerClock(db).now()
    add(tasks, [document(now, lane="retry") for _ in range(2)])

    title, _, *headings, _, default, eu = operator.done("ops", "stats").lines

    assert title == "retries of the last 1d"
    assert [line.split() for line in headings] == [
        ["mean", "back-off", "retry", "time", "saved"],
        ["queue", "retries", "succeeded", "exhausted", "back-off", "in", "all", "queue", "(estimate)"],
    ]
    assert default.split() == ["default", "8", "6", "(75.0%)", "1", "5s", "20s", "2", "1.5s"]
    assert eu.split() == ["eu", "0", "0", "0", "-", "0s", "0", "0s"]


def test_as_json_they_are_the_documents(operator: CommandLine, db: Database[Any]) -> None:
    _count(db, "default", COUNTS)

    assert operator.done("ops", "stats", "--json").json["statistics"] == [
        {
            "queue": "default",
            "total_retries": 8,
            "successful_retries": 6,
            "retry_success_rate": 0.75,
            "retries_exhausted": 1,
            "backoff_sec_sum": 20.0,
            "backoff_sec_mean": 5.0,
            "retry_queue_size": 0,
            "time_saved_sec_estimate": 1.5,
        }
    ]


def test_one_queue_can_be_asked_for(operator: CommandLine, db: Database[Any]) -> None:
    _count(db, "default", COUNTS)
    _count(db, "eu", COUNTS)

    assert [one["queue"] for one in operator.done("ops", "stats", "--queue", "eu", "--json").json["statistics"]] == [
        "eu"
    ]


@pytest.mark.parametrize(("since", "seen"), [("30m", False), ("2h", True), ("1d", True)])
def test_only_what_is_recent_enough_counts(operator: CommandLine, db: Database[Any], since: str, *, seen: bool) -> None:
    _count(db, "default", COUNTS, ago=timedelta(hours=1))

    assert bool(operator.done("ops", "stats", "--since", since, "--json").json["statistics"]) is seen


def test_where_nothing_is_counted_that_is_said(operator: CommandLine, db: Database[Any]) -> None:
    assert operator.done("ops", "stats").out == f"nothing was counted in {db.name} in the last 1d\n"
    assert operator.done("ops", "stats", "--queue", "e\x1bu", "--since", "90m").out == (
        f"nothing was counted in queue e\\x1bu of {db.name} in the last 1h 30m\n"
    )
    assert operator.done("ops", "stats", "--json").json["statistics"] == []


@pytest.mark.parametrize("since", ["", "0h", "-1h", "1", "1w", "1.5h", "99999d", "٣h"])
def test_a_time_that_is_none_is_answered_with_the_usage(operator: CommandLine, since: str) -> None:
    said = operator("ops", "stats", f"--since={since}")

    assert (said.status, said.out) == (2, "")
    assert "must be like 30m, 6h or 7d" in said.err


def test_an_index_that_is_missing_is_told(operator: CommandLine, db: Database[Any]) -> None:
    _count(db, "default", COUNTS)
    db["queue_stats"].drop_index("retention")

    assert operator.refused("ops", "stats") == (
        "an index of queue_stats is missing: run `tidemill indexes` once, then try again"
    )
