"""Faults that a real server is told to have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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
