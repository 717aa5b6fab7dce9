"""The functions as they are deployed: their handlers on the test's database, and what they log and send."""

from __future__ import annotations

import asyncio
import io
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pymongo
import pytest
from pymongo.database import Database
from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent

from tests.handlers import calls
from tests.handlers.blocking import MakeQueue, make_blocking_queue
from tests.handlers.calls import Answer
from tests.handlers.lambda_api import FakeLambda, replace_lambda_client, wait_for_launch
from tests.handlers.warm import cool_down
from tidemill import Queue
from tidemill.aws import lambda_functions, metrics
from tidemill.bootstrap import deployment
from tidemill.clock import Clock, ServerClock
from tidemill.control.declarer import declare_types
from tidemill.executor.lifetime import TIMING
from tidemill.registry import load
from tidemill.store.mark import require_mark
from tidemill.testing import FakeContext, Mongod

VARIABLES = (
    "MONGODB_URI", "MONGODB_SECRET_ARN", "MONGODB_DATABASE", "TIDEMILL_PREFIX",
    "TASK_PACKAGE", "TASK_TIMEOUT_SEC", "MAX_TASK_TIMEOUT_SEC",
    "CONCURRENCY", "BATCH_SIZE", "RETRY_POLICY", "SELECTION", "RETRY_SHARE", "DEFAULT_TASK", "RETENTION_DAYS",
    "DEAD_LETTER_RETENTION_DAYS", "EXPIRE_UNEXPORTED", "ARCHIVE_BUCKET",
    "AWS_LAMBDA_FUNCTION_VERSION", "AWS_LAMBDA_FUNCTION_NAME", "AWS_SAM_LOCAL", "MAX_EXECUTORS", "LINGER_SEC",
    "EXECUTE_FUNCTION", "FAILURES_QUEUE_URL", "_X_AMZN_TRACE_ID",
)  # fmt: skip
EXECUTOR = "tidemill-ExecuteFunction-Zx4Qw8Er2Ty6"
MADE_BY_DRIVER = {"hello", "ping", "endSessions", "saslStart", "saslContinue"}


class Watch(CommandListener):
    """Keeps the commands that were sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Mapping[str, Any]]] = []
        self.connections: set[int | None] = set()

    def started(self, event: CommandStartedEvent) -> None:
        self.connections.add(event.server_connection_id)
        self.sent.append((event.command_name, event.command))

    def succeeded(self, event: CommandSucceededEvent) -> None:
        """Nothing is kept of it."""

    def failed(self, event: CommandFailedEvent) -> None:
        """Nothing is kept of it."""


class Deployed:
    """The functions in one process, each with the clients it makes for itself.

    ``timeout_ms`` shortens what the clients made from then on wait for an operation, where a test waits for it.
    ``request_budget_sec`` replaces what `enqueue` and `operate` may take of MongoDB's time for one event, ``timing``
    the times of executors.
    """

    def __init__(self, environment: pytest.MonkeyPatch) -> None:
        self._environment = environment
        self._watch = Watch()
        self.clients: list[pymongo.MongoClient[Any]] = []
        self.stdout = io.StringIO()
        self.timeout_ms: int | None = None
        self.request_budget_sec: float | None = None
        self.timing = TIMING
        make = pymongo.MongoClient

        def observed(*args: Any, **options: Any) -> pymongo.MongoClient[Any]:
            options |= {} if self.timeout_ms is None else {"timeoutMS": self.timeout_ms}
            options["event_listeners"] = [*options.get("event_listeners", ()), self._watch]
            client: pymongo.MongoClient[Any] = make(*args, **options)
            self.clients.append(client)
            return client

        environment.setattr(pymongo, "MongoClient", observed)
        environment.setattr(metrics, "stdout", lambda: self.stdout.write)
        for function in calls.FUNCTIONS:
            for handler in calls.app(function).logger.handlers:
                environment.setattr(handler, "stream", self.stdout)

    def set(self, **variables: str | None) -> None:
        """Change the environment, and start cold in it."""
        for name, value in variables.items():
            if value is None:
                self._environment.delenv(name, raising=False)
            else:
                self._environment.setenv(name, value)
        self.cool_down()

    def cool_down(self) -> None:
        """Make the next call a cold start."""
        cool_down()
        while self.clients:
            self.clients.pop().close()

    def invoke(self, function: str, event: Any = None, context: Any = None, **options: Any) -> Any:
        """Call the handler of *function* with *options* of its own."""
        if function in {"enqueue", "operate"} and self.request_budget_sec is not None:
            options["request_budget_sec"] = self.request_budget_sec
        if function == "execute":
            # Functions of other tests may still run, for which the handler would end this process.
            options = {"timing": self.timing, "on_recycle": lambda _: None} | options
        return calls.app(function).lambda_handler(event, context or FakeContext(), **options)

    def http(self, event: Any, context: Any = None) -> Answer:
        """Send *event* to the HTTP front."""
        return calls.answer(self.invoke("enqueue", event, context))

    def post(self, body: str | Mapping[str, Any], *, key: str | None = None, **request: Any) -> Answer:
        """``POST /tasks``."""
        headers = {} if key is None else {"Idempotency-Key": key}
        return self.http(calls.request(body=body, headers=headers, **request))

    def get(self, task_id: str, **request: Any) -> Answer:
        """``GET /tasks/{id}``."""
        return self.http(calls.request("GET", f"/tasks/{task_id}", **request))

    def delete(self, task_id: str, **request: Any) -> Answer:
        """``DELETE /tasks/{id}``."""
        return self.http(calls.request("DELETE", f"/tasks/{task_id}", **request))

    def connections(self) -> int:
        """How many connections have been used."""
        return len(self._watch.connections)

    def log(self) -> list[dict[str, Any]]:
        """What was logged, a line each, but for the metrics."""
        return [line for line in self._lines() if "_aws" not in line]

    def metrics(self) -> list[dict[str, Any]]:
        """What CloudWatch takes for metrics, a line each."""
        return [line for line in self._lines() if "_aws" in line]

    def _lines(self) -> list[dict[str, Any]]:
        return [calls.strict(line) for line in self.stdout.getvalue().splitlines() if line]

    def commands(self) -> list[tuple[str, Mapping[str, Any]]]:
        """What was sent to MongoDB since the last call, but for the driver's own."""
        sent, self._watch.sent = self._watch.sent, []
        return [one for one in sent if one[0] not in MADE_BY_DRIVER]


