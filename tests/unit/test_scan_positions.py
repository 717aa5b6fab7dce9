"""Positions of scans: what is put back is looked for once it is due, and nothing is remembered for ever."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from bson import ObjectId

from tests.fixtures import T0
from tests.unit.make import a_task
from tidemill.executor.scan_positions import MAX_RETURNS, ScanPosition, ScanPositions
from tidemill.model import LANES
from tidemill.policy.scheduling import FRESH, RETRY
from tidemill.store.scan import Key, Scan

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)
HEAD = Scan(queue="default", lanes=RETRY)
BEHIND = replace(HEAD, after=Key(priority=0, due_at=T0, id=ObjectId()))


def look(position: ScanPosition, at: float, *, now: datetime = T0, cost: float = 0.001) -> None:
    """Record a look that found tasks up to `BEHIND`."""
    position.record_look(BEHIND, at=at, cost=cost, now=now, dry=False, denied=False)


def test_a_scan_goes_on_behind_what_it_took_and_from_the_head_after_a_restart() -> None:
    position = ScanPosition(HEAD)
    assert position.next_scan(None).after is None

    look(position, 1000)
    assert position.next_scan(BEHIND.after) == BEHIND, "a known head is of no use behind it"

    position.restart()
    assert position.next_scan(BEHIND.after) == replace(HEAD, head=BEHIND.after)


def test_what_is_put_back_behind_the_position_is_looked_for_once_it_is_due_and_then_forgotten() -> None:
    position = ScanPosition(HEAD)
    look(position, 1000)
    position.put_back(a_task(priority=1), due_at=T0 + SECOND)

    def is_due(now: datetime) -> bool:
        return position.is_full_look_due(1000.5, now=now, goes_first=False)

    assert [is_due(T0), is_due(T0 + SECOND)] == [False, True]
    position.restart()
    look(position, 1000.6, now=T0 + SECOND)
    assert not is_due(T0 + SECOND)


def test_what_is_put_back_exactly_at_the_position_may_be_behind_it() -> None:
    position = ScanPosition(HEAD)
    look(position, 1000)

    position.put_back(a_task(), due_at=T0)

    assert position.is_full_look_due(1000.5, now=T0, goes_first=False)


def test_what_is_put_back_where_the_scan_has_yet_to_come_needs_no_look_from_the_head() -> None:
    position = ScanPosition(HEAD)
    look(position, 1000)

    position.put_back(a_task(priority=-1), due_at=T0)

    assert not position.is_full_look_due(1000.5, now=T0, goes_first=False)


def test_a_look_that_goes_on_behind_the_position_finds_nothing_that_was_put_back_before_it() -> None:
    position = ScanPosition(HEAD)
    look(position, 1000)
    position.put_back(a_task(priority=1), due_at=T0)

    look(position, 1000.2)

    assert position.is_full_look_due(1000.5, now=T0, goes_first=False)


def test_where_nobody_looks_not_all_is_remembered_that_was_put_back() -> None:
    position, task = ScanPosition(HEAD), a_task()
    look(position, 1000)
    assert not position.is_full_look_due(1000.5, now=T0, goes_first=False)

    for number in range(MAX_RETURNS + 1):
        position.put_back(task, due_at=T0 + HOUR + SECOND * number)

    assert position.is_full_look_due(1000.5, now=T0, goes_first=False), "what is not remembered has to be looked for"


@pytest.mark.parametrize(("after_sec", "is_due"), [(0.9, False), (1.1, True)])
def test_a_look_from_the_head_is_due_each_second(after_sec: float, *, is_due: bool) -> None:
    position = ScanPosition(HEAD)
    look(position, 1000)

    assert position.is_full_look_due(1000 + after_sec, now=T0, goes_first=False) is is_due


def test_a_single_slow_look_at_most_doubles_the_pause_and_many_make_it_thirty_times_their_cost() -> None:
    position = ScanPosition(HEAD)
    for _ in range(2):
        look(position, 1000, cost=10.0)
        position.restart()
    assert position.is_full_look_due(1001.1, now=T0, goes_first=False)

    for _ in range(20):
        position.restart()
        look(position, 1000, cost=1.0)

    assert not position.is_full_look_due(1029, now=T0, goes_first=False)
    assert position.is_full_look_due(1031, now=T0, goes_first=False)


def test_a_lane_that_was_dry_is_left_alone_for_half_a_second() -> None:
    position = ScanPosition(HEAD)
    position.record_nothing_due(at=1000, cost=0.001, now=T0)
    assert [position.is_dry(1000.4), position.is_dry(1000.6)] == [True, False]

    position.put_back(a_task(), due_at=T0)
    assert not position.is_dry(1000.4), "it may be due"


def test_a_lane_is_contested_where_a_look_left_tasks_and_denied_where_permits_ran_out() -> None:
    position = ScanPosition(HEAD)

    position.record_look(BEHIND, at=1000, cost=0.001, now=T0, dry=False, denied=True)
    assert (position.was_denied(since=1000), position.may_have_left(since=1000)) == (True, False)

    look(position, 1001)
    assert (position.was_denied(since=1000), position.may_have_left(since=1001)) == (False, True)
    assert not position.may_have_left(since=1001.1)


def test_lanes_are_exhausted_where_a_look_at_all_of_them_was_dry_or_they_were_denied_themselves() -> None:
    positions = ScanPositions()
    positions.position("default", LANES).record_nothing_due(at=1000, cost=0.001, now=T0)
    assert all(positions.is_used_up("default", lanes, since=1000) for lanes in (LANES, FRESH, RETRY))
    assert not positions.is_used_up("default", LANES, since=1000.1)
    assert not positions.is_used_up("other", LANES, since=1000)

    positions = ScanPositions()
    positions.position("default", LANES).record_look(BEHIND, at=1000, cost=0.001, now=T0, dry=False, denied=True)
    assert positions.is_used_up("default", LANES, since=1000)
    assert not positions.is_used_up("default", FRESH, since=1000), "fresh tasks need no permit"


def test_a_due_task_that_no_position_expects_restarts_all_lanes_of_its_queue() -> None:
    positions = ScanPositions()
    for queue in ("eu", "us"):
        positions.position(queue, FRESH).record_look(BEHIND, at=1000, cost=0.001, now=T0, dry=True, denied=False)

    positions.expect_due("eu")

    eu, us = (positions.position(queue, FRESH) for queue in ("eu", "us"))
    assert (eu.next_scan(None).after, eu.is_dry(1000)) == (None, False)
    assert (us.next_scan(None), us.is_dry(1000)) == (BEHIND, True)


def test_what_is_put_back_concerns_the_positions_of_its_queue_and_lane() -> None:
    positions = ScanPositions()
    places = [("eu", FRESH), ("eu", RETRY), ("eu", LANES), ("us", RETRY)]
    for queue, lanes in places:
        positions.position(queue, lanes).record_nothing_due(at=1000, cost=0.001, now=T0)

    positions.put_back(a_task(queue="eu", lane="fresh"), due_at=T0, lane="retry")

    assert [positions.position(*place).is_dry(1000) for place in places] == [True, False, False, True]


def test_queues_without_tasks_are_forgotten() -> None:
    positions = ScanPositions()
    kept = positions.position("eu", LANES)
    look(kept, 1000)
    look(positions.position("us", LANES), 1000)

    positions.forget_all_but(["eu", "asia"])

    assert positions.position("eu", LANES) is kept
    assert positions.position("us", LANES).next_scan(None).after is None
