"""Attempts that are used up, whoever used them: the task runs no more, and is in one place."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

from tests.builders import MINUTE, add, claim, document, stored
from tests.features.conftest import Bench
from tests.features.dead_letters.graveyard import Graveyard, opened
from tests.fixtures import ManualClock
from tidemill.model import Lane

LAST_ERROR = {"message": "ValueError: no", "code": "ValueError", "at": datetime(2031, 6, 30)}  # noqa: DTZ001 - as stored
LANES: tuple[Lane, ...] = ("fresh", "retry")
HELD = {"token": "t", "owner": "gone", "expires_at": datetime(2031, 6, 30)}  # noqa: DTZ001 - as stored


@pytest.mark.parametrize(
    ("left", "reason"),
    [
        ({"status": "processing", "attempts": 3, "crashes": 1, "lease": HELD}, "worker_lost"),
        ({"status": "processing", "attempts": 7, "crashes": 1, "lease": HELD}, "worker_lost"),
        ({"status": "processing", "attempts": 7, "lease": HELD}, "exhausted"),
        ({"attempts": 3}, "exhausted"),
        ({"attempts": 7, "lane": "retry"}, "exhausted"),
    ],
    ids=["lost on the last attempt", "lost beyond it", "lost beyond it once", "pending by hand", "pending far beyond"],
)
def test_a_task_whose_attempts_are_used_up_runs_no_more_and_is_a_dead_letter(  # F15, F18
    bench: Bench, clock: ManualClock, now: datetime, left: dict[str, Any], reason: str
) -> None:
    [task_id] = add(
        bench.tasks, [document(now, max_retries=2, payload={"n": 1, "$keep": "é"}, error=LAST_ERROR, **left)]
    )

    with opened(bench.db, clock) as graveyard:
        for _ in range(3):
            bench.reclaim()
            bench.execute()
            graveyard.archive()
            clock.move(MINUTE)

        assert bench.ran == []
        assert _only_letter(graveyard, task_id, reason) == {"n": 1, "$keep": "é"}


def test_what_was_claimed_beside_three_deaths_and_never_began_is_run(bench: Bench, now: datetime) -> None:  # F13
    add(bench.tasks, [document(now, max_retries=2, payload={"n": n}) for n in range(10)])

    for owner in ("first", "second", "third"):
        held = [claim(bench.tasks, bench.clock.now(), lane=lane, owner=owner).tasks for lane in LANES]
        assert sum(map(len, held)) == 10
        report = bench.reclaim(dead_owner=owner)
        assert (report["reclaimed"], report["failed"]) == (10, 0)
        bench.clock.move(60 * MINUTE)

    assert bench.execute()["done"] == 10
    assert sorted(bench.ran) == list(range(10))


def _only_letter(graveyard: Graveyard, task_id: Any, reason: str) -> Any:
    """Return the payload of the only thing that is left of the task, in MongoDB and in the bucket."""
    [raw] = graveyard.dead.find()
    letter = stored(graveyard.dead, raw["_id"])
    assert (letter["_id"]["task"], letter["reason"]) == (task_id, reason)
    assert letter["error"]["message"]
    assert list(graveyard.tasks.find()) == []
    assert len(graveyard.objects()) == 1
    return letter["payload"]