@pytest.fixture(scope="session")
def runner() -> Iterator[asyncio.Runner]:
    """The event loop of all async tests."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(params=["sync", "async"])
def make_queue(request: pytest.FixtureRequest, runner: asyncio.Runner) -> Iterator[MakeQueue]:
    """Makes a `Queue`, and in a second run of the test an `AsyncQueue` that is called like one."""
    if request.param == "sync":
        yield Queue
        return
    clients: dict[object, pymongo.AsyncMongoClient[Any]] = {}

    def make(db: Database[Any], *, clock: Clock | None = None) -> Queue:
        if db.client not in clients:
            clients[db.client] = _copy_client(db.client)
        return make_blocking_queue(runner, clients[db.client], db, clock=clock)

    yield make
    for client in clients.values():
        runner.run(client.close())


def _copy_client(client: pymongo.MongoClient[Any]) -> pymongo.AsyncMongoClient[Any]:
    """Return an async client of the same server, with the same listeners."""
    address, options = client.topology_description.server_descriptions(), client.options
    host = ",".join(f"{host}:{port}" for host, port in address)
    return pymongo.AsyncMongoClient(
        f"mongodb://{host}/",
        tz_aware=True,
        timeoutMS=None if options.timeout is None else int(options.timeout * 1000),
        replicaSet=options.replica_set_name,
        event_listeners=options.event_listeners,
    )


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployed]:
    """The functions in an environment that says nothing."""
    with _installed(monkeypatch) as deployed:
        yield deployed


@pytest.fixture
def deployed(bare: Deployed, mongod: Mongod, db: Database[Any]) -> Deployed:
    """The functions on the test's database, in which an executor has registered ``noop`` and ``deliver_webhook``."""
    _settle_in(bare, mongod, db)
    return bare


@pytest.fixture
def fake(deployed: Deployed, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeLambda]:
    """The functions in Lambda, whose client is this one."""
    made = FakeLambda()
    replace_lambda_client(monkeypatch, lambda: made)
    lambda_functions.lambda_client.cache_clear()
    deployed.set(AWS_LAMBDA_FUNCTION_NAME="this", EXECUTE_FUNCTION=EXECUTOR, LINGER_SEC=None)
    deployment().waker = deployment().make_waker(made.clock, wait=wait_for_launch)
    yield made
    lambda_functions.lambda_client.cache_clear()


@pytest.fixture
def unchanged(_shared: tuple[Deployed, Database[Any]]) -> Iterator[Deployed]:
    """The functions, for requests that must change nothing: so the tests of a module can share one database."""
    deployed, db = _shared
    deployed.stdout.seek(0)
    deployed.stdout.truncate()
    deployed.commands()
    yield deployed
    assert db.tasks.delete_many({}).deleted_count == 0


@pytest.fixture(scope="module")
def _shared(mongod: Mongod, client: pymongo.MongoClient[Any]) -> Iterator[tuple[Deployed, Database[Any]]]:
    db = client[f"test_{uuid.uuid4().hex}"]
    with pytest.MonkeyPatch.context() as environment, _installed(environment) as deployed:
        _settle_in(deployed, mongod, db)
        yield deployed, db
    client.drop_database(db.name)


@contextmanager
def _installed(environment: pytest.MonkeyPatch) -> Iterator[Deployed]:
    for name in VARIABLES:
        environment.delenv(name, raising=False)
    deployed = Deployed(environment)
    deployed.cool_down()
    yield deployed
    deployed.cool_down()


def _settle_in(deployed: Deployed, mongod: Mongod, db: Database[Any]) -> None:
    deployed.set(MONGODB_URI=mongod.uri, MONGODB_DATABASE=db.name, LINGER_SEC="0")
    require_mark(db)
    declare_types(db, load("tasks"), package="tasks", release="1", now=ServerClock(db).now())
