"""What every test may ask for: a real MongoDB, a database of its own, a clock it owns."""

from __future__ import annotations

import gc
import random
import signal
from collections.abc import Generator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from pymongo import MongoClient
from pymongo.database import Database

from tests.databases import Lender
from tidemill import TidemillError
from tidemill.documents import DEAD_LETTERS
from tidemill.store.connection import Tasks, open_tasks
from tidemill.testing import Mongod

# Properties hold however long a busy machine takes to try them.
settings.register_profile("patient", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

T0 = datetime(2031, 7, 1, 9, 0, tzinfo=UTC)  # ahead of the server, whose TTL monitor is awake


class ManualClock:
    """A clock that the test moves."""

    def __init__(self, at: datetime = T0) -> None:
        self.at = at

    def now(self) -> datetime:
        return self.at

    def move(self, span: timedelta) -> datetime:
        self.at += span
        return self.at


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Spare the garbage collector what was collected here: it stays, and is looked through for every test."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _signals_work() -> None:
    """Undo what nohup and a shell's ``&`` leave to all that is started under them."""
    for number, usual in ((signal.SIGHUP, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)


@pytest.fixture(scope="session")
def mongod() -> Iterator[Mongod]:
    server = Mongod()
    try:
        server.start()
    except TidemillError as error:
        pytest.exit(f"The tests need a real MongoDB. {error}", returncode=1)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def client(mongod: Mongod) -> Iterator[MongoClient[dict[str, Any]]]:
    with MongoClient[dict[str, Any]](mongod.uri, tz_aware=True) as client:
        yield client


@pytest.fixture(scope="session")
def lender(client: MongoClient[dict[str, Any]]) -> Lender:
    return Lender(client)


@pytest.fixture
def db(lender: Lender) -> Iterator[Database[dict[str, Any]]]:
    """An empty database with every index, for this test alone until its end."""
    with lender.lend() as database:
        yield database


@pytest.fixture
def tasks(db: Database[dict[str, Any]]) -> Tasks:
    return open_tasks(db)


@pytest.fixture
def mine(mongod: Mongod, db: Database[Any]) -> Iterator[Tasks]:
    """The tasks through a client of their own, whose commands can be made to fail."""
    with MongoClient[dict[str, Any]](mongod.uri, appname=db.name, heartbeatFrequencyMS=500, tz_aware=True) as client:
        yield open_tasks(client[db.name])


@pytest.fixture
def dead(db: Database[dict[str, Any]]) -> Tasks:
    return open_tasks(db, DEAD_LETTERS)


@pytest.fixture
def now() -> datetime:
    return T0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def rng() -> random.Random:
    return random.Random(20260701)
