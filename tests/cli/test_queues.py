"""`tidemill ops queue` and `stats`: what they change and select, on a database. Golden files show what they print."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pymongo.database import Database

from tests.builders import add, document
from tests.cli.conftest import CommandLine
from tidemill.cli.queues import build_changes
from tidemill.clock import ServerClock
from tidemill.control import queues, task_types
from tidemill.control.queues import load_options
from tidemill.model import Adaptive, Budget, Pressure, QueueOptions
from tidemill.store.connection import Tasks


def test_ls_has_the_queues_of_all_pages(operator: CommandLine, db: Database[Any]) -> None:
    names = [f"q{number:03}" for number in range(230)]
    db["queues"].insert_many({"_id": name} for name in names)

    assert [row.split()[0] for row in operator.done("ops", "queue", "ls").lines[2:]] == ["default", *names]
    answer = operator.done("ops", "queue", "ls", "--json").json
    assert ([view["queue"] for view in answer["queues"]], answer["next"]) == (["default", *names], None)


def test_numbers_are_read_as_shells_write_them(operator: CommandLine, db: Database[Any]) -> None:
    pressure = {"adaptive": {"scale": 20.0, "max_sec": 60.0}, "budget": {"per_minute": 50.0, "factor": 2.0}}
    db["queues"].insert_one({"_id": "eu", "max_in_flight_retries": 3.0, "pressure": pressure})

    assert operator.done("ops", "queue", "status", "eu").lines[-3:] == [
        "retries in flight  at most 3",
        "adaptive back-off  delay x (1 + due tasks / 20), up to 60 s",
        "retry budget       delay x 2 after 50 retries in a minute",
    ]


def test_a_cap_of_zero_is_shown_as_a_pause_of_retries(operator: CommandLine, db: Database[Any], tasks: Tasks) -> None:
    # S10
    now = ServerClock(db).now()
    add(tasks, [document(now, _id="again", lane="retry", attempts=1, due_at=now + timedelta(hours=1))])
    said = operator.done("ops", "queue", "set", "default", "--max-in-flight-retries", "0").out

    assert "0: retries are paused" in said
    assert operator.done("ops", "queue", "status").lines[0].endswith(" is open, but its retries are paused")
    assert operator.done("ops", "queue", "ls").lines[-1].endswith("retries paused")
    assert "the retries of queue default are paused" in operator("ops", "task", "retry", "again").err
    assert "Retries of queue default are paused" in operator.done("ops", "task", "explain", "again").out


@pytest.mark.parametrize(
    ("typo", "meant"),
    [("emial", "email"), ("defalt", "default"), ("eu-centrl", "eu-central"), ("python-olny", "python-only")],
)
def test_a_name_that_is_nearly_one_is_guessed(
    operator: CommandLine, db: Database[Any], tasks: Tasks, typo: str, meant: str
) -> None:
    add(tasks, [document(ServerClock(db).now(), queue="python-only")])
    for name in ("eu-central", "email"):
        queues.declare_queue(db, name, now=ServerClock(db).now())

    # A05
    assert f"did you mean {meant}?" in operator.refused("ops", "queue", "status", typo)
    assert operator.refused("ops", "queue", "pause", typo) == (
        f"queue: is not declared, did you mean {meant}? If not, run `tidemill ops queue declare {typo}` once"
    )


@pytest.mark.parametrize(
    ("given", "fields"),
    [
        ({}, {}),
        ({"selection": "retries_first"}, {"selection": "retries_first"}),
        ({"selection": "deployment"}, {"selection": None}),
        ({"retry_share": 0.0}, {"retry_share": 0.0}),
        ({"retry_share": "deployment"}, {"retry_share": None}),
        ({"max_in_flight_retries": 3}, {"max_in_flight_retries": 3}),
        ({"max_in_flight_retries": 0}, {"max_in_flight_retries": 0}),
        ({"max_in_flight_retries": "none"}, {"max_in_flight_retries": None}),
        ({"adaptive": "on"}, {"adaptive": {}}),
        ({"adaptive": "off"}, {"adaptive": None}),
        ({"adaptive_scale": 5}, {"adaptive": {"scale": 5}}),
        ({"adaptive": "on", "adaptive_max_sec": 9.5}, {"adaptive": {"max_sec": 9.5}}),
        ({"budget": "on", "budget_factor": 3.0}, {"budget": {"factor": 3.0}}),
        ({"budget": "off"}, {"budget": None}),
    ],
)
def test_what_is_given_becomes_the_fields_of_an_operation(given: dict[str, Any], fields: dict[str, Any]) -> None:
    assert build_changes(given) == fields


def test_options_are_stored_and_a_second_set_keeps_the_first(operator: CommandLine, db: Database[Any]) -> None:
    operator.done(
        "ops", "queue", "set", "default", "--selection", "weighted", "--retry-share", "0.25",
        "--max-in-flight-retries", "9", "--adaptive-scale", "20", "--adaptive-cap", "90.5",
    )  # fmt: skip
    operator.done("ops", "queue", "set", "default", "--retry-share", "deployment", "--budget-factor", "1.5")

    assert load_options(db, "default") == QueueOptions(
        selection="weighted",
        max_in_flight_retries=9,
        pressure=Pressure(adaptive=Adaptive(scale=20, max_sec=90.5), budget=Budget(factor=1.5)),
    )


@pytest.mark.parametrize(
    "command", ["set default --retry-share 1.5", "set us --budget on", "pause us", "resume us", "declare ."]
)
def test_what_is_refused_changes_nothing(operator: CommandLine, db: Database[Any], command: str) -> None:
    operator.refused("ops", "queue", *command.split())

    assert list(db["queues"].find()) == []


def test_pause_and_resume_leave_the_other_choices(operator: CommandLine, db: Database[Any]) -> None:
    operator.done("ops", "queue", "declare", "eu")
    operator.done("ops", "queue", "set", "eu", "--retry-share", "0.5")

    for action, paused in (("pause", True), ("resume", False)):
        operator.done("ops", "queue", action, "eu")
        assert load_options(db, "eu") == QueueOptions(paused=paused, retry_share=0.5)


def test_a_queue_that_holds_tasks_can_be_paused_without_opening_it_to_http(
    operator: CommandLine, db: Database[Any], tasks: Tasks
) -> None:
    add(tasks, [document(ServerClock(db).now(), queue="python-only")])

    operator.done("ops", "queue", "pause", "python-only")
    assert "python-only" not in task_types.Directory(db).read_declarations().queues

    operator.done("ops", "queue", "declare", "python-only")
    assert "python-only" in task_types.Directory(db).read_declarations().queues
    assert load_options(db, "python-only") == QueueOptions(paused=True)


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        (("--since", "30m"), []),
        (("--since", "2h"), ["default", "eu"]),
        ((), ["default", "eu"]),
        (("--queue", "eu"), ["eu"]),
    ],
)
def test_statistics_are_of_what_was_asked_for(
    operator: CommandLine, db: Database[Any], options: tuple[str, ...], seen: list[str]
) -> None:
    minute = (ServerClock(db).now() - timedelta(hours=1)).replace(second=0, microsecond=0)
    for queue in ("default", "eu"):
        key = {"queue": queue, "minute": minute, "name": "noop"}
        db["queue_stats"].insert_one({"_id": key, "minute": minute, "retry_runs": 8})

    rows = operator.done("ops", "stats", *options, "--json").json["statistics"]

    assert [row["queue"] for row in rows] == seen


def test_an_index_that_is_missing_is_told(operator: CommandLine, db: Database[Any]) -> None:
    db["queue_stats"].drop_index("retention")

    assert operator.refused("ops", "stats") == (
        "an index of queue_stats is missing: run `tidemill indexes` once, then try again"
    )
