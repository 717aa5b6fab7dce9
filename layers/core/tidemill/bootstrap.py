"""The deployment of this process: its settings, and the clients and contexts that handlers and commands work with."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache, cached_property
from pathlib import Path
from threading import Event
from typing import Any, Final, Literal, TypeAlias, TypeVar

from pymongo.database import Database

from tidemill import indexes, settings
from tidemill.admin.context import AdminContext
from tidemill.aws import lambda_functions, secrets
from tidemill.aws.s3 import Bucket
from tidemill.client import Queue
from tidemill.clock import ServerClock, Uptime
from tidemill.control import task_types
from tidemill.control.callers import CallerRights
from tidemill.control.declarer import Declarer
from tidemill.control.fleet import ExecutorSlots
from tidemill.control.queues import OptionsReader
from tidemill.control.task_types import Directory
from tidemill.dead_letters.archive import ArchiveContext
from tidemill.dead_letters.export_format import PutObject
from tidemill.documents import DEAD_LETTERS
from tidemill.enqueue.enqueue import EventService
from tidemill.errors import (
    CredentialsError,
    RefusedError,
    RegistrationError,
    RetentionError,
    SettingsError,
    TidemillError,
    UnavailableError,
)
from tidemill.executor.context import Runtime
from tidemill.executor.lifetime import TIMING
from tidemill.executor.scaling import WAKE_DEBOUNCE_SEC, WAKE_TIMEOUT_SEC, Launcher, Waker
from tidemill.module_faults import describe_faults
from tidemill.reclaim import ReclaimContext
from tidemill.registry import LoadedPackage, load_package
from tidemill.requests.events import Source
from tidemill.requests.tasks import MAX_TIMEOUT_SEC
from tidemill.runner.output import quiet_drivers
from tidemill.runner.process_pool import ProcessPool
from tidemill.store import connection
from tidemill.store.connection import limit_time, open_tasks, translate_errors, with_majority, with_prefix
from tidemill.store.index_obstacles import explain_obstacles
from tidemill.store.mark import require_mark

_T = TypeVar("_T")

Role: TypeAlias = Literal["enqueue", "execute", "reclaim", "archive", "operate", "cli", "work", "maintenance"]
"""The use of a client: each role has a client of its own, named ``tidemill-ROLE``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits:
    """Limits of one MongoDB client: the time of an operation, and the connections in its pool."""

    timeout_sec: float = 10.0
    pool: int = 2


CLIENT_LIMITS: Final[Mapping[Role, ClientLimits]] = {
    "enqueue": ClientLimits(timeout_sec=4.0),
    "execute": ClientLimits(pool=4),
    "reclaim": ClientLimits(),
    "archive": ClientLimits(),
    "operate": ClientLimits(timeout_sec=4.0),
    "cli": ClientLimits(timeout_sec=4.0),
    "work": ClientLimits(timeout_sec=5.0, pool=4),
    "maintenance": ClientLimits(timeout_sec=5.0),
}


@cache
def deployment() -> Deployment:
    """Return the deployment of this process; read the environment on the first call.

    Raises:
        SettingsError: A variable is malformed.
    """
    quiet_drivers()
    return Deployment(settings.from_environment(os.environ), is_in_lambda=lambda_functions.is_in_lambda())


def prepare_wake() -> None:
    """Prepare the first wake at the start of a container, when it costs no request any time.

    It raises nothing and takes little longer than a wake. Requests and wakes report faults.
    """
    if lambda_functions.is_in_lambda():
        with suppress(TidemillError):
            deployment().prepare_wake()


