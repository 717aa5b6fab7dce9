"""What tests of single operations share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database

from tidemill.store import Tasks, open_tasks
from tidemill.testing import Mongod


@pytest.fixture
def mine(mongod: Mongod, db: Database[Any]) -> Iterator[Tasks]:
    """The tasks through a client of their own, whose commands can be made to fail."""
    with MongoClient[dict[str, Any]](mongod.uri, appname=db.name, heartbeatFrequencyMS=500, tz_aware=True) as client:
        yield open_tasks(client[db.name])
