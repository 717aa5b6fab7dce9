"""Work in a process and with a server of its own: none finds what another left, and whatever it does, it ends."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, Final, TypeAlias

from tidemill.testing import Mongod

ENDS_WITHIN_SEC: Final = 10
"""After it told what it found; a thread of its may hang."""

Work: TypeAlias = Callable[..., dict[str, Any]]
"""A function of a module, called with the URI of the server and whatever it is to be given; it returns JSON."""


def found_alone(name: str, work: Work, *given: Any, within_sec: float | None = None) -> dict[str, Any]:
    """Return what *work* returned, with its *name* and its ``seconds``.

    One that raises, whose process dies, or that takes longer than *within_sec* is ``{name, seconds, failed}``, with
    the reason in a sentence. Whatever happens, neither a server nor a process that it started is left.
    """
    started = time.monotonic()
    context = multiprocessing.get_context("spawn")  # no thread or client of ours is there when it forks
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_do, args=(work, given, theirs), name=name)
    process.start()
    theirs.close()
    found: dict[str, Any] = {}
    try:
        with suppress(EOFError):
            found = ours.recv() if ours.poll(within_sec) else {"failed": f"it did not end within {within_sec} s"}
        if "failed" not in found:
            wait([process.sentinel], ENDS_WITHIN_SEC)
    finally:
        ours.close()
        _end(process)
    found = found or {"failed": f"its process ended with {process.exitcode}"}
    return {"name": name, "seconds": round(time.monotonic() - started, 1)} | found


def _end(process: SpawnProcess) -> None:
    """Kill its whole group, before its number can be another's; the server goes with it."""
    process.kill()  # it may have no group yet
    if process.pid:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.join()


def _do(work: Work, given: tuple[Any, ...], found: Connection) -> None:
    os.setpgid(0, 0)  # Ctrl-C is for who started this, which ends this and what this starts
    try:
        with Mongod() as server:
            section = work(server.uri, *given)
    except Exception as error:  # noqa: BLE001 - whatever it is, the others go on
        traceback.print_exc()
        section = {"failed": " ".join(f"{type(error).__name__}: {error}".split())}
    found.send(section)
