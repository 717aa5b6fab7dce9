"""A MongoDB for the tests of the embedded MongoDB: none is given, and production's address is ignored."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.public_api.mongod.mongods import TEST_URI
from tidemill.testing import Mongod


@pytest.fixture(autouse=True)
def no_given_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TEST_URI, raising=False)


@pytest.fixture(scope="module")
def server() -> Iterator[Mongod]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(TEST_URI, raising=False)
        patch.setenv("MONGODB_URI", "mongodb://production.example.com/")
        with Mongod() as server:
            yield server
