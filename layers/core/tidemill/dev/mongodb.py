"""MongoDB of `tidemill dev`: a mongod of its own, whose data stay in a folder of the project."""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TextIO

from pymongo.uri_parser import parse_uri

from tidemill.errors import TidemillError
from tidemill.testing._mongod_guard import SHUTDOWN_TIMEOUT_SEC, Guard, NotStarted
from tidemill.testing.mongod import (
    FLAGS,
    PRIMARY_TIMEOUT_SEC,
    REPLICA_SET,
    REPLICATION_FLAGS,
    URI_ERRORS,
    MongodNotFoundError,
    explain_failed_start,
    explain_missing_mongod,
    find_mongod,
    is_only_loopback,
    make_primary,
)

FIRST_PORT: Final = 27117
"""Preferred port of the first start in a folder. Later starts prefer the port of the last one."""

PORT_FILE: Final = "port"
LOCK_TIMEOUT_SEC: Final = SHUTDOWN_TIMEOUT_SEC + 2.0
"""Wait for the mongod of a `tidemill dev` that was killed: it shuts down by itself."""

LOCK_POLL_SEC: Final = 0.1
_OTHERWISE: Final = "set MONGODB_URI to a MongoDB that runs"


@contextmanager
def run_mongod(folder: Path, *, bind: str, fresh: bool = False) -> Iterator[str]:
    """Run a mongod with its data in *folder*, and yield its URI. It ends with this process, even at SIGKILL.

    Args:
        folder: The folder; it is made, with a ``.gitignore`` for itself.
        bind: The addresses to listen on, loopback among them, in the form of mongod's ``--bind_ip``.
        fresh: Delete the data of earlier starts first.

    Raises:
        TidemillError: There is no mongod, it did not start, or another `tidemill dev` uses the folder.
    """
    binary = _find_binary()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".gitignore").write_text("*\n", encoding="utf-8")
        lock = (folder / "lock").open("a+", encoding="utf-8")
    except OSError as error:
        raise TidemillError(f"cannot write to {folder} ({error.strerror}): pass another folder with --data") from None
    with lock:
        _acquire(lock, folder)
        data, ports = folder / "mongodb", folder / PORT_FILE
        if fresh:
            shutil.rmtree(data, ignore_errors=True)
        data.mkdir(exist_ok=True)
        command = [str(binary), *FLAGS, *REPLICATION_FLAGS, "--bind_ip", bind]
        guard = Guard(str(data), command, port=_choose_port(ports), descriptor=lock.fileno())
        try:
            outcome = guard.report()
            if isinstance(outcome, NotStarted):
                reason = explain_failed_start(outcome, otherwise=_OTHERWISE)
                raise TidemillError(f"{reason}\n`tidemill dev --fresh` starts without the data in {data}")
            make_primary(outcome.port, timeout_sec=PRIMARY_TIMEOUT_SEC)
            ports.write_text(str(outcome.port), encoding="utf-8")
            yield f"mongodb://127.0.0.1:{outcome.port}/?replicaSet={REPLICA_SET}"
        finally:
            guard.release()


def is_of_folder(uri: str, folder: Path) -> bool:
    """Return whether *uri* is that of the mongod of *folder*, which was printed at its last start."""
    return is_only_loopback(uri) and _list_ports(uri) == [_read_last_port(folder / PORT_FILE)]


def is_elsewhere(uri: str) -> bool:
    """Return whether *uri* names another machine. A malformed one names none."""
    return uri.startswith("mongodb+srv://") or not (is_only_loopback(uri) or _list_ports(uri) is None)


def _list_ports(uri: str) -> list[int | None] | None:
    """Return the port of each host of *uri*; ``None`` if it is malformed."""
    try:
        return [port for _, port in parse_uri(uri, validate=False)["nodelist"]]
    except (*URI_ERRORS, ImportError):  # the last one for mongodb+srv, which needs another package
        return None


def _find_binary() -> Path:
    try:
        return find_mongod()
    except MongodNotFoundError:
        message = explain_missing_mongod(platform.system(), platform.machine(), otherwise=_OTHERWISE)
        raise MongodNotFoundError(message) from None


def _acquire(lock: TextIO, folder: Path) -> None:
    """Lock the folder. The guard of a killed `tidemill dev` keeps the lock until its mongod has ended."""
    give_up_at = time.monotonic() + LOCK_TIMEOUT_SEC
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.seek(0)
            owner = lock.read().strip()
            if _is_running(owner) or time.monotonic() > give_up_at:
                raise TidemillError(
                    f"another `tidemill dev` (process {owner or 'unknown'}) uses {folder}: stop it, "
                    "or pass another folder with --data"
                ) from None
            time.sleep(LOCK_POLL_SEC)
        else:
            break
    lock.seek(0)
    lock.truncate()
    lock.write(str(os.getpid()))
    lock.flush()


def _is_running(process_id: str) -> bool:
    try:
        os.kill(int(process_id), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True


def _choose_port(ports: Path) -> int:
    """Return the port of the last start, or `FIRST_PORT`, if it is free; else any free port."""
    port = _read_last_port(ports) or FIRST_PORT
    for candidate in (port, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", candidate))
            except (OSError, OverflowError):
                continue
            free: int = probe.getsockname()[1]
            return free
    return port


def _read_last_port(ports: Path) -> int | None:
    try:
        return int(ports.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
