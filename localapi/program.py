"""The program of `make serve`: a MongoDB, the handlers, ticks, and a server in front of them."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pymongo import MongoClient
from pymongo.errors import PyMongoError

from localapi.event import STAGE
from localapi.gateway import Gateway
from localapi.server import listen, serve
from localapi.ticks import Ticks
from tidemill import TidemillError
from tidemill.testing import Mongod
from tools.openapi import document

LOOPBACK: Final = "127.0.0.1"
EVERYWHERE: Final = "0.0.0.0"
DATABASE: Final = "tidemill"
OWN_DATABASE: Final = "tidemill_serve"
"""On a given server, where another program may use ``tidemill``."""
CURL: Final = (
    'curl "$API_URL/tasks" -H "x-api-key: $API_KEY" -H "Content-Type: application/json"'
    """ -d '{"name": "noop", "payload": {}}'"""
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options from the command line and the environment."""

    host: str
    port: int
    every: timedelta
    is_verbose: bool

    @property
    def is_private(self) -> bool:
        """True if only this machine can connect."""
        return self.host == LOOPBACK

    @property
    def mongod_binds(self) -> str:
        """Addresses of MongoDB; this program needs loopback."""
        return self.host if self.host in {LOOPBACK, EVERYWHERE} else f"{LOOPBACK},{self.host}"

    @property
    def address(self) -> str:
        """Address of the API for programs on this machine."""
        return LOOPBACK if self.host == EVERYWHERE else self.host


def run(*, wait_for_stop: Callable[[], object], description: str) -> int:
    """Serve until *wait_for_stop* returns, with *description* as the help. Return the exit status."""
    options = _parse_options(description)
    try:
        with listen(host=options.host, port=options.port) as listener, _database(options) as (uri, database):
            _serve(options, listener, uri=uri, database=database, wait_for_stop=wait_for_stop)
    except (TidemillError, PyMongoError) as error:
        text = str(error) if isinstance(error, TidemillError) else f"MongoDB failed ({type(error).__name__})"
        print(f"tidemill: {text}", file=sys.stderr)
        return 1
    return 0


def _parse_options(description: str) -> Options:
    parser = argparse.ArgumentParser(prog="python -m localapi", description=description)
    parser.add_argument("--tick", type=float, default=5.0, metavar="SEC", help="how often executors tick (5)")
    parser.add_argument("--verbose", action="store_true", help="show the log lines of the functions, too")
    given = parser.parse_args()
    if not 0.1 <= given.tick <= 3600:
        parser.error("--tick must be from 0.1 to 3600 seconds")
    port = os.environ.get("PORT") or "8000"
    if not (port.isascii() and port.isdecimal() and int(port) < 65536):
        parser.error("PORT must be the number of a port")
    host = os.environ.get("BIND") or LOOPBACK
    return Options(host=host, port=int(port), every=timedelta(seconds=given.tick), is_verbose=given.verbose)


def _serve(
    options: Options, listener: socket.socket, *, uri: str, database: str, wait_for_stop: Callable[[], object]
) -> None:
    os.environ.update(_environment(options, uri=uri, database=database))
    # After the environment: the handlers read the settings of their logs when they are imported.
    from tidemill.handlers import archive, enqueue, execute, reclaim  # noqa: PLC0415

    ticks = Ticks(execute, reclaim, archive, every=options.every, say=_say)
    openapi = document(enqueue.app) | {"servers": [{"url": f"/{STAGE}", "description": "This machine"}]}
    gateway = Gateway(enqueue.lambda_handler, openapi, on_accepted=ticks.wake, say=_say)
    ticks.prepare()
    with serve(listener, gateway), ticks.run():
        print(_introduction(options, port=listener.getsockname()[1], uri=uri, database=database), flush=True)
        wait_for_stop()


@contextmanager
def _database(options: Options) -> Iterator[tuple[str, str]]:
    """Yield the URI and the name of an empty database; drop it afterwards."""
    with Mongod(bind=options.mongod_binds) as server:
        if server.pid is not None:
            yield server.uri, DATABASE
            return
        with MongoClient[dict[str, Any]](server.uri, serverSelectionTimeoutMS=5000) as client:
            client.drop_database(OWN_DATABASE)
            try:
                yield server.uri, OWN_DATABASE
            finally:
                client.drop_database(OWN_DATABASE)


def _environment(options: Options, *, uri: str, database: str) -> Mapping[str, str]:
    """Return the variables of the functions, all of them, so that no value of the caller counts."""
    return {
        "MONGODB_URI": uri,
        "MONGODB_SECRET_ARN": "",
        "MONGODB_DATABASE": database,
        "TASK_PACKAGE": "tasks",
        "TASK_TIMEOUT_SEC": "30",
        "MAX_TASK_TIMEOUT_SEC": "50",
        "CONCURRENCY": "16",
        "BATCH_SIZE": "100",
        "LINGER_SEC": "1",  # it says what it did when it ends
        "MAX_EXECUTORS": "5",
        "EXECUTE_FUNCTION": "",
        "RETRY_POLICY": "default",
        "SELECTION": "weighted",
        "RETRY_SHARE": "0.2",
        "DEFAULT_TASK": "",
        "RETENTION_DAYS": "7",
        "AWS_LAMBDA_FUNCTION_VERSION": "",
        "WEBHOOK_ALLOWED_HOSTS": "",
        # Local receivers are for experiments; callers from other machines must not reach them.
        "WEBHOOK_ALLOWED_NETWORKS": "127.0.0.0/8,::1/128" if options.is_private else "",
        "WEBHOOK_SECRET": "",
        "POWERTOOLS_DEV": "0",
        "POWERTOOLS_LOG_LEVEL": "INFO" if options.is_verbose else "CRITICAL",
        "POWERTOOLS_METRICS_DISABLED": "true",  # there is no CloudWatch
    }


def _introduction(options: Options, *, port: int, uri: str, database: str) -> str:
    here = f"http://{options.address}:{port}"
    mongo = f"{uri.partition('?')[0]}?directConnection=true"
    named = "" if database == DATABASE else f" MONGODB_DATABASE={database}"
    lines = [
        f"The API and its documentation: {here}/    (every request needs an x-api-key; any value does)",
        f"  export API_URL={here}/{STAGE} API_KEY=me",
        f"  {CURL}",
        f"For `tidemill ops ...` and `sam local invoke`: MONGODB_URI='{mongo}'{named}",
        f"Executors tick every {options.every.total_seconds():g} s, and at once for a new task. Ctrl-C ends it all.",
    ]
    if not options.is_private:
        lines.insert(4, "  in a container with 172.17.0.1 or host.docker.internal for 127.0.0.1")
        lines.insert(
            5, f"Both listen on {options.host}: every machine that reaches this one can use them, without a password."
        )
    return "\n".join(lines)


def _say(line: str) -> None:
    print(f"{datetime.now(UTC):%H:%M:%S}  {line}", flush=True)
