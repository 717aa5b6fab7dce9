"""One execution environment: a process under Lambda's own runtime, and the Runtime API it asks for work."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

INIT_SEC: Final = 10.0
"""So long Lambda waits for a function's module to be imported."""

End: TypeAlias = Literal["response", "error", "exit", "timeout", "init"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """What a function is asked; *trace* is the value of the header ``X-Amzn-Trace-Id``."""

    request_id: str
    arn: str
    payload: bytes
    timeout: float
    trace: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How an invocation ended: with a *response* or an *error* of the handler, or its process did.

    Attributes:
        content: What the runtime sent, or what Lambda says of a process that is no more.
        init_ms: From the start of the process to its first question for work; ``None`` where it was warm.
        duration_ms: From the answer to that question to the end.
    """

    how: End
    content: bytes
    init_ms: float | None
    duration_ms: float


class Container:
    """A container, from its cold start until `stop`; it runs one invocation after the other.

    Its end, by itself or at the timeout, is the end of its process group: a sandbox outlives its process no more.
    """

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str], cwd: Path, output: Path) -> None:
        self._asked = threading.Event()
        self._work: queue.SimpleQueue[Invocation | None] = queue.SimpleQueue()
        self._ends: queue.SimpleQueue[tuple[End, bytes]] = queue.SimpleQueue()
        self._began = time.monotonic()
        self._asked_at: float | None = None
        self._was_run = False
        self.output = output
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        with output.open("wb") as stream:
            self._process = subprocess.Popen(
                unprivileged(command),
                env={**env, "AWS_LAMBDA_RUNTIME_API": f"127.0.0.1:{self._server.server_port}"},
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )
        threading.Thread(target=self._watch, daemon=True).start()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Tell whether it can take another invocation."""
        return self._process.poll() is None

    @property
    def cpu_ms(self) -> float:
        """How long its process has been at work on a processor so far; Linux tells."""
        threads = Path(f"/proc/{self.pid}/task").glob("*/schedstat")
        return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e6

    def run(self, invocation: Invocation) -> Ended:
        """Have it run *invocation*, and wait for the end of that; at the timeout it is killed."""
        init_ms = None if self._was_run else self._initialized()
        self._was_run = True
        start = time.monotonic()
        if self._asked_at is None:
            how, content = self._ends.get()
            how = "init" if how != "exit" else how
        else:
            self._work.put(invocation)
            how, content = self._end_of(invocation)
        duration_ms = (time.monotonic() - start) * 1000
        if how == "exit":
            content = _runtime_error("Runtime.ExitError", invocation, f"Runtime exited with error: {content.decode()}")
        if how in {"exit", "timeout", "init"}:
            self.stop()
        return Ended(how=how, content=content, init_ms=init_ms, duration_ms=duration_ms)

    def stop(self) -> None:
        """End it, with all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._work.put(None)
        self._server.shutdown()
        self._server.server_close()

    def _initialized(self) -> float:
        until = self._began + INIT_SEC
        while not self._asked.wait(0.02) and self.is_alive and self._ends.empty() and time.monotonic() < until:
            pass
        if self._asked_at is None and self.is_alive and self._ends.empty():
            self._ends.put(("init", b'{"errorType": "Sandbox.Timedout", "errorMessage": "the import took too long"}'))
        return ((self._asked_at or time.monotonic()) - self._began) * 1000

    def _end_of(self, invocation: Invocation) -> tuple[End, bytes]:
        try:
            return self._ends.get(timeout=invocation.timeout)
        except queue.Empty:
            said = f"Task timed out after {invocation.timeout:.2f} seconds"
            return "timeout", _runtime_error("Sandbox.Timedout", invocation, said)

    def _watch(self) -> None:
        code = self._process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        said = f"signal: {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        self._ends.put(("exit", said.encode()))

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        container = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # one packet for each answer, at once: else each call takes 80 ms longer
            disable_nagle_algorithm = True

            def do_GET(self) -> None:
                container._ask()
                invocation = container._work.get()
                if invocation is None:
                    self.close_connection = True
                    return
                self.send_response(200)
                for name, value in _headers(invocation).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(invocation.payload)

            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                self.send_response(202)
                self.send_header("Content-Length", "0")
                self.end_headers()
                self.wfile.flush()
                container._ends.put((_kind(self.path), content))

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        return Handler

    def _ask(self) -> None:
        if self._asked_at is None:
            self._asked_at = time.monotonic()
            self._asked.set()


def unprivileged(command: Sequence[str]) -> list[str]:
    """Return the command for a process that, as root too, cannot write to files that nobody may write to."""
    dropped = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    return [*dropped, *command]


def _kind(path: str) -> End:
    if path.endswith("/init/error"):
        return "init"
    return "response" if path.endswith("/response") else "error"


def _headers(invocation: Invocation) -> dict[str, str]:
    # awslambdaric does without none of these: it ends with a segmentation fault.
    return {
        "Content-Type": "application/json",
        "Content-Length": str(len(invocation.payload)),
        "Lambda-Runtime-Aws-Request-Id": invocation.request_id,
        "Lambda-Runtime-Deadline-Ms": str(int((time.time() + invocation.timeout) * 1000)),
        "Lambda-Runtime-Invoked-Function-Arn": invocation.arn,
        "Lambda-Runtime-Trace-Id": invocation.trace,
    }


def _runtime_error(kind: str, invocation: Invocation, said: str) -> bytes:
    message = f"RequestId: {invocation.request_id} Error: {said}"
    return json.dumps({"errorType": kind, "errorMessage": message}).encode()
