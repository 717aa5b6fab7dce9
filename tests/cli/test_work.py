"""``tidemill work``: what it refuses before it begins."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from pymongo.database import Database

from tests.cli.conftest import CommandLine
from tidemill import UnavailableError
from tidemill.cli.work import leave, require_indexes
from tidemill.executor.context import Report


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

    require_indexes(db)


def test_outcomes_that_were_not_confirmed_are_a_failure() -> None:
    report = Report()
    leave(report, threading.enumerate())  # with nothing to complain of

    report["unknown"] = 3
    with pytest.raises(UnavailableError, match="MongoDB did not confirm the outcome of 3 tasks"):
        leave(report, threading.enumerate())


def test_a_server_that_is_not_there_is_told_without_its_address(
    operator: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MONGODB_URI", "mongodb://user:s3cret@127.0.0.1:9/")

    assert operator.refused("work") == "MongoDB was not reached (connection refused: check the server and the port)"
