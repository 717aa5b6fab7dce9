"""Who does it all: kills, steps down and freezes primaries, restarts all servers, kills an executor each second."""

from __future__ import annotations

import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import pymongo
from pymongo.errors import PyMongoError

from tools.chaos.replica_set.boxes import Box
from tools.chaos.replica_set.servers import Member, Servers

FROZEN_SEC: Final = 2.0
"""Longer than an election takes: when it goes on, another one is the primary."""


class Nemesis:
    """Attacks the servers and the containers, until `stop`; *every* so many seconds the servers.

    Only a whole replica set is attacked: two of three servers at once would be more than a majority can bear.
    """

    def __init__(
        self, servers: Servers, *, executors: Sequence[Box], others: Sequence[Box], every: float, rng: random.Random
    ) -> None:
        self._servers = servers
        self._executors = executors
        self._others = others
        self._every = every
        self._rng = rng
        self._over = threading.Event()
        self._threads = [threading.Thread(target=one) for one in (self._attack_servers, self._attack_containers)]
        self.faults: Counter[str] = Counter()
        self.trouble: Exception | None = None

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Return when all servers are whole again and nobody is attacked any more."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        if self.trouble is not None:
            raise self.trouble

    def _attack_servers(self) -> None:
        ways: Sequence[Callable[[], str]] = (self._kill, self._step_down, self._freeze, self._restart_all)
        turn: list[Callable[[], str]] = []
        try:
            while not self._over.wait(self._every * self._rng.uniform(0.5, 1.0)):
                turn = turn or self._rng.sample(ways, len(ways))  # each kind comes as often as the others
                self.faults[turn.pop()()] += 1
                self._servers.wait_until_whole()
        except Exception as error:  # noqa: BLE001 - told by `stop`
            self.trouble = error

    def _attack_containers(self) -> None:
        while not self._over.wait(1.0):
            draw = self._rng.random()
            if draw < 0.15:
                box = self._rng.choice(self._others)
                self.faults[f"killed {box.function}"] += box.kill()
                continue
            box = self._rng.choice(self._executors)
            if draw < 0.35 and box.kill_child():
                self.faults["killed a child of an executor"] += 1
            else:
                self.faults["killed an executor"] += box.kill()

    def _kill(self) -> str:
        victim = self._primary()
        self._servers.signal([victim], signal.SIGKILL)
        self._over.wait(self._rng.uniform(0.5, 2.0))
        self._servers.restart([victim])
        return "killed the primary"

    def _step_down(self) -> str:
        victim = self._primary()
        is_forced = self._rng.random() < 0.5
        patience = 0 if is_forced else 2
        with suppress(PyMongoError), pymongo.timeout(5):
            victim.client.admin.command("replSetStepDown", 3, secondaryCatchUpPeriodSecs=patience, force=is_forced)
        return "stepped the primary down"

    def _freeze(self) -> str:
        victim = self._primary()
        self._servers.signal([victim], signal.SIGSTOP)
        self._over.wait(FROZEN_SEC + self._rng.uniform(0.0, 1.0))
        self._servers.signal([victim], signal.SIGCONT)
        return "froze the primary past the election"

    def _restart_all(self) -> str:
        everybody = self._servers.members
        self._servers.signal(everybody, signal.SIGKILL)
        self._over.wait(self._rng.uniform(0.0, 0.5))
        self._servers.restart(everybody)
        return "killed and restarted all servers"

    def _primary(self) -> Member:
        self._servers.wait_until_whole()
        primary = self._servers.primary()
        return primary or self._servers.members[0]
