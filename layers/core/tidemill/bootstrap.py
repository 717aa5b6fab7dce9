"""Where the environment ends: clients, clock, registry and settings, each made once per process."""

from __future__ import annotations

import logging
import os
import time
from datetime import timedelta
from functools import cache
from typing import Any, Final, Protocol

import pymongo
from pymongo.database import Database
from pymongo.errors import ConfigurationError, InvalidURI

from tidemill import control, indexes, settings
from tidemill.client import Queue
from tidemill.clock import ServerClock
from tidemill.control import Directory, OptionsReader
from tidemill.documents import DEAD_LETTERS
from tidemill.errors import RefusedError, RegistrationError, SettingsError, UnsupportedServerError
from tidemill.executor import Order, Runtime
from tidemill.model import LANES
from tidemill.reclaim import Keeper
from tidemill.registry import Registry, load
from tidemill.requests import ExecuteRequest
from tidemill.store import Tasks, majority, open_tasks, translated

LOCAL_LIFE: Final = timedelta(seconds=120)
"""How long a call without a Lambda context is taken to live."""

TASK_PACKAGE: Final = "tasks"


class Context(Protocol):
    """The part of the Lambda context that is used."""

    @property
    def aws_request_id(self) -> str:
        """The id of the invocation."""

    def get_remaining_time_in_millis(self) -> int:
        """Return what is left of the invocation."""


@cache
def chosen() -> settings.Settings:
    """Return the deployment's settings.

    Raises:
        SettingsError: A variable is malformed, or none says where MongoDB is.
    """
    return settings.from_environment(os.environ)


@cache
def database(role: str, *, timeout_sec: float = 10.0, pool: int = 2) -> Database[Any]:
    """Return the database, through a client with short time-outs that is named after *role*.

    Whatever the URI says, writes are acknowledged by a majority and reads go to the primary.

    Raises:
        SettingsError: The URI cannot be used; its text is not shown.
        UnsupportedServerError: It is Amazon DocumentDB's.
    """
    _hush_drivers()
    source, uri = _uri()
    if ".docdb." in uri and "amazonaws.com" in uri:
        raise UnsupportedServerError("Amazon DocumentDB lacks the partial indexes Tidemill stands on: use MongoDB")
    if not uri.startswith(("mongodb://", "mongodb+srv://")):  # the driver takes any word for the name of a host
        raise SettingsError(f"{source} is not a MongoDB URI: it must start with mongodb:// or mongodb+srv://")
    try:
        client: pymongo.MongoClient[Any] = pymongo.MongoClient(
            uri,
            appname=f"tidemill-{role}",
            connectTimeoutMS=2000,
            maxIdleTimeMS=60_000,
            maxPoolSize=pool,
            minPoolSize=0,
            retryWrites=True,
            serverSelectionTimeoutMS=3000,
            timeoutMS=int(timeout_sec * 1000),
            tz_aware=True,
            w="majority",
            waitQueueTimeoutMS=2000,
        )
    except (ConfigurationError, InvalidURI, ValueError, TypeError, OSError):
        raise SettingsError(f"{source} is not a MongoDB URI that can be used") from None
    return majority(client[chosen().database])


@cache
def queue() -> Queue:
    """Return the queue that the enqueue function writes to."""
    db = database("enqueue", timeout_sec=4.0)
    return Queue(db, directory=directory())


@cache
def directory() -> Directory:
    """Return the declared names the enqueue function accepts."""
    return Directory(database("enqueue", timeout_sec=4.0))


@cache
def runtime() -> Runtime:
    """Return what executions share, with the task functions imported and declared."""
    db = database("execute", pool=4)
    clock = ServerClock(db)
    registry = load(TASK_PACKAGE)
    _refuse_what_never_fits(registry)
    control.declare_types(db, registry, release=chosen().release, now=clock.now())
    return Runtime(
        tasks=open_tasks(db),
        registry=registry,
        settings=chosen(),
        clock=clock,
        options=OptionsReader(db).options,
    )


