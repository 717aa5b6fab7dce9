"""The program of a container: it has the handlers of some functions, and invokes them as it is told.

``python -m load_container FUNCTIONS SOCKET`` answers on the socket of that number until nobody asks any more.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import psutil

from tests.handlers.calls import app
from tidemill.testing import FakeContext


def main(functions: str, descriptor: str) -> None:
    """Serve."""
    handlers = {name: app(name).lambda_handler for name in functions.split(",")}
    with Connection(int(descriptor)) as line, suppress(EOFError):
        while True:
            request = line.recv()
            try:
                line.send((_read() if request is None else _invoked(handlers, *request), None))
            except Exception as error:  # noqa: BLE001 - as the runtime does: it becomes the answer
                line.send((None, f"{type(error).__name__}: {error}"))


def _invoked(handlers: Mapping[str, Any], function: str, event: Any, remaining_sec: float, request_id: str) -> Any:
    return handlers[function](event, FakeContext(timedelta(seconds=remaining_sec), request_id=request_id))


def _read() -> dict[str, int]:
    gc.collect()
    process = psutil.Process()
    return {
        "blocks": sys.getallocatedblocks(),
        "resident": process.memory_info().rss,
        "threads": process.num_threads(),
        "files": process.num_fds(),
        "children": len(process.children(recursive=True)),
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
