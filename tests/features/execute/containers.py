"""Containers that a test keeps warm, freezes and cuts off, and the wire between them and MongoDB."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from tests.handlers import wire
from tests.handlers.calls import ROOT


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one invocation: what the handler returned, or the name and text of what it raised."""

    returned: Any = None
    raised: str | None = None
    message: str = ""


class Container:
    """A process that serves one function, warm until it is left."""

    def __init__(self, function: str, *, uri: str, database: str, path: str = "", **environment: str) -> None:
        roots = [path, str(ROOT / "layers/core"), str(ROOT / "layers/tasks"), str(ROOT)]
        given = {"MONGODB_URI": uri, "MONGODB_DATABASE": database, "PYTHONPATH": ":".join(filter(None, roots))}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.features.execute.container", function],
            env=given | environment,
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._log: list[str] = []
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()

    def call(self, event: Any = None, *, seconds: float = 120.0, request_id: str | None = None) -> Outcome:
        """Invoke the function."""
        order = {"event": event, "seconds": seconds, "request_id": request_id or str(uuid.uuid4())}
        return Outcome(**self._ask(order))

    def done(self, event: Any = None, **options: Any) -> Any:
        """Invoke the function and return what it returned, as it must."""
        outcome = self.call(event, **options)
        assert outcome.raised is None, f"{outcome.raised}: {outcome.message}"
        return outcome.returned

    def thaw(self, *, frozen_sec: float, monotonic_goes_on: bool) -> None:
        """Let its clocks jump as if it had been frozen for so long."""
        self._ask({"wall": frozen_sec, "monotonic": frozen_sec if monotonic_goes_on else 0.0})

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Nothing of it runs inside."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def log(self) -> list[dict[str, Any]]:
        """The lines it has logged, after it has ended."""
        self._reader.join(10)
        return [json.loads(line) for line in self._log if line.startswith("{")]

    def kill(self) -> None:
        """End it as if it had run out of memory."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with contextlib.suppress(OSError):
                stream.close()
        self._reader.join(10)

    def _ask(self, order: Mapping[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the container died:\n" + "".join(self._log)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _read_log(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as stream:
            self._log += stream


class Wire(wire.Proxy):
    """A proxy that counts connections, and can let those that are open die in silence."""

    def __init__(self, uri: str) -> None:
        self.accepted = 0
        self._generation = 0
        super().__init__(uri)

    def forget(self) -> None:
        """Swallow whatever comes over the connections of until now, as a gateway does that forgot them."""
        self._generation += 1

    def _connect(self, near: socket.socket) -> None:
        self.accepted += 1
        super()._connect(near)

    def _ask(self, near: socket.socket, far: socket.socket, losing: threading.Event) -> None:  # noqa: ARG002
        generation = self._generation
        with contextlib.suppress(OSError):
            while data := near.recv(65536):
                if generation == self._generation:
                    far.sendall(data)
        self._hang_up(near, far)


@contextlib.contextmanager
def wired(uri: str) -> Iterator[Wire]:
    """A wire that is closed again."""
    made = Wire(uri)
    try:
        yield made
    finally:
        made.close()
