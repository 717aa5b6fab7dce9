"""Faults that a real server is told to have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pymongo import MongoClient

from tidemill.store import Tasks


@contextmanager
def failing(tasks: Tasks, *commands: str, times: int = 1, **how: Any) -> Iterator[None]:
    """Let *commands* fail *times* times, where the client of *tasks* sends them (told by its appname).

    *how* is of the server's failCommand: ``closeConnection=True``, ``errorCode=...``, ``writeConcernError=...``.
    """
    client = tasks.database.client
    data = {"failCommands": list(commands), "appName": client.options.pool_options.appname, **how}
    client.admin.command("configureFailPoint", "failCommand", mode={"times": times}, data=data)
    try:
        yield
    finally:
        client.admin.command("configureFailPoint", "failCommand", mode="off")


@contextmanager
def enqueue_failing(client: MongoClient[Any], *commands: str, times: int | None = None, **how: Any) -> Iterator[None]:
    """Let the server fail *commands* of the enqueue function, the first *times* of them or all."""
    data = {"failCommands": list(commands), "appName": "tidemill-enqueue"} | how
    mode = "alwaysOn" if times is None else {"times": times}
    client.admin.command("configureFailPoint", "failCommand", mode=mode, data=data)
    try:
        yield
    finally:
        client.admin.command("configureFailPoint", "failCommand", mode="off")
