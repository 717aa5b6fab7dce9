"""Faults that queues had with the way back from the dead letters: settings lost, and storms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from pymongo.database import Database

from tests.builders import MINUTE, add, document, stored
from tests.buried import failed, letter
from tests.features.conftest import Bench
from tests.features.dead_letters.graveyard import Graveyard, opened
from tests.fixtures import ManualClock
from tidemill.documents import decode


@pytest.fixture
def graveyard(db: Database[Any], clock: ManualClock) -> Iterator[Graveyard]:
    with opened(db, clock) as graveyard:
        yield graveyard


def test_a_redriven_task_keeps_its_settings_and_its_second_death_is_a_second_letter(  # F56, F85
    graveyard: Graveyard, bench: Bench
) -> None:
    graveyard = replace(graveyard, registered=frozenset({"broken"}))
    bench.task("broken")(lambda _payload, _ctx: 1 / 0)
    settings: dict[str, Any] = {
        "name": "broken",
        "queue": "eu",
        "priority": 7,
        "max_retries": 0,
        "timeout_sec": 20,
        "backoff_policy": {"strategy": "fixed", "base_sec": 1, "max_sec": 1, "factor": 1, "jitter": "none"},
        "payload": {"n": 1},
        "trace": {"correlation_id": "c"},
        "idempotency_key": "k",
        "request_hash": "h",
        "tags": ["of", "people"],
    }
    [task_id] = add(bench.tasks, [document(bench.clock.now(), **settings)])
    for life in range(2):
        assert bench.execute()["failed"] == 1
        graveyard.archive()
        buried = stored(graveyard.dead, {"task": task_id, "redrives": life})
        assert (buried["attempts"], buried["error"]["code"]) == (1, "ZeroDivisionError")
        assert buried["retain_from"] == bench.clock.now()
        bench.clock.move(MINUTE)
        assert graveyard.redrive_all().redriven == 1
        back = stored(graveyard.tasks, task_id)
        assert {name: back[name] for name in settings} == settings
        assert (back["status"], back["attempts"], back["redrives"]) == ("pending", 0, life + 1)
        assert (back["attempt_log"], back["error"], back["result"], back["finished_at"]) == ([], None, None, None)
        assert not {"lease", "settled_by", "reason", "fingerprint", "dead_lettered_at"} & back.keys()
        assert not {"archived_at", "retain_from"} & back.keys()

    assert graveyard.dead.count_documents({}) == 2
    assert len(graveyard.objects()) == 2
    assert bench.ran == [1, 1]


def test_a_redrive_of_many_goes_in_pages_and_spreads_what_is_due(graveyard: Graveyard) -> None:  # F61
    now = graveyard.clock.now()
    add(graveyard.dead, [letter(now, redrives=3) for _ in range(600)])
    graveyard.clock.move(MINUTE)

    pages: list[int] = []
    after = None
    while not pages or after:
        done = graveyard.redrive(limit=250, after=after, per_sec=100)
        after = done.next
        pages.append(done.redriven)
        graveyard.clock.move(timedelta(milliseconds=10))

    assert pages == [250, 250, 100]
    start = now + MINUTE
    due = sorted(raw["due_at"] for raw in map(decode, graveyard.tasks.find()))
    assert due == [start + n * timedelta(milliseconds=10) for n in range(600)]
    assert graveyard.tasks.distinct("redrives") == [4]


def test_a_poison_task_can_be_redriven_ten_times_and_each_death_is_kept(graveyard: Graveyard) -> None:  # F61
    [task_id] = add(graveyard.tasks, [failed(graveyard.clock.now())])
    for _ in range(10):
        graveyard.archive()
        graveyard.clock.move(MINUTE)
        assert graveyard.redrive_all().redriven == 1
        died = {"status": "failed", "finished_at": graveyard.clock.now()}
        graveyard.db["tasks"].update_one({"_id": task_id, "status": "pending"}, {"$set": died})

    assert stored(graveyard.tasks, task_id)["redrives"] == 10
    assert [raw["_id"]["redrives"] for raw in graveyard.dead.find().sort("_id", 1)] == list(range(10))


def test_a_letter_whose_function_is_not_there_is_refused_and_stays(graveyard: Graveyard) -> None:  # F61
    add(graveyard.tasks, [failed(graveyard.clock.now(), name=name) for name in ("noop", "gone", "gone")])
    graveyard.archive()
    graveyard.clock.move(MINUTE)
    before = [bytes(raw.raw) for raw in graveyard.dead.find({"name": "gone"}).sort("_id", 1)]

    done = graveyard.redrive()

    assert (done.redriven, done.refused, done.unregistered) == (1, {"unregistered": 2}, {"gone": 2})
    assert [bytes(raw.raw) for raw in graveyard.dead.find({"name": "gone"}).sort("_id", 1)] == before
