"""Each scenario survives a crash, all places that write are met by one, and what does not survive is found out."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from pymongo.database import Database

from tests.builders import add
from tidemill import reclaim
from tidemill.admin.api import OPERATIONS
from tidemill.control import semaphores
from tidemill.model import Failure, Retried, Task
from tidemill.policy import retry
from tools.chaos.crash_points import executing, keeping, sites
from tools.chaos.crash_points.everything import SCENARIOS
from tools.chaos.crash_points.executing import task
from tools.chaos.crash_points.operating import EVENTS
from tools.chaos.crash_points.run import Campaign
from tools.chaos.crash_points.scenario import Scenario, nothing, traced_act
from tools.chaos.crash_points.world import World, a_world

SEED = 20260701
SAMPLE = 20


@pytest.fixture
def world(db: Database[Any]) -> Iterator[World]:
    with a_world(db) as world:
        yield world


def broken(world: World, scenario: Scenario) -> str:
    """What does not hold at the first point of *scenario*, after writes first of all, where anything does not."""
    campaign = Campaign(world, rng=random.Random(SEED), scenarios=[scenario])
    while campaign.goes_on() and not campaign.found().broken:
        campaign.one()
    return "\n".join(campaign.found().broken)


def test_all_places_that_write_are_met_by_a_scenario(world: World) -> None:
    callers = {one for scenario in SCENARIOS for one in traced_act(scenario, world).callers}

    assert sites.unmet(callers) == []


def test_scenarios_survive_a_crash_in_each_of_some(world: World) -> None:
    campaign = Campaign(world, rng=random.Random(SEED))
    for _ in range(SAMPLE):
        campaign.one()

    found = campaign.found()

    assert found.broken == []
    assert found.faults.total() > SAMPLE / 2  # of threads, now and then one makes a call less
    assert (found.lost, found.accepted) == (0, found.done + found.cancelled + found.dead + found.alive)


def test_there_is_one_for_every_operation_and_what_is_left_out_is_there() -> None:
    assert EVENTS.keys() == set(OPERATIONS)
    assert sites.ELSEWHERE.keys() <= sites.writing()


def test_places_that_write_are_known_by_name() -> None:
    assert {"store/claims.py:take", "enqueue/inserts.py:_store_marked", "aws/s3.py:Bucket._put"} <= sites.writing()
    assert not {"store/tasks.py:get", "policy/retry.py:backoff"} & sites.writing()


def _two_steps(world: World) -> None:
    add(world.tasks, [task("first")])
    add(world.tasks, [task("second")])


def _away_and_back(world: World) -> None:
    world.db.tasks.delete_one({"_id": "first"})
    add(world.tasks, [task("first")])


def test_what_was_to_be_one_step_and_is_two_is_found_out(world: World) -> None:
    assert "task first: is there" in broken(
        world, Scenario(use_case="enqueue", name="two", act=_two_steps, otherwise=[nothing])
    )
    assert "task first: is not there" in broken(
        world,
        Scenario(use_case="move", name="gone", prepare=lambda one: add(one.tasks, [task("first")]), act=_away_and_back),
    )


def test_a_bystander_of_a_crash_that_loses_an_attempt_is_found_out(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def count_it(_: Task, __: Any, *, now: datetime, **___: Any) -> Retried:
        return Retried(failure=Failure(message="lost", code="lost", by_function=False), next_retry_at=now)

    monkeypatch.setattr(reclaim, "decide_after_loss", count_it)

    assert "attempts 2, not 1" in broken(world, executing.SCENARIOS[0])


def test_a_bystander_of_a_crash_that_waits_for_long_is_found_out(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "FIRST_LOSS_JITTER", timedelta(hours=1))

    assert "was lost for the first time, and is not due before" in broken(world, executing.SCENARIOS[0])


def test_what_the_dead_keep_is_found_out(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(semaphores, "release_all", lambda *_: None)
    [scenario] = [one for one in keeping.SCENARIOS if one.name == "what the dead held"]

    assert "the dead still hold executor_slots" in broken(world, scenario)
