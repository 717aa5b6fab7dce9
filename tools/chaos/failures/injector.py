"""Lets the n-th command that a use case sends fail, and those of its kind after it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Context
from dataclasses import dataclass
from typing import Any

from pymongo import MongoClient
from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent

from tools.chaos.failures.kinds import SLOW_MS, Kind
from tools.chaos.failures.naming import collection_of, named
from tools.chaos.failures.road import Road


@dataclass(frozen=True, slots=True, kw_only=True)
class Shot:
    """What is to fail: the *number*-th command, counted from 1, *times* times; ``None`` is always from then on."""

    number: int
    kind: Kind
    times: int | None


class Injector(CommandListener):
    """Sees the commands of clients, and has the server, or the road to it, fail them from the right one on.

    *admin* is a client that never fails. ``struck`` is the command that the last shot has hit, ``earlier`` are those
    that were sent before it.
    """

    def __init__(self, admin: MongoClient[Any], road: Road) -> None:
        self._admin = admin
        self._road = road
        self._sent: list[str] | None = None
        self._shot: Shot | None = None
        self._appname = ""
        self._before: int | None = None
        self._met = 0
        self.earlier: list[str] = []
        self.struck: str | None = None

    @contextmanager
    def listing(self) -> Iterator[list[str]]:
        """Give the list into which the commands are written, each with its collection."""
        sent: list[str] = []
        self._sent = sent
        try:
            yield sent
        finally:
            self._sent = None

    @contextmanager
    def shooting(self, shot: Shot, *, appname: str) -> Iterator[None]:
        """Let *shot* hit what is sent inside. On return everything is well again, and nothing under way."""
        self._start(shot, appname)
        try:
            yield
        finally:
            self._shot = None
            self._road.heal()
            if self._before is not None:
                self._met = self._configure("off") - self._before

    @property
    def hits(self) -> int:
        """How many commands the last shot has hit."""
        return self._met + self._road.hits

    def started(self, event: CommandStartedEvent) -> None:
        """Arm the fault where this is the command; the client sends it right after."""
        if self._sent is not None:
            self._sent.append(named(event))
        if self._shot is None:
            return
        if self.struck is not None:
            self._spoil(event, self._shot)
        elif len(self.earlier) + 1 == self._shot.number:
            self.struck = named(event)
            Context().run(self._arm, event, self._shot)  # in one without the deadline of the caller
        else:
            self.earlier.append(named(event))

    def succeeded(self, event: CommandSucceededEvent) -> None:
        """Nothing is done about it."""

    def failed(self, event: CommandFailedEvent) -> None:
        """Nothing is done about it."""

    def _start(self, shot: Shot, appname: str) -> None:
        self._shot, self._appname = shot, appname
        self._before, self._met = None, 0
        self.earlier, self.struck = [], None
        self._road.hits = 0

    def _arm(self, event: CommandStartedEvent, shot: Shot) -> None:
        if not shot.kind.is_met_by(event.command_name):
            return
        if shot.kind.way != "server":
            self._spoil(event, shot)
            return
        data: dict[str, Any] = {"failCommands": [event.command_name], "appName": self._appname, **shot.kind.how}
        collection = collection_of(event)
        if collection is not None:
            data["namespace"] = f"{event.database_name}.{collection}"
        self._before = self._configure("alwaysOn" if shot.times is None else {"times": shot.times}, data=data)

    def _spoil(self, event: CommandStartedEvent, shot: Shot) -> None:
        """Spoil a command on the road, if it has the name of the one that was hit, and there is a hit left."""
        is_meant = shot.kind.way != "server" and event.command_name == str(self.struck).split()[0]
        if is_meant and (shot.times is None or self._road.hits < shot.times):
            self._road.spoil(event.request_id, delay_sec=SLOW_MS / 1000 if shot.kind.way == "delay" else 0.0)

    def _configure(self, mode: object, **rest: Any) -> int:
        """Set the fail point; return how often it was met so far, by anybody."""
        answer = self._admin.admin.command("configureFailPoint", "failCommand", mode=mode, **rest)
        return int(answer["count"])
