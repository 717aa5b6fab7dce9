"""Where failures are tried out: a database, clients whose commands can fail, and one whose commands never do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final
from unittest.mock import patch

import pymongo
import pytest
from pymongo import MongoClient, common
from pymongo.database import Database

from tests.databases import ALL_BUT_THE_MARK, make
from tests.fixtures import ManualClock
from tests.handlers.conftest import Deployed
from tests.shelves import Shelf
from tidemill import indexes
from tidemill.bootstrap import deployment
from tidemill.documents import CONTROL, QUEUES, TASK_TYPES
from tidemill.executor.lifetime import TIMING, Timing
from tidemill.store.mark import require_mark
from tools.chaos.failures.injector import Injector
from tools.chaos.failures.road import Road

APPNAME: Final = "failures"
PATIENT_SEC: Final = 8.0
"""What an operation may take where a fault passes."""

HASTY_SEC: Final = 0.2
"""And where it does not, so that nobody waits long for nothing."""

LIFETIME: Final = "transactionLifetimeLimitSeconds"
"""How long a server keeps a transaction of somebody who has gone, or whose command came late: a minute, by itself."""

LOOK_SEC: Final = 0.02
"""How often the driver looks for its server: with its own half a second a run would mostly wait."""


@dataclass(kw_only=True)
class World:
    """What a use case finds. ``db`` is the database through the client that it is to use, ``sound`` without faults.

    ``is_hasty`` says that what fails, fails for good: ``db`` and the functions give up early. ``kept`` is for what a
    case has to remember.
    """

    sound: Database[dict[str, Any]]
    patient: Database[dict[str, Any]]
    hasty: Database[dict[str, Any]]
    functions: Deployed
    environment: pytest.MonkeyPatch
    injector: Injector
    clock: ManualClock = field(default_factory=ManualClock)
    is_hasty: bool = False
    is_well: bool = False
    shelf: Shelf = field(default_factory=Shelf)
    ran: list[str] = field(default_factory=list)
    kept: dict[str, Any] = field(default_factory=dict)

    @property
    def db(self) -> Database[dict[str, Any]]:
        """The database as the use case has it."""
        if self.is_well:
            return self.sound
        return self.hasty if self.is_hasty else self.patient

    @property
    def patience_sec(self) -> float:
        """What an operation may take."""
        return HASTY_SEC if self.is_hasty and not self.is_well else PATIENT_SEC

    def start_over(self, *, hasty: bool) -> None:
        """Empty it."""
        for name in (*indexes.COLLECTIONS, TASK_TYPES, QUEUES, CONTROL):
            self.sound[name].delete_many(ALL_BUT_THE_MARK)
        require_mark(self.sound)
        self.clock.at = ManualClock().at
        self.is_hasty, self.is_well = hasty, False
        self._be_patient()
        self.shelf = Shelf()
        self.ran.clear()
        self.kept.clear()

    @contextmanager
    def well(self) -> Iterator[None]:
        """Let nothing fail inside, and nobody be in a hurry."""
        self.is_well = True
        self._be_patient()
        try:
            yield
        finally:
            self.is_well = False
            self._be_patient()

    def _be_patient(self) -> None:
        """Let those who say for themselves what an operation may take say the same as everybody."""
        self.functions.request_budget_sec = self.patience_sec
        self.functions.timing = self.timing

    @property
    def timing(self) -> Timing:
        """The times of executors."""
        return replace(
            TIMING,
            step_timeout_sec=self.patience_sec,
            executor_slot_timeout_sec=self.patience_sec,
            successor_timeout_sec=self.patience_sec,
            report_reserve_sec=min(TIMING.report_reserve_sec, self.patience_sec),
        )


@contextmanager
def opened(uri: str) -> Iterator[World]:
    """Open a world on a server that is nobody else's."""
    with (
        patch.object(common, "MIN_HEARTBEAT_INTERVAL", LOOK_SEC),
        pytest.MonkeyPatch.context() as environment,
        MongoClient[dict[str, Any]](uri, tz_aware=True, w="majority") as sound,
        _short_transactions(sound),
        _road(uri) as road,
    ):
        injector = Injector(sound, road)
        often = {"heartbeatFrequencyMS": LOOK_SEC * 1000, "event_listeners": [injector]}
        options: dict[str, Any] = {"appname": APPNAME, "tz_aware": True, "w": "majority", **often}
        make_client = pymongo.MongoClient
        with (
            make_client(road.uri, timeoutMS=PATIENT_SEC * 1000, **options) as patient,
            make_client(road.uri, timeoutMS=HASTY_SEC * 1000, **options) as hasty,
        ):
            db = make(sound)
            environment.setattr(pymongo, "MongoClient", lambda *args, **own: make_client(*args, **own | often))
            functions = Deployed(environment)
            functions.set(MONGODB_URI=road.uri, MONGODB_DATABASE=db.name, LINGER_SEC="0")
            _ = deployment().queue  # whose database it is, is asked once by a client, and by no use case
            try:
                yield World(
                    sound=db,
                    patient=patient[db.name],
                    hasty=hasty[db.name],
                    functions=functions,
                    environment=environment,
                    injector=injector,
                )
            finally:
                functions.cool_down()


@contextmanager
def _short_transactions(client: MongoClient[Any]) -> Iterator[None]:
    before = client.admin.command({"getParameter": 1, LIFETIME: 1})[LIFETIME]
    client.admin.command({"setParameter": 1, LIFETIME: 1})
    try:
        yield
    finally:
        client.admin.command({"setParameter": 1, LIFETIME: before})


@contextmanager
def _road(uri: str) -> Iterator[Road]:
    road = Road(uri)
    try:
        yield road
    finally:
        road.close()
