"""A MongoDB of the drive's own that asks for passwords, as the one of a deployment does."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from pymongo import MongoClient
from pymongo.database import Database

from tidemill.testing import Mongod
from tidemill.testing.mongod import TEST_URI, find_mongod

NAME = "tidemill"
ROLES = ["readWrite", "dbAdmin"]
"""Roles that docs/start/deploy.md asks for."""

Documents: TypeAlias = Database[dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running MongoDB; *uri* names no user, and *admin* is one that may do everything."""

    pid: int | None
    uri: str
    admin: MongoClient[dict[str, Any]]

    @property
    def tidemill(self) -> Documents:
        """The database of the tasks."""
        return self.admin[NAME]

    def add_user(self, name: str) -> str:
        """Make a user with the rights that a deployment needs; return the URI for it."""
        password = secrets.token_urlsafe(24)
        self.tidemill.command("createUser", name, pwd=password, roles=ROLES)
        return f"{self.uri.replace('://', f'://{name}:{password}@')}&authSource={NAME}"

    def drop_user(self, name: str) -> None:
        """Remove a user: its open connections may do nothing from then on."""
        self.tidemill.command("dropUser", name)


@contextmanager
def start_server(folder: Path) -> Iterator[Server]:
    """Start MongoDB for the block; *folder* takes the key that its members would share."""
    os.environ.pop(TEST_URI, None)  # such a server asks for no passwords
    key = folder / "mongod.key"
    key.write_text(secrets.token_hex(32))
    key.chmod(stat.S_IRUSR)
    binary = folder / "mongod"
    binary.write_text(f'#!/bin/sh\nexec "{find_mongod()}" "$@" --keyFile "{key}"\n')
    binary.chmod(stat.S_IRWXU)
    password = secrets.token_urlsafe(24)
    with Mongod(binary=binary) as mongod:
        with MongoClient[dict[str, Any]](mongod.uri) as first:
            first.admin.command("createUser", "admin", pwd=password, roles=["root"])
        with MongoClient[dict[str, Any]](mongod.uri, username="admin", password=password, tz_aware=True) as admin:
            yield Server(pid=mongod.pid, uri=mongod.uri, admin=admin)
