"""Faults that a real server is told to have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pymongo import MongoClient
from pymongo.database import Database
from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent

from tidemill.store.connection import Tasks


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


@contextmanager
def heard(db: Database[Any], listener: CommandListener) -> Iterator[Database[Any]]:
    """Yield *db* through a client of its own, whose commands *listener* hears."""
    assert db.client.address is not None
    with MongoClient[Any](*db.client.address, tz_aware=True, appname="heard", event_listeners=[listener]) as client:
        yield client[db.name]


class Afterwards(CommandListener):
    """Calls *do*, once or *always*, when a *command* of a client has succeeded: before that client sends another."""

    def __init__(self, command: str, do: Callable[[], object], *, always: bool = False) -> None:
        self._command: str | None = command
        self._do = do
        self._is_always = always

    def started(self, event: CommandStartedEvent) -> None:
        """Nothing is done about it."""

    def succeeded(self, event: CommandSucceededEvent) -> None:
        """Do it, if it is time to."""
        self._do_at(event)

    def _do_at(self, event: CommandStartedEvent | CommandSucceededEvent) -> None:
        if event.command_name == self._command:
            self._command = self._command if self._is_always else None
            self._do()

    def failed(self, event: CommandFailedEvent) -> None:
        """Nothing is done about it."""


class Beforehand(Afterwards):
    """Calls *do*, once or *always*, before a client sends a *command*."""

    def started(self, event: CommandStartedEvent) -> None:
        """Do it, if it is time to."""
        self._do_at(event)

    def succeeded(self, event: CommandSucceededEvent) -> None:
        """Nothing is done about it."""
