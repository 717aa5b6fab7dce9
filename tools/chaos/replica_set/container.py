"""A container of a function: a process that runs its handler, one invocation after the other, until it is killed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from typing import Any, Final, TypeAlias

from tests.handlers.calls import app
from tidemill.testing import FakeContext
from tools.chaos.replica_set.traces import BOX_PID

FUNCTIONS: Final = ("enqueue", "execute", "reclaim", "archive")
HANDLERS: Final = {function: app(function).lambda_handler for function in FUNCTIONS}
"""Imported by the fork server, so that a container starts warm: each is a fork of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Returned:
    """What the handler returned."""

    answer: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised:
    """What it raised instead."""

    kind: str
    text: str


Ended: TypeAlias = Returned | Raised


def run(function: str, variables: Mapping[str, str], log: Path, line: Connection) -> None:
    """Take invocations from *line* and answer them, until whoever started this is gone."""
    _write_to(log)
    Thread(target=_follow, daemon=True).start()
    os.environ.update(variables, **{BOX_PID: str(os.getpid())})
    while True:
        event, request_id, seconds = line.recv()
        line.send(_invoked(function, event, FakeContext(timedelta(seconds=seconds), request_id=request_id)))


def _invoked(function: str, event: Any, context: FakeContext) -> Ended:
    try:
        return Returned(answer=HANDLERS[function](event, context))
    except Exception as error:  # noqa: BLE001 - as the Lambda runtime does: it becomes the result
        return Raised(kind=type(error).__name__, text=str(error))


def _write_to(log: Path) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)


def _follow() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)
