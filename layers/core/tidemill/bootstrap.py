"""Where the environment ends: clients, clock, registry and settings, each made once per process."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import cache
from typing import Any, Final, Protocol, TypeVar

from pymongo import MongoClient
from pymongo.database import Database

from tidemill import aws, control, indexes, mongodb, settings
from tidemill.archive import ArchiveError, Archives
from tidemill.buckets import Bucket
from tidemill.client import Queue
from tidemill.clock import ServerClock, Uptime
from tidemill.control import Directory, OptionsReader, Seats
from tidemill.documents import DEAD_LETTERS
from tidemill.errors import (
    CredentialsError,
    RefusedError,
    RegistrationError,
    RetentionError,
    SettingsError,
    TidemillError,
    UnavailableError,
)
from tidemill.executor import Order, Runtime
from tidemill.executor.linger import SUMMONED_SEC
from tidemill.export import Put
from tidemill.isolation import Nursery
from tidemill.model import LANES
from tidemill.operations import Desk
from tidemill.reclaim import Keeper
from tidemill.registry import Registry, load
from tidemill.requests import MAX_TIMEOUT_SEC, ExecuteRequest
from tidemill.store import majority, open_tasks, translated, within
from tidemill.summon import PATIENCE_SEC, QUIET_SEC, Summoner, Waker

_T = TypeVar("_T")

_clients: Final[list[MongoClient[Any]]] = []
_nurseries: Final[list[Nursery]] = []

LOCAL_LIFE: Final = timedelta(seconds=120)
"""How long a call without a Lambda context is taken to live."""


class Context(Protocol):
    """The part of the Lambda context that is used."""

    @property
    def aws_request_id(self) -> str:
        """The id of the invocation."""

    @property
    def invoked_function_arn(self) -> str:
        """The function that was invoked, perhaps with a qualifier."""

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
    client = mongodb.connect(uri, source=source, name=f"tidemill-{role}", timeout_sec=timeout_sec, pool=pool)
    _clients.append(client)
    return majority(client[chosen().database])


def with_current_secret(work: Callable[[], _T]) -> _T:
    """Return what *work* returns: once more, should MongoDB refuse credentials that the secret no longer holds.

    What is left of the first try is as if the invocation had been repeated. Connections that are open already are
    not affected by a change of the password, so it is the first command of *work* that fails, as a rule. What else
    may come of a wrong secret has the next invocation look whether it is another one by now.

    Raises:
        CredentialsError: The secret says what it said before, or what it says now is refused, too.
        SettingsError: It cannot be read, or used.
        TidemillError: What *work* raises.
    """
    _look_at_doubted_secret()
    try:
        return _doubting(work)
    except CredentialsError:
        _start_over()  # a client that was refused once finds no server for the next ten seconds
        secret = _secret()
        if secret is None or not secret.has_changed():
            raise
    try:
        return _doubting(work)
    except CredentialsError:
        _start_over()
        raise


@cache
def queue() -> Queue:
    """Return the queue that the enqueue function writes to."""
    db = database("enqueue", timeout_sec=4.0)
    return Queue(db, directory=directory())


@cache
def directory() -> Directory:
    """Return the declared names the enqueue function accepts."""
    return Directory(database("enqueue", timeout_sec=4.0), monotonic=Uptime())


@cache
def runtime() -> Runtime:
    """Return what executions share, with the task functions imported and declared."""
    registry = load(chosen().task_package)
    _refuse_what_never_fits(registry)
    return _runtime(database("execute", pool=4), registry, chosen(), package=chosen().task_package)


def worker_runtime(package: str) -> Runtime:
    """Return what a process that stays needs, with the task functions of *package* imported and declared.

    Since it has no end, no timeout is too long for it.

    Raises:
        RegistrationError: There is nothing in the package that could be run.
    """
    registry = load(package)
    if not len(registry):
        raise RegistrationError(f"the modules of {package} register no task function")
    longest = timedelta(seconds=MAX_TIMEOUT_SEC)
    db = database("work", timeout_sec=5.0, pool=4)
    return _runtime(db, registry, replace(chosen(), max_task_timeout=longest), package=package)


@cache
def seats() -> Seats:
    """Return the seats of the deployment's executors."""
    return Seats(database("execute", pool=4), limit=chosen().max_executors)


