"""`tidemill ops stats`: how retries went, on a database."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from pymongo.database import Database

from tests.unit.cli.conftest import CommandLine
from tidemill.clock import ServerClock

COUNTS = {
    "retry_runs": 8, "retry_successes": 6, "exhausted": 1, "retried": 4, "backoff_ms": 20_000, "saved_ms": 1_500,
}  # fmt: skip


def _count(db: Database[Any], queue: str, counts: Mapping[str, int], *, ago: timedelta = timedelta()) -> None:
    minute = (ServerClock(db).now() - ago).replace(second=0, microsecond=0)
    db["queue_stats"].insert_one(
        {"_id": {"queue": queue, "minute": minute, "name": "noop"}, "minute": minute, **counts}
    )


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


def test_an_index_that_is_missing_is_told(operator: CommandLine, db: Database[Any]) -> None:
    _count(db, "default", COUNTS)
    db["queue_stats"].drop_index("retention")

    assert operator.refused("ops", "stats") == (
        "an index of queue_stats is missing: run `tidemill indexes` once, then try again"
    )
