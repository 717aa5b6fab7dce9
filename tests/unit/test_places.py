"""Where scans are: what was put back is looked for when it is due, and nothing is remembered for ever."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from tests.conftest import T0
from tests.unit.make import a_task
from tidemill.executor.places import MANY_RETURNS, Place, Places
from tidemill.model import LANES
from tidemill.selection import FRESH, RETRY
from tidemill.store.scans import Scan

SECOND = timedelta(seconds=1)
HOUR = timedelta(hours=1)


def a_place_that_looked(at: float) -> Place:
    place = Place(scan=Scan(queue="default", lanes=RETRY))
    place.looked(at=at, cost=0.001, now=T0, dry=False, denied=False)
    return place


def test_what_is_put_back_is_forgotten_once_it_was_looked_for() -> None:
    place = a_place_that_looked(1000)
    place.put_back(a_task(), due_at=T0 + SECOND)

    place.looked(at=1002, cost=0.001, now=T0 + 2 * SECOND, dry=False, denied=False)

    assert place.returns == []


def test_where_nobody_looks_not_all_is_remembered_that_was_put_back() -> None:
    place, task = a_place_that_looked(1000), a_task()
    assert not place.full_look_is_due(1000.5, now=T0, goes_first=False)

    for number in range(3 * MANY_RETURNS):
        place.put_back(task, due_at=T0 + HOUR + SECOND * number)

    assert len(place.returns) <= MANY_RETURNS
    assert place.full_look_is_due(1000.5, now=T0, goes_first=False), "what is not remembered has to be looked for"


def test_queues_without_tasks_are_forgotten() -> None:
    places = Places()
    eu = places.of("eu", LANES)
    for queue in ("eu", "us"):
        for lanes in (LANES, FRESH, RETRY):
            place = places.of(queue, lanes)
            place.scan = replace(place.scan, width=4)

    places.forget_all_but(["eu", "asia"])

    assert places.of("eu", LANES) is eu
    assert {places.of("eu", lanes).scan.width for lanes in (LANES, FRESH, RETRY)} == {4}
    assert {places.of("us", lanes).scan.width for lanes in (LANES, FRESH, RETRY)} == {1}
