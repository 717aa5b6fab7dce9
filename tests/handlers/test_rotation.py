"""A password that was changed: the secret is read once more, and nobody notices; where that is no help, once a time."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any

import boto3
import pytest
from bson import ObjectId
from moto import mock_aws
from pymongo import MongoClient
from pymongo.database import Database
from pymongo.errors import InvalidOperation

from tests.builders import document
from tests.features.isolation.runs import runner
from tests.fixtures import ManualClock
from tests.handlers import calls
from tests.handlers.conftest import Deployed
from tests.handlers.warm import break_clock
from tidemill import Queue, SettingsError, TidemillError, UnavailableError, bootstrap
from tidemill.aws import secrets
from tidemill.clock import ServerClock
from tidemill.control.declarer import declare_types
from tidemill.dead_letters.archive import ArchiveContext, ArchiveError, archive
from tidemill.documents import DEAD_LETTERS
from tidemill.errors import CredentialsError, IsolationError
from tidemill.registry import load
from tidemill.store.connection import connect, open_tasks
from tidemill.testing import Mongod

NOOP = {"name": "noop", "payload": {}}
EVENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "http": ("enqueue", calls.request(body=NOOP)),
    "direct": ("enqueue", NOOP),
    "execute": ("execute", {"source": "tick"}),
    "reclaim": ("reclaim", {}),
    "archive": ("archive", {}),
    "operate": ("operate", {"op": "queue.list"}),
}
DONE = {202, "done"}
each_event = pytest.mark.parametrize("name", EVENTS)
each_kind = pytest.mark.parametrize("name", ["http", "archive"])  # one that answers, and one that raises


@dataclass(slots=True, kw_only=True)
class Account:
    """A user of MongoDB, and the secret that is to hold its password; ``reads`` counts how often it was read."""

    name: str
    mongod: Mongod
    client: MongoClient[Any]
    secrets: Any
    reads: int = 0

    def rotate(self, password: str) -> None:
        """Change the password, and cut what is connected with the old one."""
        self.client.admin.command("updateUser", self.name, pwd=password)

    def tell(self, password: str) -> None:
        """Let the secret hold *password*."""
        self.keep(self.uri(password))

    def keep(self, text: str) -> None:
        """Let the secret hold *text*."""
        self.secrets.put_secret_value(SecretId="tidemill", SecretString=text)

    def uri(self, password: str) -> str:
        return self.mongod.uri.replace("://", f"://{self.name}:{password}@") + "&authSource=admin"


@pytest.fixture
def account(
    bare: Deployed, mongod: Mongod, client: MongoClient[Any], db: Database[Any], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Account]:
    """The functions on the test's database, as a user whose password ``old`` is in the secret."""
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    name = f"user-{uuid.uuid4().hex}"
    client.admin.command("createUser", name, pwd="old", roles=["root"])
    with mock_aws():
        made = Account(name=name, mongod=mongod, client=client, secrets=boto3.client("secretsmanager"))
        made.secrets.create_secret(Name="tidemill", SecretString=made.uri("old"))
        make_client: Any = boto3.client

        def count_read(**_: Any) -> None:
            made.reads += 1

        def make_watched_client(name: str, **options: Any) -> Any:
            made_client = make_client(name, **options)
            made_client.meta.events.register("before-call.secrets-manager.GetSecretValue", count_read)
            return made_client

        monkeypatch.setattr(boto3, "client", make_watched_client)
        bare.set(MONGODB_SECRET_ARN="tidemill", MONGODB_DATABASE=db.name, LINGER_SEC="0")
        declare_types(db, load("tasks"), package="tasks", release="1", now=ServerClock(db).now())
        yield made
    client.admin.command("dropUser", name)


def cut(deployed: Deployed) -> None:
    """Close the functions' connections, as the driver does with those that were idle for a minute."""
    for client in deployed.clients:
        for server in client._topology._servers.values():
            while server.pool.conns:
                server.pool.conns.pop().close_conn("idle")


def outcome(deployed: Deployed, name: str) -> Any:
    """What became of an invocation: as `answered`, or the error that it raised."""
    try:
        return answered(deployed, name)
    except TidemillError as error:
        return type(error)


def answered(deployed: Deployed, name: str) -> Any:
    function, event = EVENTS[name]
    answer = deployed.invoke(function, event)
    return answer.get("statusCode", answer.get("error", {"code": "done"})["code"])