@cache
def waker() -> Waker | None:
    """Return what wakes an executor for a new task; ``None`` where there is none to wake, or outside of Lambda."""
    function = chosen().execute_function
    if function is None or not _is_in_lambda():
        return None
    _hush_drivers()
    # Where executors linger less, less can be left to one that was woken before.
    quiet_sec = QUIET_SEC * min(chosen().linger.total_seconds() / SUMMONED_SEC, 1.0)
    uptime = Uptime()
    summoner = Summoner(aws.Starter(function, source="wake").start, monotonic=uptime)
    return Waker(summoner, quiet_sec=quiet_sec, monotonic=uptime)


def get_ready_to_wake() -> None:
    """Do what a first wake would have no time for, where there will be one: for the start of a container.

    It raises nothing and takes little longer than a wake; what is wrong, requests and wakes will say.
    """
    if not _is_in_lambda():
        return
    with suppress(TidemillError):
        function = chosen().execute_function
        if function is not None:
            _hush_drivers()
            aws.lambda_client()
            Summoner(aws.Starter(function, source="wake").check).summon(patience_sec=PATIENCE_SEC)


def summoner(context: Context | None) -> Summoner | None:
    """Return what starts more executors of the kind that was invoked; ``None`` outside of Lambda."""
    return None if context is None or not _is_in_lambda() else summoner_of(context.invoked_function_arn)


def summoner_of(function: object) -> Summoner | None:
    """Return what starts executors where *function* is the ARN of one; ``None`` where not, or outside of Lambda."""
    arn = aws.unqualified(function)
    if arn is None or not _is_in_lambda():
        return None
    _hush_drivers()
    return Summoner(aws.Starter(arn, source="backlog").start)


@cache
def keeper() -> Keeper:
    """Return what reclaiming needs."""
    db = database("reclaim")
    known = Directory(db, monotonic=Uptime())
    return Keeper(
        tasks=open_tasks(db),
        clock=ServerClock(db),
        policy=lambda task: control.policy_of(task, known, deployment=chosen().retry),
        options=OptionsReader(db, monotonic=Uptime()).options,
        adopt_as=chosen().adopt_as,
    )


def missing_indexes() -> tuple[str, ...]:
    """Make the indexes that are missing while that is quick; return the names of those that still are.

    Done once per process, but again as long as some are missing. Where the database refuses, or fails, that is
    returned instead: housekeeping must not keep anybody from reclaiming, least of all what a death has left.

    Raises:
        CredentialsError: MongoDB does not know us.
    """
    try:
        names = _maintained()
    except CredentialsError:
        raise
    except RetentionError as error:
        return (str(error),)
    except RefusedError as error:
        return (f"{error}: run `tidemill indexes`",)
    except UnavailableError as error:
        return (str(error),)
    if names:
        _maintained.cache_clear()
    return names


@cache
def archives() -> Archives:
    """Return what archiving needs."""
    db = database("archive")
    return Archives(
        tasks=open_tasks(db),
        dead=open_tasks(db, DEAD_LETTERS),
        clock=ServerClock(db),
        forgotten_after=chosen().retention.tasks,
        put=put(),
        expire_unexported=chosen().expire_unexported,
    )


@cache
def put() -> Put | None:
    """Return what stores an object in the archive bucket; ``None`` where no bucket is configured."""
    bucket = chosen().archive_bucket
    if bucket is None:
        return None
    _hush_drivers()
    return Bucket(bucket).put


@cache
def desk() -> Desk:
    """Return what the operate function works with."""
    db = database("operate", timeout_sec=4.0)
    return Desk(db=db, clock=ServerClock(db), retry=chosen().retry, is_deployed=True, put=put())


