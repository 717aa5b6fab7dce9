"""What `make serve` does: a MongoDB, the handlers, ticks, and a server in front of them."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pymongo import MongoClient
from pymongo.errors import PyMongoError

from demo.functions import module
from demo.openapi import document
from demo.serve.event import STAGE
from demo.serve.gateway import Gateway
from demo.serve.server import Server, listening
from demo.serve.stop import Stop
from demo.serve.ticks import Ticks
from tidemill import TidemillError
from tidemill.testing import Mongod

LOOPBACK: Final = "127.0.0.1"
EVERYWHERE: Final = "0.0.0.0"
DATABASE: Final = "tidemill"
DATABASE_OF_OURS: Final = "tidemill_serve"
"""On a server that was given, where ``tidemill`` may be somebody's."""
CURL: Final = (
    'curl "$API_URL/tasks" -H "x-api-key: $API_KEY" -H "Content-Type: application/json"'
    """ -d '{"name": "noop", "payload": {}}'"""
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What was asked for on the command line and in the environment."""

    host: str
    port: int
    every: timedelta
    is_verbose: bool

    @property
    def is_private(self) -> bool:
        """Whether only this machine reaches it."""
        return self.host == LOOPBACK

    @property
    def mongod_binds(self) -> str:
        """The addresses for MongoDB: this program needs it on loopback."""
        return self.host if self.host in {LOOPBACK, EVERYWHERE} else f"{LOOPBACK},{self.host}"

    @property
    def address(self) -> str:
        """Where to find it, from here."""
        return LOOPBACK if self.host == EVERYWHERE else self.host


def run(stop: Stop, *, description: str) -> int:
    """Serve until *stop* is said, as the command line says; *description* is its help. Return the exit status."""
    chosen = _choices(description)
    try:
        with listening(host=chosen.host, port=chosen.port) as server, _database(chosen) as (uri, database):
            _serve(chosen, server, uri=uri, database=database, stop=stop)
    except (TidemillError, PyMongoError) as error:
        text = str(error) if isinstance(error, TidemillError) else f"MongoDB failed ({type(error).__name__})"
        print(f"tidemill: {text}", file=sys.stderr)
        return 1
    return 0


def _choices(description: str) -> Choices:
    options = argparse.ArgumentParser(prog="python -m demo.serve", description=description)
    options.add_argument("--tick", type=float, default=5.0, metavar="SEC", help="how often executors tick (5)")
    options.add_argument("--verbose", action="store_true", help="show the log lines of the functions, too")
    given = options.parse_args()
    if not 0.1 <= given.tick <= 3600:
        options.error("--tick must be from 0.1 to 3600 seconds")
    port = os.environ.get("PORT") or "8000"
    if not (port.isascii() and port.isdecimal() and int(port) < 65536):
        options.error("PORT must be the number of a port")
    host = os.environ.get("BIND") or LOOPBACK
    return Choices(host=host, port=int(port), every=timedelta(seconds=given.tick), is_verbose=given.verbose)


def _serve(chosen: Choices, server: Server, *, uri: str, database: str, stop: Stop) -> None:
    os.environ.update(_environment(chosen, uri=uri, database=database))
    enqueue = module("enqueue")  # from here on: what they log, and how, is settled when they are imported
    ticks = Ticks(module("execute"), module("reclaim"), module("archive"), every=chosen.every, say=_say)
    shown = document(enqueue.app) | {"servers": [{"url": f"/{STAGE}", "description": "This machine"}]}
    gateway = Gateway(enqueue.lambda_handler, shown, accepted=ticks.wake, say=_say)
    ticks.first()
    with server.serving(gateway), ticks.ticking():
        print(_introduction(chosen, port=server.server_port, uri=uri, database=database), flush=True)
        stop.wait()


@contextmanager
def _database(chosen: Choices) -> Iterator[tuple[str, str]]:
    """Give the URI and the name of an empty database, which is gone afterwards."""
    with Mongod(bind=chosen.mongod_binds) as server:
        if server.pid is not None:
            yield server.uri, DATABASE
            return
        with MongoClient[dict[str, Any]](server.uri, serverSelectionTimeoutMS=5000) as client:
            client.drop_database(DATABASE_OF_OURS)
            try:
                yield server.uri, DATABASE_OF_OURS
            finally:
                client.drop_database(DATABASE_OF_OURS)


def _environment(chosen: Choices, *, uri: str, database: str) -> Mapping[str, str]:
    """Return what the functions read: as the template sets it, so that nothing of the caller's gets in."""
    return {
        "MONGODB_URI": uri,
        "MONGODB_SECRET_ARN": "",
        "MONGODB_DATABASE": database,
        "TASK_PACKAGE": "tasks",
        "TASK_TIMEOUT_SEC": "30",
        "MAX_TASK_TIMEOUT_SEC": "50",
        "CONCURRENCY": "16",
        "BATCH_SIZE": "100",
        "LINGER_SEC": "1",  # its line comes when it leaves
        "MAX_EXECUTORS": "5",
        "EXECUTE_FUNCTION": "",
        "RETRY_POLICY": "default",
        "SELECTION": "weighted",
        "RETRY_SHARE": "0.2",
        "DEFAULT_TASK": "",
        "RETENTION_DAYS": "7",
        "AWS_LAMBDA_FUNCTION_VERSION": "",
        "WEBHOOK_ALLOWED_HOSTS": "",
        # Receivers on this machine are what one tries out with; strangers may not reach them through us.
        "WEBHOOK_ALLOWED_NETWORKS": "127.0.0.0/8,::1/128" if chosen.is_private else "",
        "WEBHOOK_SECRET": "",
        "POWERTOOLS_DEV": "0",
        "POWERTOOLS_LOG_LEVEL": "INFO" if chosen.is_verbose else "CRITICAL",
        "POWERTOOLS_METRICS_DISABLED": "true",  # there is no CloudWatch
    }


def _introduction(chosen: Choices, *, port: int, uri: str, database: str) -> str:
    here = f"http://{chosen.address}:{port}"
    mongo = f"{uri.partition('?')[0]}?directConnection=true"
    named = "" if database == DATABASE else f" MONGODB_DATABASE={database}"
    lines = [
        f"The API and its documentation: {here}/    (every request needs an x-api-key; any value does)",
        f"  export API_URL={here}/{STAGE} API_KEY=me",
        f"  {CURL}",
        f"For `tidemill ops ...` and `sam local invoke`: MONGODB_URI='{mongo}'{named}",
        f"Executors tick every {chosen.every.total_seconds():g} s, and at once for a new task. Ctrl-C ends it all.",
    ]
    if not chosen.is_private:
        lines.insert(4, "  in a container with 172.17.0.1 or host.docker.internal for 127.0.0.1")
        lines.insert(5, f"Both listen on {chosen.host}: whoever reaches this machine reaches them, without a password.")
    return "\n".join(lines)


def _say(line: str) -> None:
    print(f"{datetime.now(UTC):%H:%M:%S}  {line}", flush=True)