@each_event
def test_an_invocation_after_a_rotation_reads_the_secret_once_more_and_succeeds(
    bare: Deployed, account: Account, db: Database[Any], name: str
) -> None:
    before = answered(bare, name)
    account.rotate("new")
    account.tell("new")
    cut(bare)
    stored = db.tasks.count_documents({})

    after = [answered(bare, name) for _ in range(3)]

    assert after == [before] * 3 == [202 if name == "http" else "done"] * 3
    assert account.reads == 2
    assert db.tasks.count_documents({}) == stored + (3 if name in {"http", "direct"} else 0)


@each_kind
def test_a_cold_start_with_an_outdated_password_says_so_and_the_next_invocation_asks_again(
    bare: Deployed, account: Account, name: str
) -> None:
    account.rotate("new")

    if name in {"http", "operate"}:
        assert answered(bare, name) in {503, "misconfigured"}
    else:
        with pytest.raises(CredentialsError, match="AuthenticationFailed"):
            answered(bare, name)
    assert account.reads == 2

    account.tell("new")
    assert answered(bare, name) in DONE
    assert account.reads == 3


@each_kind
def test_a_secret_that_was_garbage_is_read_again_by_the_next_invocation(
    bare: Deployed, account: Account, name: str
) -> None:
    account.keep("hunter2 typo")
    assert outcome(bare, name) in {SettingsError, 503, "misconfigured"}

    account.tell("old")
    assert outcome(bare, name) in DONE


@each_kind
def test_so_is_one_that_became_garbage_in_a_rotation(bare: Deployed, account: Account, name: str) -> None:
    answered(bare, name)
    account.rotate("new")
    account.keep("hunter2 typo")
    cut(bare)
    assert outcome(bare, name) in {SettingsError, 503, "misconfigured"}

    account.tell("new")
    assert outcome(bare, name) in DONE


NOWHERE = "mongodb+srv://localhost/"  # a name without the records that would lead on
NOBODY = "mongodb://127.0.0.1:9/?directConnection=true"


@pytest.mark.parametrize(("name", "uri"), [("http", NOWHERE), ("archive", NOWHERE), ("execute", NOBODY)])
def test_one_that_led_to_nobody_is_not_looked_at_again_at_each_invocation(
    bare: Deployed, account: Account, name: str, uri: str
) -> None:
    bare.timeout_ms = 100
    account.keep(uri)

    for _ in range(2):
        assert outcome(bare, name) in {UnavailableError, 503, "unavailable"}

    assert account.reads == 1


def _enqueue(db: Database[Any]) -> None:
    Queue(db).enqueue("noop", {})


def _archive(db: Database[Any]) -> None:
    dead, week = open_tasks(db, DEAD_LETTERS), timedelta(days=7)
    context = ArchiveContext(tasks=open_tasks(db), dead=dead, clock=ServerClock(db), task_retention=week)
    archive(context, until=time.monotonic() + 60)


@pytest.mark.parametrize("work", [_enqueue, _archive])
@pytest.mark.parametrize("uri", [NOWHERE, NOBODY])
def test_one_that_led_to_nobody_is_looked_at_again_after_ten_seconds(
    account: Account, db: Database[Any], work: Callable[[Database[Any]], None], uri: str
) -> None:
    clock = ManualClock()
    secret = secrets.Secret("tidemill", monotonic=lambda: clock.now().timestamp())

    def run() -> None:
        with connect(secret.read_uri(), source="", name="test", timeout_sec=0.5, pool=1) as client:
            work(client[db.name])

    def reads() -> int:
        with suppress(UnavailableError, ArchiveError):
            secrets.with_current_secret(run, secret=secret, reset=lambda: None)
        return account.reads

    account.keep(uri)
    before = reads()
    account.tell("old")
    clock.move(timedelta(seconds=9.9))
    early = reads()
    clock.move(timedelta(seconds=0.1))
    in_time, later = reads(), reads()

    assert (before, early, in_time, later) == (1, 1, 2, 2)
    secrets.with_current_secret(run, secret=secret, reset=lambda: None)


@each_kind
def test_the_secret_may_be_changed_before_the_database_is(bare: Deployed, account: Account, name: str) -> None:
    answered(bare, name)
    account.rotate("nobody knows it")
    account.tell("new")
    cut(bare)
    assert outcome(bare, name) in {CredentialsError, 503, "misconfigured"}

    account.rotate("new")
    assert outcome(bare, name) in DONE


