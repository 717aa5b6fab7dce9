"""``tidemill work``: what it refuses before it begins."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from pymongo.database import Database

from tests.unit.cli.conftest import CommandLine
from tidemill import UnavailableError
from tidemill.cli.work import _leave, _require_indexes
from tidemill.executor.report import Report


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--queue", "e u"), "--queue: use up to 63 letters, digits, _ . and -"),
        (("--queue", ""), "--queue: use up to 63 letters, digits, _ . and -"),
        (("--lane", "slow"), "--lane: 'slow' is not one of 'fresh', 'retry'"),
        (("--selection", "newest_first"), "--selection: 'newest_first' is not one of"),
        (("--concurrency", "0"), "--concurrency: must be a whole number from 1 to 256"),
        (("--concurrency", "257"), "--concurrency: must be a whole number from 1 to 256"),
        (("--concurrency", "1e2"), "--concurrency: must be a whole number from 1 to 256"),
        (("--tasks", ""), "--tasks: must be the name of a Python package"),
        (("--tasks", "./tasks"), "--tasks: must be the name of a Python package"),
        (("--batch-size", "many"), "--batch-size: must be a whole number from 1 to 1000"),
        (("--until",), "there is no option --until, did you mean --until-empty?"),
        (("now",), "got unexpected extra argument (now)"),
    ],
)
def test_an_option_that_cannot_be_is_refused_with_what_can(
    tidemill: CommandLine, arguments: tuple[str, ...], complaint: str
) -> None:
    said = tidemill("work", *arguments)

    assert (said.status, said.out) == (2, "")
    assert said.err.startswith("Usage: tidemill")
    assert complaint in said.err


def test_help_is_given_without_a_database(tidemill: CommandLine) -> None:
    assert tidemill.done("work", "--help").out.startswith("Usage: tidemill work")


def test_without_an_address_the_variable_is_named(tidemill: CommandLine) -> None:
    assert tidemill.refused("work") == "MONGODB_URI is missing: set it, or MONGODB_SECRET_ARN"


def test_a_setting_that_cannot_be_is_refused(tidemill: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONCURRENCY", "all")

    assert tidemill.refused("work") == "CONCURRENCY must be a whole number from 1 to 256"


@pytest.mark.parametrize(
    ("package", "complaint"),
    [
        ("taskz", "there is no package taskz where Python looks: `tidemill work` looks in the current folder, too"),
        ("string", "string is a single module: task modules are the files of a package"),
    ],
)
def test_a_package_that_is_none_is_named(operator: CommandLine, package: str, complaint: str) -> None:
    assert complaint in operator.refused("work", "--tasks", package)


def test_a_database_without_its_indexes_is_told_how_to_get_them(operator: CommandLine, db: Database[Any]) -> None:
    db["tasks"].drop_index("owners")

    refusal = operator.refused("work")

    assert refusal == "an index of tasks is missing: run `tidemill indexes` once, then try again"


def test_a_worker_needs_no_index_that_is_there_for_removing(db: Database[Any]) -> None:
    db["tasks"].drop_index("retention")

    _require_indexes(db)


def test_outcomes_that_were_not_confirmed_are_a_failure() -> None:
    report = Report()
    _leave(report, threading.enumerate())  # with nothing to complain of

    report["unknown"] = 3
    with pytest.raises(UnavailableError, match="MongoDB did not confirm the outcome of 3 tasks"):
        _leave(report, threading.enumerate())


def test_a_server_that_is_not_there_is_told_without_its_address(
    operator: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MONGODB_URI", "mongodb://user:s3cret@127.0.0.1:9/")

    assert operator.refused("work") == "MongoDB was not reached (connection refused: check the server and the port)"
