"""One invocation of `execute`, as it runs in a process of its own. The fork server imports this beforehand."""

from __future__ import annotations

import os
from collections.abc import Mapping
from multiprocessing import parent_process
from multiprocessing.connection import Connection
from threading import Thread

from demo.functions import Context, Event, handler
from tasks import deliver_webhook, noop

# Imported here so that an invocation need not: each is a fork of a warm process, and opens its own connections.
PRELOADED = (deliver_webhook, noop)
EXECUTE = handler("execute")


def run(event: Event, request_id: str, timeout_sec: float, environment: Mapping[str, str], answer: Connection) -> None:
    """Call the handler, and send its report, or the text of what it raised."""
    _leave_with_the_demo()
    os.environ.update(environment)
    context = Context(timeout_sec=timeout_sec, aws_request_id=request_id)
    try:
        answer.send(EXECUTE(event, context))
    except Exception as error:  # noqa: BLE001 - as the Lambda runtime does: it becomes the result
        answer.send(f"{type(error).__name__}: {error}")


def _leave_with_the_demo() -> None:
    """Keep output off the terminal, and end when the demo does, however it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    Thread(target=_follow, daemon=True).start()


def _follow() -> None:
    demo = parent_process()
    if demo is not None:
        demo.join()
    os._exit(1)