def test_another_database_that_the_secret_leads_to_gets_its_indexes(
    bare: Deployed, account: Account, db: Database[Any]
) -> None:
    answered(bare, "reclaim")
    account.rotate("new")
    account.tell("new")
    cut(bare)
    db.client.drop_database(db.name)

    answered(bare, "reclaim")

    assert len(list(db.tasks.list_indexes())) > 1


def test_all_that_is_made_with_a_client_is_made_anew_after_a_reset_and_nothing_else(deployed: Deployed) -> None:
    aws = {"ARCHIVE_BUCKET": "letters", "EXECUTE_FUNCTION": "executor", "FAILURES_QUEUE_URL": "https://sqs/failures"}
    deployed.set(AWS_LAMBDA_FUNCTION_NAME="this", **aws)
    warm = bootstrap.deployment()
    names = [
        "enqueue_service", "queue", "caller_rights", "runtime", "reclaim_context", "archive_context", "admin_context",
    ]  # fmt: skip
    made = [getattr(warm, name) for name in names]
    databases = {role: warm.database(role) for role in bootstrap.CLIENT_LIMITS}
    kept = (warm.settings, warm.put, warm.waker, warm.failures_queue)

    warm.reset()

    assert [name for name, old in zip(names, made, strict=True) if getattr(warm, name) is old] == []
    assert [role for role, db in databases.items() if warm.database(role).client is db.client] == []
    assert None not in kept
    assert (warm.settings, warm.put, warm.waker, warm.failures_queue) == kept
    public = {name for name, value in vars(bootstrap.Deployment).items() if isinstance(value, cached_property)}
    assert {name for name in public if not name.startswith("_")} == set(names)


def test_the_process_pool_of_isolated_tasks_goes_with_the_client(bare: Deployed, account: Account) -> None:
    answered(bare, "execute")
    before: Any = bootstrap.deployment().runtime.isolation
    account.rotate("new")
    account.tell("new")
    cut(bare)

    answered(bare, "execute")

    assert bootstrap.deployment().runtime.isolation is not before
    with pytest.raises(IsolationError, match="the process pool is closed"):
        runner(before)("noop")


def test_no_operation_is_carried_out_twice_for_a_rotation(bare: Deployed, account: Account) -> None:
    answered(bare, "operate")
    clock = break_clock("operate", CredentialsError())
    account.rotate("new")
    account.tell("new")

    assert answered(bare, "operate") == "misconfigured"
    assert clock.errors == 1


def test_a_secret_that_cannot_be_read_again_is_named(bare: Deployed, account: Account) -> None:
    answered(bare, "archive")
    account.rotate("new")
    cut(bare)
    account.secrets.delete_secret(SecretId="tidemill", ForceDeleteWithoutRecovery=True)

    with pytest.raises(SettingsError, match="MONGODB_SECRET_ARN cannot be read"):
        answered(bare, "archive")


def test_a_uri_of_its_own_is_not_looked_for_in_a_secret(bare: Deployed, account: Account) -> None:
    bare.set(MONGODB_URI=account.uri("wrong"))

    with pytest.raises(CredentialsError):
        answered(bare, "archive")

    assert account.reads == 0


def test_what_is_refused_after_that_is_the_credentials_too(bare: Deployed, account: Account) -> None:
    """Once a server has refused them, the driver looks for another one, and finds none in time."""
    bare.set(MONGODB_SECRET_ARN=None, MONGODB_URI=account.uri("wrong"))
    bare.timeout_ms = 500
    db = bootstrap.deployment().connect("archive")

    for _ in range(2):
        with pytest.raises(CredentialsError):
            ServerClock(db).now()


def test_a_rotation_leaves_no_client_of_the_old_password_open(bare: Deployed, account: Account) -> None:
    answered(bare, "archive")
    account.rotate("new")
    account.tell("new")
    cut(bare)

    answered(bare, "archive")

    old, new = bare.clients
    new.admin.command("ping")
    with pytest.raises(InvalidOperation):
        old.admin.command("ping")


def test_a_task_in_the_hands_of_an_executor_outlives_a_rotation(
    bare: Deployed, account: Account, db: Database[Any]
) -> None:
    now = ServerClock(db).now()
    answered(bare, "execute")
    db.tasks.insert_one(document(now, _id=ObjectId(), name="noop"))
    account.rotate("new")
    account.tell("new")

    assert bare.invoke("execute", {"source": "tick"})["done"] == 1
    assert account.reads == 1
