"""Why MongoDB was not reached, by the real driver: nothing of the URI is in it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from pymongo import MongoClient

from tidemill.errors import UnavailableError
from tidemill.store.connection import explain_unreached, run_server_command, translate_errors
from tidemill.testing import Mongod


@contextmanager
def silence() -> Iterator[str]:
    """The address of somebody who accepts and never says anything."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def told(uri: str) -> str:
    with (
        MongoClient[dict[str, Any]](uri, serverSelectionTimeoutMS=300, connectTimeoutMS=300) as client,
        pytest.raises(UnavailableError) as caught,
        translate_errors(),
    ):
        run_server_command(client["db"], "ping")
    assert "S3cr3t" not in str(caught.value)
    assert "127.0.0.1" not in str(caught.value)
    return str(caught.value)


def test_a_server_that_is_none_is_told_by_its_reason(mongod: Mongod) -> None:
    there = urlsplit(mongod.uri).netloc

    assert "connection refused" in told("mongodb://user:S3cr3t@127.0.0.1:9/?authSource=admin")
    assert "the name of the host is not known" in told("mongodb://user:S3cr3t@no-such-host.invalid/")
    assert "TLS failed" in told(f"mongodb://{there}/?tls=true")
    assert "no member belongs to the replicaSet" in told(f"mongodb://{there}/?replicaSet=another")
    with silence() as address:
        assert "check firewalls" in told(f"mongodb://{address}/")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("No primary available for writes, Timeout: 5s", "no primary now"),
        ("Could not reach any servers in [('mongo1', 27017)]. Replica set is configured with internal", "names that"),
    ],
)
def test_what_takes_a_replica_set_to_happen_is_known_by_the_drivers_words(text: str, words: str) -> None:
    assert words in explain_unreached(text)
