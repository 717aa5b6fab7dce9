"""The functions, with task functions for each outcome, on a database of the test's own."""

from __future__ import annotations

from typing import Any

import pymongo
import pytest
from pymongo.database import Database

from tests.golden.scenarios import World
from tests.handlers.conftest import Deployed, bare  # noqa: F401 - a fixture
from tidemill import Queue
from tidemill.clock import ServerClock
from tidemill.control.declarer import declare_types
from tidemill.registry import load
from tidemill.testing import Mongod

PACKAGE = "tests.golden.golden_tasks"


@pytest.fixture
def world(bare: Deployed, mongod: Mongod, db: Database[Any]) -> World:  # noqa: F811
    bare.set(MONGODB_URI=mongod.uri, MONGODB_DATABASE=db.name, LINGER_SEC="0", TASK_PACKAGE=PACKAGE)
    bare.set(RETRY_SHARE="0.25")  # of 16 slots always 4, whatever is drawn
    declare_types(db, load(PACKAGE), package=PACKAGE, release="", now=ServerClock(db).now())
    client: Any = pymongo.MongoClient(mongod.uri, tz_aware=True)  # whose commands are seen
    return World(functions=bare, db=db, queue=Queue(client[db.name]))
