"""Containers of functions, each a process that lives on from one invocation to the next."""

from __future__ import annotations

import socket
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import psutil

from tools.bench.children import Child

PROGRAM: Final = "load_container"
"""In the folder `LAYER`, with nothing to import that the functions need not."""

LAYER: Final = Path(__file__).parent / "layer"
PATIENCE_SEC: Final = 60.0


class DiedError(Exception):
    """The process of a container has ended."""


class RefusedError(Exception):
    """A handler raised, or refused what it had to take; the message says what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a container holds between two invocations.

    Attributes:
        blocks: How many pieces of memory Python has given out, garbage excluded.
        resident: Bytes of memory.
        threads, files: How many it has; *files* counts descriptors, connections among them.
        children: Its processes, and theirs.
    """

    blocks: int
    resident: int
    threads: int
    files: int
    children: int


class Container:
    """The end of a container at which it is asked, by one thread at a time."""

    def __init__(self, process: Child, line: Connection) -> None:
        self._process = process
        self._line = line
        self._lock = threading.Lock()
        self.pid = process.pid

    def invoke(
        self, function: str, event: Any = None, *, remaining: timedelta, request_id: str | None = None
    ) -> dict[str, Any]:
        """Return what the handler of *function* answers, to which the invocation leaves *remaining*.

        Raises:
            RefusedError: The handler raised.
            DiedError: The process ended meanwhile.
        """
        request = (function, event, remaining.total_seconds(), request_id or str(uuid.uuid4()))
        answer: dict[str, Any] = self._asked(request)
        return answer

    def read(self) -> Reading:
        """Return what it holds now.

        Raises:
            DiedError: The process has ended.
        """
        return Reading(**self._asked(None))

    def kill(self) -> None:
        """Kill the process, in the middle of whatever it does."""
        with suppress(psutil.NoSuchProcess):
            psutil.Process(self.pid).kill()

    def _asked(self, request: Any) -> Any:
        with self._lock:
            try:
                self._line.send(request)
                if not self._line.poll(PATIENCE_SEC):
                    raise TimeoutError(f"a container said nothing for {PATIENCE_SEC:.0f} s to {request!r:.100}")
                answer, trouble = self._line.recv()
            except (EOFError, OSError) as error:
                if isinstance(error, TimeoutError):
                    raise
                raise DiedError from None
        if trouble is not None:
            raise RefusedError(trouble)
        return answer


@contextmanager
def container(*functions: str, variables: Mapping[str, str]) -> Iterator[Container]:
    """Give a container of *functions*, whose environment has only *variables*, with `LAYER` on its path."""
    ours, theirs = socket.socketpair()
    with theirs:
        number = theirs.fileno()
        process = Child(
            PROGRAM,
            ",".join(functions),
            str(number),
            variables={**variables, "PYTHONPATH": str(LAYER)},
            pass_fds=[number],
        )
    with process, Connection(ours.detach()) as line:
        yield Container(process, line)
