"""The way to the server, on which replies are lost, and commands delivered when nobody waits for them any more."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Final

from tests.functions.wire import Proxy

GRACE_SEC: Final = 0.05
"""So long a server has for a command whose sender has left, before it is told so."""


class Road(Proxy):
    """A proxy that does so with the next messages that name a command. ``hits`` counts them."""

    def __init__(self, uri: str) -> None:
        self.hits = 0
        self._command = b""
        self._left = 0
        self._delay_sec = 0.0
        self._under_way = 0
        self._done = threading.Condition()
        super().__init__(uri)

    def spoil(self, command: str, *, times: int, delay_sec: float = 0.0) -> None:
        """Lose the replies of the next *times* messages with *command*, or deliver them *delay_sec* late instead."""
        self._command, self._left, self._delay_sec = command.encode() + b"\x00", times, delay_sec

    def heal(self) -> None:
        """Spoil nothing any more, and wait until all that is late has been delivered."""
        self._left = 0
        with self._done:
            self._done.wait_for(lambda: not self._under_way)

    def _ask(self, near: socket.socket, far: socket.socket, losing: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := near.recv(65536):
                if self._left and self._command in data:
                    self._left -= 1
                    self.hits += 1
                    self._pass_on(data, far, losing)
                else:
                    far.sendall(data)
        self._hang_up(near, far)

    def _pass_on(self, data: bytes, far: socket.socket, losing: threading.Event) -> None:
        if not self._delay_sec:
            losing.set()
            far.sendall(data)
            return
        with self._done:
            self._under_way += 1
        try:
            time.sleep(self._delay_sec)
            far.sendall(data)
            time.sleep(GRACE_SEC)
        finally:
            with self._done:
                self._under_way -= 1
                self._done.notify_all()
