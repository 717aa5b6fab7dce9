"""The way to the server, on which replies are lost, and commands delivered when nobody waits for them any more."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Final

from tests.handlers.wire import Proxy

GRACE_SEC: Final = 0.05
"""So long a server has for a command whose sender has left, before it is told so."""


class Road(Proxy):
    """A proxy that does so with messages known by their request ids. ``hits`` counts them.

    The driver's own messages have the names of commands too: each few milliseconds its watch asks the server ``hello``.
    """

    def __init__(self, uri: str) -> None:
        self.hits = 0
        self._delays: dict[int, float] = {}
        self._under_way = 0
        self._done = threading.Condition()
        super().__init__(uri)

    def spoil(self, request_id: int, *, delay_sec: float = 0.0) -> None:
        """Lose the reply of the message that has *request_id*, or deliver the message *delay_sec* late instead."""
        self._delays[request_id] = delay_sec

    def heal(self) -> None:
        """Spoil nothing any more, and wait until all that is late has been delivered."""
        self._delays.clear()
        with self._done:
            self._done.wait_for(lambda: not self._under_way)

    def _ask(self, near: socket.socket, far: socket.socket, losing: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := near.recv(65536):
                delay_sec = self._delays.pop(_request_id(data), None)
                if delay_sec is None:
                    far.sendall(data)
                else:
                    self.hits += 1
                    self._pass_on(data, far, losing, delay_sec=delay_sec)
        self._hang_up(near, far)

    def _pass_on(self, data: bytes, far: socket.socket, losing: threading.Event, *, delay_sec: float) -> None:
        if not delay_sec:
            losing.set()
            far.sendall(data)
            return
        with self._done:
            self._under_way += 1
        try:
            time.sleep(delay_sec)
            far.sendall(data)
            time.sleep(GRACE_SEC)
        finally:
            with self._done:
                self._under_way -= 1
                self._done.notify_all()


def _request_id(data: bytes) -> int:
    """Return the request id in the head of a message: a driver sends the next one after the reply to the last."""
    return int.from_bytes(data[4:8], "little", signed=True)