def order(request: ExecuteRequest, context: Context | None) -> Order:
    """Return the order that *request* makes of this invocation."""
    return Order(
        owner=owner(context),
        remaining=remaining(context),
        source=request.source,
        queues=tuple(request.queues),
        lanes=LANES if request.lane is None else (request.lane,),
        selection=request.selection,
        concurrency=request.concurrency,
        batch_size=request.batch_size,
    )


def turned_away() -> bool:
    """Tell whether executors were turned away since the last one left, and take that as seen to."""
    return Seats(database("reclaim"), limit=chosen().max_executors).answer_knock()


def owner(context: Context | None) -> str:
    """Return the name leases are held under: the request id, by which the platform reports a death."""
    return context.aws_request_id if context is not None else f"local-{os.getpid()}"


def remaining(context: Context | None) -> timedelta:
    """Return what is left of this invocation."""
    return LOCAL_LIFE if context is None else timedelta(milliseconds=context.get_remaining_time_in_millis())


def until(context: Context | None, *, margin: timedelta) -> float:
    """Return when to stop, on the monotonic clock: *margin* before the invocation ends."""
    return time.monotonic() + (remaining(context) - margin).total_seconds()


def _look_at_doubted_secret() -> None:
    secret = _secret()
    with suppress(SettingsError):  # it cannot be read now: what it said may be right nevertheless
        if secret is not None and secret.is_doubted() and secret.has_changed():
            _start_over()


def _doubting(work: Callable[[], _T]) -> _T:
    """Return what *work* returns; let what a wrong secret may have led to cast a doubt on it."""
    try:
        return work()
    except SettingsError:
        secret = _secret()
        if secret is not None:
            secret.forget()
        raise
    except (UnavailableError, ArchiveError):
        secret = _secret()
        if secret is not None:
            secret.doubt()
        raise


def _start_over() -> None:
    """Close clients and helpers, and forget all that was made with them, and what is known of their database."""
    for made in (database, queue, directory, runtime, seats, keeper, archives, desk, _maintained):
        made.cache_clear()
    while _nurseries:
        _nurseries.pop().close()
    while _clients:
        with within(0):  # it would wait for a server, to tell it of the end of its sessions
            _clients.pop().close()


@cache
def _maintained() -> tuple[str, ...]:
    with translated():
        return tuple(one.name for one in indexes.maintain(database("reclaim"), retention=chosen().retention))


def _runtime(db: Database[Any], registry: Registry, choices: settings.Settings, *, package: str) -> Runtime:
    clock = ServerClock(db)
    control.declare_types(db, registry, package=package, release=choices.release, now=clock.now())
    nursery = Nursery(package)
    _nurseries.append(nursery)
    return Runtime(
        tasks=open_tasks(db),
        registry=registry,
        settings=choices,
        clock=clock,
        options=OptionsReader(db, monotonic=Uptime()).options,
        isolation=nursery,
    )


def _is_in_lambda() -> bool:
    """Tell whether functions can be invoked: this is one, and not on somebody's own machine."""
    return "AWS_LAMBDA_FUNCTION_NAME" in os.environ and "AWS_SAM_LOCAL" not in os.environ


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
        driver.setLevel(max(driver.level, logging.WARNING))


def _uri() -> tuple[str, str]:
    """Return what says where MongoDB is, as a message may name it, and what it says."""
    given, secret = chosen().mongodb_uri, _secret()
    if given is not None:
        return "MONGODB_URI", given
    if secret is None:
        raise SettingsError("MONGODB_URI is missing: set it, or MONGODB_SECRET_ARN")
    return "the secret in MONGODB_SECRET_ARN", secret.uri()


@cache
def _secret() -> aws.Secret | None:
    """Return the secret that says where MongoDB is, or ``None`` where something else does."""
    arn = chosen().secret_arn
    return None if arn is None or chosen().mongodb_uri is not None else aws.Secret(arn, monotonic=Uptime())
