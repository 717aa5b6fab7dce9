"""Executor process of `tidemill dev`: it loads the task functions, and runs due tasks until its parent stops it.

The parent talks to it over a socket. This process writes one line, ``ready`` with its functions, or it ends. It reads
the lines ``begin`` and ``stop``. If the parent dies, the socket ends, and this process ends at once.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Final

from pydantic.errors import PydanticUserError

from tidemill.bootstrap import deployment
from tidemill.cli.output import clean, print_stderr
from tidemill.dev.attempts import Attempts
from tidemill.dev.tracebacks import find_import_error, format_error
from tidemill.errors import Fail, TidemillError
from tidemill.executor.context import ExecutionOptions
from tidemill.executor.execution import work
from tidemill.executor.lifetime import WORKER_REMAINING, Worker
from tidemill.registry import TaskType, load_package
from tidemill.runner.resources import close_process_resources

NOT_LOADED: Final = 3
"""Exit status of an executor that could not load the task functions, and has said why."""

WHOLE: Final = "whole"
PARTS: Final = "parts"
READY: Final = "ready"
BEGIN: Final = "begin"
STOP: Final = "stop"

_INDENT: Final = " " * 10
"""Width of the time and the gap at the beginning of a line."""


def main(descriptor: str, owner: str, package: str, strictness: str) -> int:
    """Run as the executor *owner* with the task functions of *package*; return the exit status.

    With the *strictness* `WHOLE` one fault of the package ends it, with `PARTS` it runs the tasks without a fault.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets Ctrl-C
    sys.dont_write_bytecode = True  # a file that is saved twice within a second would run as it was before
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(line_buffering=True)
    sys.path.insert(0, str(Path.cwd()))
    stop, begun = threading.Event(), threading.Event()
    worker = Worker(stop)
    control = socket.socket(fileno=int(descriptor)).makefile("rw", encoding="utf-8")
    threading.Thread(target=_obey, args=(control, worker, stop, begun), daemon=True).start()
    try:
        loaded = load_package(package)
        for fault in loaded.faults:
            error = find_import_error(fault.module, package)
            say(f"not loaded: {fault}", *([] if error is None else format_error(error)))
        if not len(loaded.registry) and not loaded.faults:
            say(f"the modules of {package} register no task function: write @task(...) above one")
        if not len(loaded.registry) or (loaded.faults and strictness == WHOLE):
            return NOT_LOADED
        runtime = deployment().make_worker_runtime(package)
    except TidemillError as error:
        say(f"not loaded: {error}")
        return NOT_LOADED
    functions = {function.name: _make_payload(function) if function.http else None for function in runtime.registry}
    control.write(f"{READY} {json.dumps(functions, default=str)}\n")
    control.flush()
    begun.wait()
    attempts = Attempts(say)
    runtime = replace(runtime, observe=attempts.report, watch=lambda _: attempts.flush(), keeps_tracebacks=True)
    report = work(runtime, ExecutionOptions(owner=owner, remaining=WORKER_REMAINING), worker)
    if report.spent:
        say("no thread is left: too many functions run on after their timeout")
    if runtime.isolation is not None:
        runtime.isolation.close()
    close_process_resources()
    runtime.tasks.database.client.close()
    return 0


_VALUES: Final[Mapping[str, object]] = {
    "string": "text", "integer": 1, "number": 1, "boolean": True, "array": [], "object": {}
}  # fmt: skip
"""Value of each JSON type in an example."""


def _make_payload(task_type: TaskType) -> dict[str, object]:
    """Return an example of a payload that *task_type* takes: its required fields. Empty if no simple one is taken."""
    payload_type = task_type.signature.payload_type
    if payload_type is None:
        return {}
    with suppress(Fail, PydanticUserError):  # a value is bounded, or the type has no schema
        schema = payload_type.adapter.json_schema()
        fields = schema.get("properties", {})
        payload = {
            name: fields[name].get("examples", [_VALUES.get(fields[name].get("type"))])[0]
            for name in schema.get("required", ())
        }
        payload_type.validate(payload)
        return payload
    return {}


def say(line: str, *further: str) -> None:
    """Print *line* with the time, and *further* lines below it, on stdout; ignore a closed stdout."""
    now = datetime.now().astimezone()
    text = "\n".join([f"{now:%H:%M:%S}  {clean(line)}", *(f"{_INDENT}{text}" for text in further)])
    if sys.stdout is not None:
        print_stderr(text, stream=sys.stdout)


def _obey(control: IO[str], worker: Worker, stop: threading.Event, begun: threading.Event) -> None:
    with suppress(OSError, ValueError):
        for line in control:
            if line == f"{STOP}\n":
                running = worker.running
                stop.set()
                if running:
                    tasks = "1 running task finishes" if running == 1 else f"{running} running tasks finish"
                    say(f"{tasks} with the code of before")
            begun.set()
    os.killpg(0, signal.SIGKILL)  # the parent is dead; with this process end the programs that its tasks have started


if __name__ == "__main__":
    status = main(*sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)  # functions may have left threads that do not end
