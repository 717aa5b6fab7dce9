"""A queue as the test of an application holds it, and functions of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database

from tidemill import Queue
from tidemill.registry import Registry
from tidemill.testing import Faults, Mongod


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.fixture
def queue(db: Database[Any]) -> Queue:
    """A queue by the clock of the database."""
    return Queue(db)


@pytest.fixture
def mortal(mongod: Mongod, db: Database[Any]) -> Iterator[Queue]:
    """A queue whose executors can be made to die."""
    with MongoClient[dict[str, Any]](mongod.uri, event_listeners=[Faults()], tz_aware=True) as client:
        yield Queue(client[db.name])
