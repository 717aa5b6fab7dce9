"""The command line, as an operator types it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database

from tidemill import indexes
from tidemill.testing import Mongod


def tidemill(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, with nothing in its environment but what is given."""
    env = {"PATH": os.environ["PATH"], **environment}
    command = [sys.executable, "-m", "tidemill.cli", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def where(mongod: Mongod, db: Database[Any]) -> dict[str, str]:
    return {"MONGODB_URI": mongod.uri, "MONGODB_DATABASE": db.name}


def test_indexes_makes_what_is_missing_and_says_so(db: Database[Any], where: dict[str, str]) -> None:
    db["tasks"].drop_index("claim")

    first, second = tidemill("indexes", **where), tidemill("indexes", **where)

    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout.splitlines() == ["making claim of tasks", "11 indexes are there, 1 of them new"]
    assert second.stdout.splitlines() == ["11 indexes are there, 0 of them new"]
    assert indexes.missing(db) == ()


def test_indexes_changes_the_retention(client: MongoClient[Any], db: Database[Any], where: dict[str, str]) -> None:
    tidemill("indexes", RETENTION_DAYS="1", **where)

    assert client[db.name]["tasks"].index_information()["retention"]["expireAfterSeconds"] == 86400


def test_declare_lets_a_queue_be_used(db: Database[Any], where: dict[str, str]) -> None:
    assert tidemill("declare", "eu", **where).stdout == "queue eu is declared\n"
    assert db["queues"].find_one({"_id": "eu"}) is not None


def test_a_queue_with_no_name_for_one_is_refused_in_a_sentence(where: dict[str, str]) -> None:
    refused = tidemill("declare", "e u", **where)

    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == "tidemill: queue: use up to 63 letters, digits, _ . and -\n"


def test_without_an_address_it_names_the_variable() -> None:
    refused = tidemill("indexes")

    assert refused.returncode == 1
    assert refused.stderr.startswith("tidemill: MONGODB_URI is missing")


def test_a_server_that_is_not_there_is_told_within_seconds_and_without_its_address() -> None:
    started = time.monotonic()
    refused = tidemill("indexes", MONGODB_URI="mongodb://user:s3cret@127.0.0.1:9/")

    assert refused.returncode == 1
    assert refused.stderr.count("\n") == 1
    assert "MongoDB did not answer in time" in refused.stderr
    assert "s3cret" not in refused.stderr
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("arguments", [(), ("idnexes",), ("declare",), ("indexes", "now")])
def test_what_is_not_understood_is_answered_with_the_usage(arguments: tuple[str, ...]) -> None:
    refused = tidemill(*arguments)

    assert refused.returncode == 2
    assert refused.stderr.startswith("usage: tidemill")