@cache
def keeper() -> Keeper:
    """Return what reclaiming needs."""
    db = database("reclaim")
    known = Directory(db)
    return Keeper(
        tasks=open_tasks(db),
        clock=ServerClock(db),
        policy=lambda task: control.policy_of(task, known, deployment=chosen().retry),
        options=OptionsReader(db).options,
        adopt_as=chosen().adopt_as,
    )


def missing_indexes() -> tuple[str, ...]:
    """Make the indexes that are missing while that is quick; return the names of those that still are.

    Done once per process, but again as long as some are missing. Where the database refuses, that is returned
    instead: housekeeping must not keep anybody from reclaiming.

    Raises:
        UnavailableError: MongoDB failed.
    """
    try:
        names = _maintained()
    except RefusedError as error:
        return (f"{error}: run `tidemill indexes`",)
    if names:
        _maintained.cache_clear()
    return names


@cache
def archives() -> tuple[Tasks, Tasks, ServerClock]:
    """Return the tasks, the dead letters, and the clock."""
    db = database("archive")
    return open_tasks(db), open_tasks(db, DEAD_LETTERS), ServerClock(db)


def order(request: ExecuteRequest, context: Context | None) -> Order:
    """Return the order that *request* makes of this invocation."""
    return Order(
        owner=owner(context),
        remaining=remaining(context),
        queues=tuple(request.queues),
        lanes=LANES if request.lane is None else (request.lane,),
        selection=request.selection,
        concurrency=request.concurrency,
        batch_size=request.batch_size,
    )


def owner(context: Context | None) -> str:
    """Return the name leases are held under: the request id, by which the platform reports a death."""
    return context.aws_request_id if context is not None else f"local-{os.getpid()}"


def remaining(context: Context | None) -> timedelta:
    """Return what is left of this invocation."""
    return LOCAL_LIFE if context is None else timedelta(milliseconds=context.get_remaining_time_in_millis())


def until(context: Context | None, *, margin: timedelta) -> float:
    """Return when to stop, on the monotonic clock: *margin* before the invocation ends."""
    return time.monotonic() + (remaining(context) - margin).total_seconds()


@cache
def _maintained() -> tuple[str, ...]:
    with translated():
        return tuple(one.name for one in indexes.maintain(database("reclaim"), retention=chosen().retention))


def _refuse_what_never_fits(registry: Registry) -> None:
    for one in registry:
        if one.timeout is not None and one.timeout > chosen().max_task_timeout:
            raise RegistrationError(
                f"the timeout of {one.name!r} is {one.timeout.total_seconds():g} s, above MAX_TASK_TIMEOUT_SEC"
            )


def _hush_drivers() -> None:
    """Keep payloads and secrets out of the log at any level: at DEBUG the drivers write all they send and receive."""
    for name in ("pymongo", "boto3", "botocore", "urllib3"):
        driver = logging.getLogger(name)
        driver.setLevel(max(driver.level, logging.INFO))


def _uri() -> tuple[str, str]:
    """Return what says where MongoDB is, as a message may name it, and what it says."""
    given, arn = chosen().mongodb_uri, chosen().secret_arn
    if given is not None:
        return "MONGODB_URI", given
    if arn is None:
        raise SettingsError("MONGODB_URI is missing: set it, or MONGODB_SECRET_ARN")
    return "the secret in MONGODB_SECRET_ARN", _read_secret(arn)


def _read_secret(arn: str) -> str:
    import json  # noqa: PLC0415 - boto3 costs 0.3 s of a cold start that a plain URI does not need

    import boto3  # noqa: PLC0415
    from botocore.config import Config  # noqa: PLC0415
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

    short = Config(connect_timeout=1, read_timeout=2, retries={"total_max_attempts": 2})
    try:
        text = boto3.client("secretsmanager", config=short).get_secret_value(SecretId=arn)["SecretString"]
    except (BotoCoreError, ClientError, KeyError) as error:
        raise SettingsError(f"the secret in MONGODB_SECRET_ARN cannot be read ({type(error).__name__})") from None
    try:
        stored = json.loads(text)
    except ValueError:
        return str(text).strip()
    if isinstance(stored, dict) and isinstance(stored.get("uri"), str):
        return str(stored["uri"]).strip()
    raise SettingsError("the secret in MONGODB_SECRET_ARN must be a URI, or JSON with a field uri")
