"""``/healthz`` of a worker, as a load balancer or an orchestrator asks for it."""

from __future__ import annotations

import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pymongo.database import Database

from tests.features.worker.test_worker import yard_at
from tests.features.worker.workers import PATIENCE, Process, Yard
from tests.handlers import wire
from tests.unit.make import eventually
from tidemill.testing import Mongod

pytestmark = pytest.mark.slow


@pytest.fixture
def yard(mongod: Mongod, db: Database[Any], tmp_path: Path) -> Iterator[Yard]:
    with yard_at(mongod.uri, db, tmp_path) as made:
        yield made


def url_of(worker: Process) -> str:
    assert eventually(lambda: len(worker.out) > 1, within=PATIENCE)
    assert worker.out[1].startswith("health checks at http://127.0.0.1:")
    return worker.out[1].rpartition(" ")[2]


def ask(url: str, method: str = "GET") -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=10) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_it_is_well_while_the_worker_claims_and_not_while_it_stops(yard: Yard) -> None:
    yard.add("wait")
    worker = yard.worker("--health-port", "0")
    url = url_of(worker)
    assert yard.begins(1)

    assert ask(url) == (200, "ok\n")
    assert ask(url, "HEAD") == (200, "")
    assert ask(url.replace("/healthz", "/tasks")) == (404, "there is only /healthz\n")
    worker.send(signal.SIGTERM)
    assert worker.says("stopping: 1 task still runs")
    assert ask(url) == (503, "the worker is stopping: it claims no more tasks\n")
    yard.go()

    assert worker.ended().status == 0
    assert len(worker.err) == 1, "no line for a request"


def test_without_mongodb_it_says_so_and_names_no_address(mongod: Mongod, db: Database[Any], tmp_path: Path) -> None:
    with wire.proxy(mongod.uri) as proxy, wire.nobody() as address, yard_at(proxy.uri, db, tmp_path) as yard:
        worker = yard.worker("--health-port", "0")
        url = url_of(worker)
        assert ask(url)[0] == 200

        proxy.reroute(f"mongodb://{address}")
        proxy.cut()
        assert eventually(lambda: ask(url)[0] == 503, within=PATIENCE)
        _, sentence = ask(url)
        proxy.reroute(mongod.uri)

        assert sentence.startswith("MongoDB ")
        assert address.partition(":")[0] not in sentence
        assert eventually(lambda: ask(url)[0] == 200, within=PATIENCE)
        assert worker.stopped().status == 0


@pytest.mark.parametrize(("address", "reason"), [("127.0.0.1", "Address already in use"), ("no.such.host.", "")])
def test_a_port_that_cannot_be_opened_is_one_sentence(yard: Yard, address: str, reason: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = yard.process("--health-port", port, "--health-address", address).ended()

    assert (ended.status, ended.out, len(ended.err)) == (1, [], 1)
    assert ended.err[0].startswith(f"tidemill: the health port {port} of {address} cannot be opened: {reason}")
    assert ended.err[0].endswith("; choose another --health-port or --health-address")


def test_a_process_that_a_task_left_behind_does_not_keep_the_port(yard: Yard) -> None:
    yard.add("leave_child")
    worker = yard.worker("--health-port", "0")
    url = url_of(worker)
    assert yard.becomes(done=1)
    worker.send(signal.SIGKILL)
    assert worker.is_over()

    port = url.rpartition(":")[2].partition("/")[0]
    other = yard.worker("--health-port", port)

    assert url_of(other) == url
    assert ask(url) == (200, "ok\n")
    yard.go()
