"""One section of the bench, in a process and with a server of its own: none finds what another left."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import time
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from typing import Any, Final

from tests.bench.figures import Scale, as_json
from tidemill.testing import Mongod

ENDS_WITHIN_SEC: Final = 10
"""After it told what it found; a thread of its may hang."""


def measured(name: str, scale: Scale) -> dict[str, Any]:
    """Return what the section *name* found, as JSON, with its ``name`` and its ``seconds``.

    One that fails, or whose process dies, is ``{name, seconds, failed}``, with the reason in a sentence. Whatever
    happens, neither a server nor a process that the section started is left.
    """
    started = time.monotonic()
    context = multiprocessing.get_context("spawn")  # no thread or client of ours is there when it forks
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(name, scale, theirs), name=name)
    process.start()
    theirs.close()
    found: dict[str, Any] = {}
    try:
        with suppress(EOFError):
            found = ours.recv()
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


def _measure(name: str, scale: Scale, found: Connection) -> None:
    os.setpgid(0, 0)  # Ctrl-C is for the bench, which ends this and what this starts
    try:
        measure = importlib.import_module(f"{__package__}.{name}").measure
        with Mongod() as server:
            section = as_json(measure(server.uri, scale))
    except Exception as error:  # noqa: BLE001 - whatever it is, the other sections go on
        traceback.print_exc()
        section = {"failed": " ".join(f"{type(error).__name__}: {error}".split())}
    found.send(section)
