"""Declared task types: which names there are, and which there are no longer."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from pymongo.database import Database

from tests.fixtures import T0
from tidemill.client import Queue
from tidemill.control.declarer import Declarer, declare_types
from tidemill.control.task_types import list_registered_names, read_registrations
from tidemill.module_faults import Fault
from tidemill.registry import Registry

DAY = timedelta(days=1)


BROKEN = Fault(module="tasks.bills", file="tasks/bills.py", line=3, problem="it cannot be imported")


def refused(name: str) -> Fault:
    return Fault(module="tasks.mails", file="tasks/mails.py", line=7, problem="its timeout is too long", name=name)


def types(*names: str) -> Registry:
    registry = Registry()
    for name in names:
        registry.task(name)(lambda payload: payload)
    return registry


def declare(db: Database[Any], *names: str, package: str = "tasks", day: int = 0, faults: Sequence[Fault] = ()) -> int:
    return declare_types(db, types(*names), package=package, release=str(day), faults=faults, now=T0 + day * DAY)


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


def test_a_package_with_a_failed_module_retires_nothing_and_names_the_fault(db: Database[Any]) -> None:
    declare(db, "a", "b", "c")
    declare(db, "other", package="reports")

    assert declare(db, "a", day=1, faults=[BROKEN]) == 2

    found = read_registrations(db)
    assert found.names == list_registered_names(db) == {"a", "b", "c", "other"}
    assert found.faults.keys() == {"b", "c"}
    assert (found.faults["b"].problem, found.faults["b"].release, found.faults["b"].at) == (
        "tasks/bills.py:3: it cannot be imported", "1", T0 + DAY
    )  # fmt: skip
    assert declare(db, "a", day=1, faults=[BROKEN]) == 0


def test_a_refused_registration_keeps_its_name_and_no_other(db: Database[Any]) -> None:
    declare(db, "a", "b", "c")

    declare(db, "a", day=1, faults=[refused("b")])

    found = read_registrations(db)
    assert found.names == {"a", "b"}
    assert found.faults.keys() == {"b"}


def test_a_name_that_was_refused_from_the_start_is_known_by_its_fault_alone(db: Database[Any]) -> None:
    declare(db, "a", faults=[refused("b")])

    found = read_registrations(db)
    assert found.names == list_registered_names(db) == {"a"}
    assert found.faults["b"].problem == "tasks/mails.py:7: its timeout is too long"
    assert declare(db, "a", faults=[refused("b")]) == 0


def test_a_registration_without_the_fault_removes_it(db: Database[Any]) -> None:
    declare(db, "a", faults=[refused("b")])

    assert declare(db, "a", "b", day=1) == 1

    found = read_registrations(db)
    assert found.names == {"a", "b"}
    assert found.faults == {}


def test_a_fault_is_not_written_to_the_type_of_another_package(db: Database[Any]) -> None:
    declare(db, "a", package="reports")

    assert declare(db, faults=[refused("a"), BROKEN]) == 0

    assert read_registrations(db).faults == {}


def test_types_wait_while_they_may_be_missing_because_of_a_fault(db: Database[Any]) -> None:
    declare(db, "a", "b")
    declare(db, "other", package="reports")

    def waits(*faults: Fault) -> list[str]:
        declarer = Declarer(db, types("a"), package="tasks", release="1", faults=faults)
        declarer.declare_if_due(now=T0)
        return [name for name in ("a", "b", "other", "c", "never") if declarer.has_fault(name)]

    assert waits(BROKEN) == ["b"]
    assert waits(refused("c")) == ["c"]
    assert waits(BROKEN, refused("c")) == ["b", "c"]
    assert waits() == []
    assert waits(BROKEN) == ["b", "c"]  # retired by then, and perhaps in the module that fails


def test_a_fault_that_somebody_edited_by_hand_is_left_out(db: Database[Any]) -> None:
    declare(db, "a")
    db.task_types.update_one({"_id": "a"}, {"$set": {"fault": {"problem": 7}}})

    assert read_registrations(db).faults == {}
    assert declare(db, "a", day=1) == 1
