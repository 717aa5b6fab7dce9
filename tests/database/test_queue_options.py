"""What a queue chooses for itself: stored, read with suspicion, and read again soon."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from pymongo.database import Database

from tidemill import InvalidRequestError
from tidemill.control.queues import OptionsReader, change_queue, declare_queue, list_configured_queues, load_options
from tidemill.model import Adaptive, Budget, Pressure, QueueOptions

ALL = QueueOptions(
    paused=True,
    selection="retries_first",
    retry_share=0.5,
    max_in_flight_retries=7,
    pressure=Pressure(adaptive=Adaptive(scale=20, max_sec=30.0), budget=Budget(per_minute=50, factor=3.0)),
)


def test_what_was_chosen_is_read_again_as_it_was(db: Database[Any], now: datetime) -> None:
    declare_queue(db, "eu", now=now)

    change_queue(db, "eu", ALL, now=now)

    assert load_options(db, "eu") == ALL
    assert OptionsReader(db).options("eu") == ALL
    change_queue(db, "eu", QueueOptions(), now=now)
    assert load_options(db, "eu") == QueueOptions()


def test_the_default_queue_needs_no_declaration(db: Database[Any], now: datetime) -> None:
    assert load_options(db, "default") == QueueOptions()

    change_queue(db, "default", ALL, now=now)

    assert load_options(db, "default") == ALL


def test_a_queue_that_is_not_declared_is_refused_and_not_made(db: Database[Any], now: datetime) -> None:
    assert load_options(db, "ue") is None

    with pytest.raises(InvalidRequestError, match="queue: is not declared: run `tidemill ops queue declare ue` once"):
        change_queue(db, "ue", ALL, now=now)

    assert list_configured_queues(db) == []


def test_a_queue_that_says_nothing_chooses_nothing(db: Database[Any]) -> None:
    assert OptionsReader(db).options("eu") == QueueOptions()


def test_a_change_is_seen_after_five_seconds_and_read_once_in_that_time(db: Database[Any], now: datetime) -> None:
    at = [100.0]
    reader = OptionsReader(db, monotonic=lambda: at[0])
    assert reader.options("default") == QueueOptions()
    change_queue(db, "default", ALL, now=now)

    at[0] = 105.0
    assert reader.options("default") == QueueOptions()
    at[0] = 105.1
    assert reader.options("default") == ALL


@pytest.mark.parametrize(
    ("stored", "read"),
    [
        ({"selection": "best"}, QueueOptions()),
        ({"selection": ["weighted"]}, QueueOptions()),
        ({"retry_share": 2, "selection": "retries_first"}, QueueOptions(selection="retries_first")),
        ({"retry_share": "0.5"}, QueueOptions()),
        ({"max_in_flight_retries": -1}, QueueOptions()),
        ({"max_in_flight_retries": 0.0}, QueueOptions(max_in_flight_retries=0)),
        ({"max_in_flight_retries": 3.0}, QueueOptions(max_in_flight_retries=3)),
        ({"max_in_flight_retries": 3.5}, QueueOptions()),
        ({"paused": 1.0}, QueueOptions(paused=True)),
        ({"pressure": "high"}, QueueOptions()),
        ({"pressure": {"adaptive": {"scale": -1}}}, QueueOptions()),
        ({"pressure": {"adaptive": {}, "budget": 3}}, QueueOptions(pressure=Pressure(adaptive=Adaptive()))),
        ({"pressure": {"budget": {"per_minute": 9, "later_field": 1}}}, QueueOptions()),
    ],
)
def test_what_people_write_by_hand_is_taken_where_it_can_be_meant(
    db: Database[Any], stored: dict[str, Any], read: QueueOptions
) -> None:
    db["queues"].insert_one({"_id": "eu"} | stored)

    assert OptionsReader(db).options("eu") == read


def test_one_odd_document_stops_no_other_queue(db: Database[Any]) -> None:
    db["queues"].insert_many([{"_id": 7, "paused": True}, {"_id": "eu", "paused": True}])

    assert OptionsReader(db).options("eu").paused


def test_two_people_who_change_different_things_do_not_undo_each_other(db: Database[Any], now: datetime) -> None:
    seen_by_both = QueueOptions()

    change_queue(db, "default", QueueOptions(paused=True), was=seen_by_both, now=now)
    change_queue(db, "default", QueueOptions(retry_share=0.5), was=seen_by_both, now=now)

    assert load_options(db, "default") == QueueOptions(paused=True, retry_share=0.5)


def test_nor_do_two_who_change_different_kinds_of_pressure(db: Database[Any], now: datetime) -> None:
    seen_by_both = QueueOptions()
    adaptive, budget = Pressure(adaptive=Adaptive()), Pressure(budget=Budget())

    change_queue(db, "default", QueueOptions(pressure=adaptive), was=seen_by_both, now=now)
    change_queue(db, "default", QueueOptions(pressure=budget), was=seen_by_both, now=now)

    assert load_options(db, "default") == QueueOptions(pressure=Pressure(adaptive=Adaptive(), budget=Budget()))


@pytest.mark.parametrize(
    "seen_by_both", [QueueOptions(), QueueOptions(pressure=Pressure(adaptive=Adaptive(scale=7, max_sec=7.0)))]
)
def test_nor_do_two_who_change_different_numbers_of_one_kind(
    db: Database[Any], now: datetime, seen_by_both: QueueOptions
) -> None:
    change_queue(db, "default", seen_by_both, now=now)
    held = seen_by_both.pressure.adaptive or Adaptive()

    for adaptive in (replace(held, scale=3), replace(held, max_sec=9.0)):
        change_queue(db, "default", QueueOptions(pressure=Pressure(adaptive=adaptive)), was=seen_by_both, now=now)

    assert load_options(db, "default") == QueueOptions(pressure=Pressure(adaptive=Adaptive(scale=3, max_sec=9.0)))


@pytest.mark.parametrize("adaptive", [None, {}, 7, [], {"scale": -1}, {"later_field": 1}, {"scale": "x", "max_sec": 5}])
def test_a_number_beside_nonsense_is_stored_so_that_it_holds(
    db: Database[Any], now: datetime, adaptive: object
) -> None:
    db["queues"].insert_one({"_id": "eu", "retry_share": 0.25, "pressure": {"adaptive": adaptive, "budget": {}}})
    was = load_options(db, "eu") or QueueOptions()
    wanted = replace(was, pressure=replace(was.pressure, adaptive=Adaptive(scale=3)))
    db["queues"].update_one({"_id": "eu"}, {"$set": {"paused": True}})

    after = change_queue(db, "eu", wanted, was=was, now=now)

    assert after == load_options(db, "eu")
    assert (after.paused, after.retry_share, after.pressure.budget) == (True, 0.25, Budget())
    assert (after.pressure.adaptive or Adaptive()).scale == 3


def test_a_change_answers_with_all_that_then_holds(db: Database[Any], now: datetime) -> None:
    db["queues"].insert_one({"_id": "eu", "retry_share": 0.25})

    assert declare_queue(db, "eu", now=now) == QueueOptions(retry_share=0.25)
    assert change_queue(db, "eu", QueueOptions(paused=True), was=QueueOptions(), now=now) == QueueOptions(
        paused=True, retry_share=0.25
    )


@pytest.mark.parametrize("pressure", ["high", 3, None, [], {"adaptive": 7}])
def test_whatever_stands_there_can_be_changed(db: Database[Any], now: datetime, pressure: object) -> None:
    db["queues"].insert_one({"_id": "eu", "paused": True, "pressure": pressure})

    change_queue(db, "eu", ALL, now=now)

    assert load_options(db, "eu") == ALL
