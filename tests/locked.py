"""A MongoDB that lets nobody in without a password, and lets each do what a role of theirs says."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pymongo import MongoClient

from tidemill.testing import Mongod
from tidemill.testing.mongod import find_mongod


@dataclass(frozen=True)
class Locked:
    """The server, and a client that may do everything there."""

    uri: str
    admin: MongoClient[dict[str, Any]]

    def add(
        self, user: str, password: str, *, roles: Sequence[Any] = ("readWriteAnyDatabase", "dbAdminAnyDatabase")
    ) -> str:
        """Make a user; return the URI for it."""
        self.admin.admin.command("createUser", user, pwd=password, roles=list(roles))
        return self.of(user, password)

    def of(self, user: str, password: str) -> str:
        """The URI for a user."""
        return self.uri.replace("://", f"://{user}:{password}@") + "&authSource=admin"

    def cut(self, role: str) -> None:
        """Have the next command of a function's clients cost it its connection, as a fail-over or a long idle does."""
        commands = ["find", "aggregate", "update", "findAndModify", "insert", "listIndexes", "distinct"]
        fails = {"closeConnection": True, "appName": f"tidemill-{role}", "failCommands": commands}
        self.admin.admin.command("configureFailPoint", "failCommand", mode={"times": 1}, data=fails)


@contextmanager
def locked_mongod(folder: Path) -> Iterator[Locked]:
    """Start one, with what it needs in *folder*."""
    key = folder / "key"
    key.write_text("anyTextThatTheMembersOfTheSetShare")
    key.chmod(stat.S_IRUSR)
    binary = folder / "mongod"
    binary.write_text(f'#!/bin/sh\nexec "{find_mongod()}" "$@" --keyFile "{key}"\n')
    binary.chmod(0o755)
    with Mongod(binary=binary) as server:
        with MongoClient[dict[str, Any]](server.uri) as first:
            first.admin.command("createUser", "admin", pwd="admin", roles=["root"])
        with MongoClient[dict[str, Any]](server.uri, username="admin", password="admin") as admin:
            yield Locked(server.uri, admin)
