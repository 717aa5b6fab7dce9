"""`tidemill ops queue`: how full queues are and what they choose, on a database."""

from __future__ import annotations

from typing import Any

import pytest
from pymongo.database import Database

from tests.builders import add, document
from tests.unit.cli.conftest import CommandLine
from tidemill.clock import ServerClock
from tidemill.control import queues, task_types
from tidemill.control.queues import load_options
from tidemill.model import Adaptive, Budget, Pressure, QueueOptions
from tidemill.store.connection import Tasks


@pytest.fixture
def eu(db: Database[Any]) -> str:
    queues.declare_queue(db, "eu", now=ServerClock(db).now())
    return "eu"


def test_ls_has_the_queues_of_all_pages(operator: CommandLine, db: Database[Any]) -> None:
    names = [f"q{number:03}" for number in range(230)]
    db["queues"].insert_many({"_id": name} for name in names)

    assert [row.split()[0] for row in operator.done("ops", "queue", "ls").lines[2:]] == ["default", *names]
    answer = operator.done("ops", "queue", "ls", "--json").json
    assert ([one["queue"] for one in answer["queues"]], answer["next"]) == (["default", *names], None)


def test_numbers_are_read_as_shells_write_them(operator: CommandLine, db: Database[Any]) -> None:
    pressure = {"adaptive": {"scale": 20.0, "max_sec": 60.0}, "budget": {"per_minute": 50.0, "factor": 2.0}}
    db["queues"].insert_one({"_id": "eu", "max_in_flight_retries": 3.0, "pressure": pressure})

    assert operator.done("ops", "queue", "status", "eu").lines[-3:] == [
        "retries in flight  at most 3",
        "adaptive back-off  delay x (1 + due tasks / 20), up to 60 s",
        "retry budget       delay x 2 after 50 retries in a minute",
    ]


@pytest.mark.parametrize("typo", ["defalt", "eu-centrl", "python-olny"])
def test_a_name_that_is_nearly_one_is_guessed(
    operator: CommandLine, db: Database[Any], tasks: Tasks, typo: str
) -> None:
    add(tasks, [document(ServerClock(db).now(), queue="python-only")])
    queues.declare_queue(db, "eu-central", now=ServerClock(db).now())
    meant = {"defalt": "default", "eu-centrl": "eu-central", "python-olny": "python-only"}[typo]

    assert operator.refused("ops", "queue", "status", typo) == f"queue: there is no queue {typo}, did you mean {meant}?"
    assert operator.refused("ops", "queue", "pause", typo) == (
        f"queue: is not declared, did you mean {meant}? If not, run `tidemill ops queue declare {typo}` once"
    )


def test_a_queue_is_declared(operator: CommandLine, db: Database[Any]) -> None:
    said = operator.done("ops", "queue", "declare", "eu")

    assert said.out == f"queue eu of {db.name} is declared\n"
    assert "eu" in task_types.Directory(db).read_declarations().queues


def test_set_stores_what_was_given_and_tells_all_that_holds(operator: CommandLine, db: Database[Any], eu: str) -> None:
    said = operator.done(
        "ops", "queue", "set", eu, "--selection", "weighted", "--retry-share", "0.25", "--max-in-flight-retries", "9",
        "--adaptive", "on", "--adaptive-scale", "20", "--adaptive-cap", "90.5",
        "--budget", "on", "--budget-per-minute", "50", "--budget-factor", "1.5",
    )  # fmt: skip

    assert load_options(db, eu) == QueueOptions(
        selection="weighted",
        retry_share=0.25,
        max_in_flight_retries=9,
        pressure=Pressure(adaptive=Adaptive(scale=20, max_sec=90.5), budget=Budget(per_minute=50, factor=1.5)),
    )
    assert said.lines == [
        f"queue eu of {db.name} now has (running executors see it within 5 s):",
        "",
        "selection          weighted",
        "retry share        0.25",
        "retries in flight  at most 9",
        "adaptive back-off  delay x (1 + due tasks / 20), up to 90.5 s",
        "retry budget       delay x 1.5 after 50 retries in a minute",
        "paused             no",
    ]


def test_a_second_set_keeps_the_first(operator: CommandLine, db: Database[Any]) -> None:
    operator.done("ops", "queue", "set", "default", "--retry-share", "0.25", "--max-in-flight-retries", "9")
    operator.done("ops", "queue", "set", "default", "--retry-share", "deployment", "--adaptive", "on")

    assert load_options(db, "default") == QueueOptions(max_in_flight_retries=9, pressure=Pressure(adaptive=Adaptive()))


@pytest.mark.parametrize(
    ("option", "value", "sentence"),
    [
        ("--retry-share", "1.5", "--retry-share: must be a number from 0 to 1"),
        ("--adaptive-cap", "inf", "--adaptive-cap: must be a number above 0, up to 7 days"),
    ],
)
def test_a_value_out_of_range_changes_nothing(
    operator: CommandLine, db: Database[Any], option: str, value: str, sentence: str
) -> None:
    assert operator.refused("ops", "queue", "set", "default", option, value) == sentence
    assert load_options(db, "default") == QueueOptions()


@pytest.mark.parametrize("command", [("set", "us", "--budget", "on"), ("pause", "us"), ("resume", "us")])
def test_a_queue_that_is_not_declared_is_not_changed(
    operator: CommandLine, db: Database[Any], command: tuple[str, ...]
) -> None:
    sentence = "queue: is not declared: run `tidemill ops queue declare us` once"
    assert operator.refused("ops", "queue", *command) == sentence
    assert db["queues"].find_one({"_id": "us"}) is None


def test_pause_and_resume_leave_the_other_choices(operator: CommandLine, db: Database[Any], eu: str) -> None:
    operator.done("ops", "queue", "set", eu, "--retry-share", "0.5")

    paused = operator.done("ops", "queue", "pause", eu)
    assert load_options(db, eu) == QueueOptions(paused=True, retry_share=0.5)
    resumed = operator.done("ops", "queue", "resume", eu)
    assert load_options(db, eu) == QueueOptions(paused=False, retry_share=0.5)

    assert paused.out == (
        f"queue eu of {db.name} is paused: it takes new tasks and starts none (running executors see it within 5 s)\n"
    )
    assert resumed.out == f"queue eu of {db.name} is open (running executors see it within 5 s)\n"


def test_a_queue_that_holds_tasks_can_be_paused_without_opening_it_to_http(
    operator: CommandLine, db: Database[Any], tasks: Tasks
) -> None:
    add(tasks, [document(ServerClock(db).now(), queue="python-only")])

    operator.done("ops", "queue", "pause", "python-only")

    assert load_options(db, "python-only") == QueueOptions(paused=True)
    assert "python-only" not in task_types.Directory(db).read_declarations().queues
    operator.done("ops", "queue", "declare", "python-only")
    assert "python-only" in task_types.Directory(db).read_declarations().queues
    assert load_options(db, "python-only") == QueueOptions(paused=True)
