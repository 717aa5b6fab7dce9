"""The HTTP front on a real database, for requests without end."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from pymongo import MongoClient

from tests.handlers import calls
from tests.handlers.warm import cool_down
from tidemill import indexes
from tidemill.clock import ServerClock
from tidemill.control.declarer import declare_types
from tidemill.dev.gateway import Gateway
from tidemill.registry import load
from tidemill.testing import Mongod
from tools.fuzz.front import Front
from tools.fuzz.running import seconds
from tools.openapi import document


def pytest_configure() -> None:
    """Say at once, in a sentence, where FUZZ_SEC is no number."""
    seconds()


@pytest.fixture(scope="session")
def api() -> Mapping[str, Any]:
    """The OpenAPI document."""
    return document(calls.app("enqueue").app)


@pytest.fixture(scope="module")
def front(api: Mapping[str, Any], mongod: Mongod, client: MongoClient[dict[str, Any]]) -> Iterator[Front]:
    """The front, behind a gateway, on a database of its own."""
    db = client[f"test_{uuid.uuid4().hex}"]
    indexes.create(db)
    declare_types(db, load("tasks"), package="tasks", release="1", now=ServerClock(db).now())
    enqueue = calls.app("enqueue")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("MONGODB_URI", mongod.uri)
        environment.setenv("MONGODB_DATABASE", db.name)
        environment.setattr(enqueue.logger, "info", lambda *_, **__: None)  # a line for each would be all one saw
        cool_down()
        front = Front(handler=enqueue.lambda_handler, gateway=Gateway(enqueue.lambda_handler, api), db=db)
        try:
            front.fill()
            yield front
        finally:
            cool_down()
    client.drop_database(db.name)