class Deployment:
    """Settings, clients and contexts of one process.

    Attributes last as long as the process. Cached properties depend on a MongoDB client: `reset` forgets them.

    Attributes:
        settings: The settings of the environment.
        put: Stores an object in the archive bucket; ``None`` without a bucket.
        waker: Wakes an executor for a new task; ``None`` without an execute function, or outside of Lambda.
        failures_queue: The queue of messages that no repeat can mend; ``None`` without one, or outside of Lambda.
    """

    def __init__(self, settings: settings.Settings, *, is_in_lambda: bool) -> None:
        self.settings = settings
        self._is_in_lambda = is_in_lambda
        # Before task modules are imported, which may change both.
        self._directory, self._python_path = Path.cwd(), tuple(sys.path)
        arn = settings.secret_arn if settings.mongodb_uri is None else None
        self._secret = None if arn is None else secrets.Secret(arn, monotonic=Uptime())
        self.put: PutObject | None = None if settings.archive_bucket is None else Bucket(settings.archive_bucket).put
        self.waker = self.make_waker(Uptime()) if is_in_lambda else None
        url = settings.failures_queue if is_in_lambda else None
        self.failures_queue = None if url is None else lambda_functions.MessageQueue(url)
        self._databases: dict[Role, Database[Any]] = {}
        self._marked: set[Role] = set()
        self._indexed: set[Role] = set()
        self._pools: list[ProcessPool] = []

    def with_current_secret(self, work: Callable[[], _T]) -> _T:
        """Return the result of *work*; call it again if the secret has a new password.

        Raises:
            TidemillError: As `tidemill.aws.secrets.with_current_secret` raises it.
        """
        return secrets.with_current_secret(work, secret=self._secret, reset=self.reset)

    def reset(self) -> None:
        """Close clients and process pools, and forget everything made with them; the next use makes new ones."""
        for name, member in vars(Deployment).items():
            if isinstance(member, cached_property):
                vars(self).pop(name, None)
        self._marked.clear()
        self._indexed.clear()
        self._close_pools()
        while self._databases:
            _, db = self._databases.popitem()
            with limit_time(0):  # the driver would wait for a server, to end its sessions there
                db.client.close()

    def forget_failed_imports(self) -> None:
        """Have the next use of `runtime` import modules again whose import failed: the reason may have passed."""
        runtime: Runtime | None = vars(self).get("runtime")
        if runtime is not None and any(fault.name is None for fault in runtime.faults):
            del self.runtime
            self._close_pools()

    def database(self, role: Role) -> Database[Any]:
        """Return the database through the client of *role*, once it bears Tidemill's mark.

        Writes are acknowledged by a majority and reads go to the primary; no option of the URI changes that.

        Raises:
            SettingsError: The URI cannot be used (the error does not show it), or the collections are not Tidemill's.
            UnsupportedServerError: The server is Amazon DocumentDB.
            UnavailableError: MongoDB did not answer.
        """
        db = self.connect(role)
        if role not in self._marked:
            require_mark(db, adopts=self.settings.adopt_as is not None)
            self._marked.add(role)
        return db

    def connect(self, role: Role) -> Database[Any]:
        """Return the database through the client of *role*, without a check of its mark.

        Raises:
            SettingsError: The URI is missing or cannot be used; the error does not show it.
            UnsupportedServerError: The server is Amazon DocumentDB.
        """
        if role not in self._databases:
            quiet_drivers()
            source, uri = self._find_uri()
            limits = CLIENT_LIMITS[role]
            client = connection.connect(
                uri, source=source, name=f"tidemill-{role}", timeout_sec=limits.timeout_sec, pool=limits.pool
            )
            self._databases[role] = with_prefix(with_majority(client[self.settings.database]), self.settings.prefix)
        return self._databases[role]

    @cached_property
    def enqueue_service(self) -> EventService:
        """The way in of the enqueue function."""
        db = self.database("enqueue")
        return EventService(db, clock=ServerClock(db), directory=Directory(db, monotonic=Uptime()))

    @cached_property
    def queue(self) -> Queue:
        """The queue in which the enqueue function looks up and cancels tasks."""
        return Queue(self.database("enqueue"), service=self.enqueue_service)

    @cached_property
    def caller_rights(self) -> CallerRights:
        """The rights of API keys."""
        return CallerRights(self.database("enqueue"), monotonic=Uptime())

    @cached_property
    def runtime(self) -> Runtime:
        """The shared parts of executions, with the task functions imported and declared."""
        package = self.settings.task_package
        loaded = load_package(package, max_timeout=self.settings.max_task_timeout)
        return self._make_runtime(self.database("execute"), loaded, self.settings, package=package, logs_json=True)

    @cached_property
    def reclaim_context(self) -> ReclaimContext:
        """The collaborators of the reclaim function."""
        return self.make_reclaim_context("reclaim")

    def make_reclaim_context(self, role: Role) -> ReclaimContext:
        """Return the collaborators of a reclaim run, through the client of *role*."""
        db = self.database(role)
        directory = Directory(db, monotonic=Uptime())
        return ReclaimContext(
            tasks=open_tasks(db),
            clock=ServerClock(db),
            policy=lambda task: task_types.resolve_task_policy(task, directory, deployment=self.settings.retry),
            options=OptionsReader(db, monotonic=Uptime()).options,
            adopt_as=self.settings.adopt_as,
        )

    @cached_property
    def archive_context(self) -> ArchiveContext:
        """The collaborators of the archive function."""
        return self.make_archive_context("archive", put=self.put)

    def make_archive_context(self, role: Role, *, put: PutObject | None) -> ArchiveContext:
        """Return the collaborators of an archive run, through the client of *role*, which exports with *put*."""
        db = self.database(role)
        return ArchiveContext(
            tasks=open_tasks(db),
            dead=open_tasks(db, DEAD_LETTERS),
            clock=ServerClock(db),
            task_retention=self.settings.retention.tasks,
            put=put,
            expire_unexported=self.settings.expire_unexported,
        )

    @cached_property
    def admin_context(self) -> AdminContext:
        """The collaborators of the operate function."""
        db = self.database("operate")
        return AdminContext(db=db, clock=ServerClock(db), retry=self.settings.retry, is_deployed=True, put=self.put)

    def executor_slots(self, role: Role) -> ExecutorSlots:
        """Return the executor slots of the deployment, through the client of *role*."""
        return ExecutorSlots(self.database(role), limit=self.settings.max_executors)

    def make_worker_runtime(self, package: str, *, logs_json: bool = False) -> Runtime:
        """Return the shared parts of a worker, with the task functions of *package* imported and declared.

        A worker has no end, so no timeout is too long for it. With *logs_json* loggers of isolated functions write
        lines of JSON.

        Raises:
            RegistrationError: The package registers no task function; the message has the faults of its modules.
        """
        loaded = load_package(package)
        if not len(loaded.registry):
            reason = f": {describe_faults(loaded.faults)}" if loaded.faults else ""
            raise RegistrationError(f"the modules of {package} register no task function{reason}")
        longest = timedelta(seconds=MAX_TIMEOUT_SEC)
        choices = replace(self.settings, max_task_timeout=longest)
        return self._make_runtime(self.database("work"), loaded, choices, package=package, logs_json=logs_json)

    def make_launcher(self, function: object, *, source: Source = "backlog") -> Launcher | None:
        """Return a launcher of executors if *function* is the ARN of a function; ``None`` outside of Lambda."""
        arn = lambda_functions.strip_qualifier(function)
        if arn is None or not self._is_in_lambda:
            return None
        return Launcher(lambda_functions.Starter(arn, source=source).start)

    def prepare_wake(self) -> None:
        """Make the client for wakes, open its connection and check the permission.

        Raises:
            TidemillError: There is no client, or no connection.
        """
        function = self.settings.execute_function
        if function is not None:
            lambda_functions.lambda_client()
            Launcher(lambda_functions.Starter(function, source="wake").check).launch(timeout_sec=WAKE_TIMEOUT_SEC)

    def create_missing_indexes(self, role: Role = "reclaim") -> tuple[str, ...]:
        """Create the missing indexes that take little time; return the names of the rest, or what stands against them.

        Once nothing is missing, later calls do nothing until `reset`. An error of the database is returned, not
        raised: an index must not keep reclaim from its work, least of all the tasks of a dead executor.

        Raises:
            CredentialsError: MongoDB refused the credentials.
        """
        if role in self._indexed:
            return ()
        try:
            with translate_errors():
                missing = indexes.maintain(self.database(role), retention=self.settings.retention)
        except CredentialsError:
            raise
        except (RetentionError, UnavailableError) as error:
            return (str(error),)
        except RefusedError as error:
            return self._explain_refusal(error, role)
        if not missing:
            self._indexed.add(role)
        return tuple(index.name for index in missing)

    def _explain_refusal(self, error: RefusedError, role: Role) -> tuple[str, ...]:
        """Return a sentence for each index that documents stand against, or the *error* of the database."""
        db = self.database(role)
        sentences: tuple[str, ...] = ()
        with suppress(TidemillError), translate_errors():
            sentences = explain_obstacles(db, indexes.find_missing(db))
        return sentences or (f"{error}: run `tidemill indexes`",)

    def make_waker(
        self, uptime: Callable[[], float], *, wait: Callable[[Event, float], bool] = Event.wait
    ) -> Waker | None:
        """Return the waker of executors, which counts seconds by *uptime*; ``None`` without an execute function."""
        function = self.settings.execute_function
        if function is None:
            return None
        # A wake is left out while the executor of the last one looks for tasks: shorter where executors linger less.
        quiet_sec = WAKE_DEBOUNCE_SEC * min(self.settings.linger.total_seconds() / TIMING.linger_after_launch_sec, 1.0)
        executor_launcher = Launcher(
            lambda_functions.Starter(function, source="wake").start, monotonic=uptime, wait=wait
        )
        return Waker(executor_launcher, quiet_sec=quiet_sec, monotonic=uptime)

    def _make_runtime(
        self, db: Database[Any], loaded: LoadedPackage, choices: settings.Settings, *, package: str, logs_json: bool
    ) -> Runtime:
        clock = ServerClock(db)
        declarer = Declarer(
            db, loaded.registry, package=package, release=choices.release, faults=loaded.faults, monotonic=Uptime()
        )
        declarer.declare_if_due(now=clock.now())
        pool = ProcessPool(package, directory=self._directory, python_path=self._python_path, logs_json=logs_json)
        self._pools.append(pool)
        return Runtime(
            tasks=open_tasks(db),
            registry=loaded.registry,
            settings=choices,
            clock=clock,
            options=OptionsReader(db, monotonic=Uptime()).options,
            isolation=pool,
            declarer=declarer,
        )

    def _close_pools(self) -> None:
        while self._pools:
            self._pools.pop().close()

    def _find_uri(self) -> tuple[str, str]:
        """Return the source of the URI, as a message may name it, and the URI."""
        if self.settings.mongodb_uri is not None:
            return "MONGODB_URI", self.settings.mongodb_uri
        if self._secret is None:
            raise SettingsError("MONGODB_URI is missing: set it, or MONGODB_SECRET_ARN")
        return "the secret in MONGODB_SECRET_ARN", self._secret.read_uri()
