"""A MongoDB that was given instead of started: on loopback, or refused without showing where it is."""

from __future__ import annotations

import traceback

import pytest

from tests.public_api.mongod.mongods import TEST_URI, client
from tidemill.testing import Mongod, MongodStartError, NotLoopbackError, mongod
from tidemill.testing._mongod_guard import free_ports


def test_a_given_server_on_loopback_is_used_and_left_running(server: Mongod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TEST_URI, server.uri)

    with Mongod() as given:
        assert (given.uri, given.pid) == (server.uri, None)

    with client(server.uri) as connected:
        connected.admin.command("ping")


@pytest.mark.parametrize(
    "hosts",
    [
        "localhost",
        "LOCALHOST:27018",
        "127.0.0.1",
        "127.8.9.10:1",
        "[::1]:27017",
        "127.0.0.1:1,[::1],localhost:3",
    ],
)
def test_loopback_hosts_are_recognised(hosts: str) -> None:
    assert mongod.is_only_loopback(f"mongodb://user:S3cr3t%40x@{hosts}/db?replicaSet=rs0")


@pytest.mark.parametrize(
    "uri",
    [
        "mongodb://user:S3cr3t%40x@db.example.com/",
        "mongodb://user:S3cr3t%40x@127.0.0.1,db.example.com/?replicaSet=rs0",
        "mongodb://user:S3cr3t%40x@localhost.example.com/",
        "mongodb://user:S3cr3t%40x@0.0.0.0/",
        "mongodb://user:S3cr3t%40x@10.0.0.1:27017/",
        "mongodb://user:S3cr3t%40x@[2001:db8::1]:27017/",
        "mongodb://user:S3cr3t%40x@127.0.0.1:27017@db.example.com/",
        "mongodb://user:S3cr3t%40x@127.0.0.1:port/",
        "mongodb://user:S3cr3t%40x@localhost/?appName=a&appName=b",
        "mongodb+srv://user:S3cr3t%40x@localhost/",
        "mongodb://%2Ftmp%2FS3cr3t.sock/",
        "S3cr3t",
    ],
)
def test_any_other_server_is_refused_without_showing_the_uri(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TEST_URI, uri)

    with pytest.raises(NotLoopbackError, match=rf"^{TEST_URI} is refused") as refusal:
        Mongod().start()

    assert "S3cr3t" not in "".join(traceback.format_exception(refusal.value))


@pytest.mark.parametrize("query", ["", "?authMechanism=S3cr3t", "?S3cr3t=1"])
def test_a_given_server_that_is_of_no_use_is_reported_without_showing_the_uri(
    query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TEST_URI, f"mongodb://user:S3cr3t@127.0.0.1:{next(free_ports())}/{query}")

    with pytest.raises(MongodStartError, match="no primary of a replica set answers") as failure:
        Mongod(primary_timeout_sec=0.1).start()

    assert "S3cr3t" not in "".join(traceback.format_exception(failure.value))
