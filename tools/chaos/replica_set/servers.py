"""A replica set of three servers on loopback, and what can be done to its members."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import psutil
import pymongo
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from tests.waiting import eventually
from tidemill.testing._mongod_guard import free_ports, select_last_lines
from tidemill.testing.mongod import FLAGS, choose_parent_folder, find_mongod
from tools.chaos.replica_set.stable import Stable

NAME: Final = "chaos"
MEMBERS: Final = 3
WHOLE_WITHIN_SEC: Final = 120.0
"""Bounds a hang: an election takes a second, and beside busy loops four."""

SETTINGS: Final = {
    "electionTimeoutMillis": 500,
    "heartbeatIntervalMillis": 100,
    "heartbeatTimeoutSecs": 1,
    "catchUpTimeoutMillis": 0,
}
"""So that a primary that is gone is replaced within a second, and not after ten."""


@dataclass(slots=True)
class Member:
    """One of the servers; *pid* is that of its present process."""

    port: int
    pid: int
    client: MongoClient[dict[str, Any]]

    def hello(self) -> dict[str, Any]:
        """Return what it says of itself; nothing where it does not answer."""
        with suppress(PyMongoError), pymongo.timeout(0.5):
            return dict(self.client.admin.command("hello"))
        return {}

    def is_primary(self) -> bool:
        """Tell whether it takes itself for the primary."""
        return bool(self.hello().get("isWritablePrimary"))

    def term(self) -> int:
        """Return the number of its last election; 0 where it does not answer."""
        with suppress(PyMongoError), pymongo.timeout(1):
            return int(self.client.admin.command("replSetGetStatus")["term"])
        return 0

    def has_ended(self) -> bool:
        """Tell whether its process is gone."""
        return not psutil.pid_exists(self.pid)


class ServerEndedError(Exception):
    """A server ended that nobody has killed: it does not come back, and no wait helps."""


class Servers:
    """The three of them, while this is open: nothing of them is left after it, or after this process."""

    def __init__(self) -> None:
        self._stable = Stable(choose_parent_folder())
        self._binary = str(find_mongod())
        self.members: list[Member] = []

    def __enter__(self) -> Self:
        try:
            for port in itertools.islice(_distinct(free_ports()), MEMBERS):
                client = MongoClient[dict[str, Any]](
                    "127.0.0.1", port, directConnection=True, serverSelectionTimeoutMS=500, heartbeatFrequencyMS=500
                )
                self.members.append(Member(port=port, pid=self._started(port), client=client))
            self._initiate()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill them."""
        self._stable.close()
        for member in self.members:
            member.client.close()

    @property
    def folder(self) -> Path:
        """A folder that goes with them."""
        return self._stable.folder

    @property
    def uri(self) -> str:
        """Where to connect."""
        hosts = ",".join(f"127.0.0.1:{member.port}" for member in self.members)
        return f"mongodb://{hosts}/?replicaSet={NAME}&heartbeatFrequencyMS=500"

    def primary(self) -> Member | None:
        """Return who takes itself for the primary now."""
        return next((member for member in self.members if member.is_primary()), None)

    def term(self) -> int:
        """Return how many elections there were, as the servers count them."""
        return max(member.term() for member in self.members)

    def signal(self, members: Sequence[Member], number: signal.Signals) -> None:
        """Send *number* to their processes."""
        for member in members:
            os.kill(member.pid, number)

    def restart(self, members: Sequence[Member]) -> None:
        """Start those whose processes have been killed."""
        for member in members:
            member.pid = self._started(member.port)

    def is_whole(self) -> bool:
        """Tell whether all agree on a primary, which knows that it is, and all others follow it."""
        hellos = [member.hello() for member in self.members]
        primaries = {hello.get("primary") for hello in hellos}
        states = sorted(_state(hello) for hello in hellos)
        return len(primaries) == 1 and states == ["primary", *["secondary"] * (MEMBERS - 1)]

    def wait_until_whole(self, *, within: float = WHOLE_WITHIN_SEC) -> None:
        """Return once it is whole.

        Raises:
            ServerEndedError: A server is gone; the message has the end of its log.
            TimeoutError: It does not get whole; the message has what each server says of itself.
        """
        end = time.monotonic() + within
        while not self.is_whole():
            self._require_processes()
            if time.monotonic() > end:
                states = ", ".join(f"{member.port} {_state(member.hello())}" for member in self.members)
                raise TimeoutError(f"the replica set was not whole within {within:g} s: {states}")
            time.sleep(0.05)

    def _require_processes(self) -> None:
        for member in self.members:
            if member.has_ended():
                log = (self.folder / str(member.port) / "log").read_text(errors="replace")
                raise ServerEndedError(f"the server on port {member.port} ended by itself: {select_last_lines(log)}")

    def _started(self, port: int) -> int:
        flags = (*FLAGS, "--replSet", NAME, "--oplogSize", "64", "--bind_ip", "127.0.0.1", "--port", str(port))
        return self._stable.start(str(port), [self._binary, *flags])

    def _initiate(self) -> None:
        for member in self.members:
            if not eventually(lambda member=member: bool(member.hello()), within=WHOLE_WITHIN_SEC):  # type: ignore[misc]
                raise TimeoutError(f"the server on port {member.port} did not answer")
        members = [{"_id": number, "host": f"127.0.0.1:{one.port}"} for number, one in enumerate(self.members)]
        config = {"_id": NAME, "members": members, "settings": SETTINGS}
        self.members[0].client.admin.command("replSetInitiate", config)
        self.wait_until_whole()


def _state(hello: Mapping[str, Any]) -> str:
    """Return what a server says that it is."""
    if not hello:
        return "does not answer"
    return "primary" if hello.get("isWritablePrimary") else "secondary" if hello.get("secondary") else "neither"


def _distinct(ports: Iterator[int]) -> Iterator[int]:
    seen: set[int] = set()
    for port in ports:
        if port not in seen:
            seen.add(port)
            yield port
