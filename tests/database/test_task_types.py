"""Declared task types: which names there are, and which there are no longer."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from pymongo.database import Database

from tests.fixtures import T0
from tidemill.client import Queue
from tidemill.control import task_types
from tidemill.control.task_types import list_registered_names
from tidemill.registry import Registry

DAY = timedelta(days=1)


def declare(db: Database[Any], *names: str, package: str = "tasks", day: int = 0) -> int:
    registry = Registry()
    for name in names:
        registry.task(name)(lambda payload: payload)
    return task_types.declare_types(db, registry, package=package, release=str(day), now=T0 + day * DAY)


def test_a_name_that_its_package_declares_no_more_is_retired(db: Database[Any]) -> None:
    declare(db, "a", "b")

    assert declare(db, "a", day=1) == 1

    assert list_registered_names(db) == {"a"}
    assert [one.get("retired_at") for one in db.task_types.find(sort=[("_id", 1)])] == [None, T0 + DAY]
    assert declare(db, "a", day=2) == 0


def test_tasks_of_a_retired_name_are_still_taken_in(db: Database[Any]) -> None:
    declare(db, "a", "b")
    declare(db, "a")

    Queue(db).enqueue("b", {})


def test_a_name_that_is_declared_again_is_back(db: Database[Any]) -> None:
    declare(db, "a", "b")
    declare(db, "a")

    assert declare(db, "a", "b") == 1
    assert list_registered_names(db) == {"a", "b"}


def test_other_packages_are_left_alone(db: Database[Any]) -> None:
    declare(db, "a", package="tasks")

    assert declare(db, "b", package="reports") == 1

    assert list_registered_names(db) == {"a", "b"}


def test_a_name_that_two_packages_declare_is_written_by_one_of_them(db: Database[Any]) -> None:
    declare(db, "a", package="tasks")

    assert declare(db, "a", package="reports") == 0
    declare(db, "c", package="reports")
    assert list_registered_names(db) == {"a", "c"}


def test_a_name_that_one_of_two_packages_drops_is_back_when_the_other_starts(db: Database[Any]) -> None:
    declare(db, "a", package="tasks")
    declare(db, package="tasks")
    assert list_registered_names(db) == frozenset()

    declare(db, "a", package="reports")
    declare(db, package="tasks")

    assert list_registered_names(db) == {"a"}


def test_a_type_that_an_older_release_declared_gets_its_package(db: Database[Any]) -> None:
    declare(db, "a")
    db.task_types.update_one({}, {"$unset": {"package": ""}})

    assert (declare(db, "a"), declare(db, "a")) == (1, 0)
