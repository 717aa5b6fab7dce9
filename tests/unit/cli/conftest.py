"""The command line in this process: its `main`, on the test's database."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from pymongo.database import Database

from tidemill import bootstrap
from tidemill.cli import main
from tidemill.cli.database import database
from tidemill.testing import Mongod


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What a command left behind."""

    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class CommandLine:
    """Runs commands and keeps what they print, up to 100 columns wide."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *arguments: str) -> Said:
        self._capsys.readouterr()
        status = main(arguments)
        out, err = self._capsys.readouterr()
        return Said(status=status, out=out, err=err)

    def done(self, *arguments: str) -> Said:
        """Run a command that has to succeed."""
        said = self(*arguments)
        assert (said.status, said.err) == (0, "")
        return said

    def refused(self, *arguments: str) -> str:
        """Return the one line with which a command has to fail."""
        said = self(*arguments)
        assert (said.status, said.out) == (1, "")
        assert said.err.startswith("tidemill: ")
        assert said.err.count("\n") == 1
        return said.err.removeprefix("tidemill: ").rstrip("\n")


@pytest.fixture
def tidemill(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[CommandLine]:
    """The command line where nothing says where a database is."""
    for name in ("MONGODB_URI", "MONGODB_SECRET_ARN", "MONGODB_DATABASE", "RETRY_POLICY", "ARCHIVE_BUCKET"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    _forget()
    yield CommandLine(capsys)
    _forget()


@pytest.fixture
def operator(
    tidemill: CommandLine, monkeypatch: pytest.MonkeyPatch, mongod: Mongod, db: Database[Any]
) -> Iterator[CommandLine]:
    """The command line on the test's database, where an executor has registered something."""
    db["task_types"].insert_one({"_id": "registered"})
    monkeypatch.setenv("MONGODB_URI", mongod.uri)
    monkeypatch.setenv("MONGODB_DATABASE", db.name)
    yield tidemill
    database().client.close()


def _forget() -> None:
    for cached in (bootstrap.chosen, bootstrap.database, bootstrap.put):
        cached.cache_clear()
