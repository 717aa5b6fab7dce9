"""Between a client and its server: a proxy whose connections a test can cut, and servers that are none."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

from pymongo.uri_parser import parse_uri


class Proxy:
    """Forwards a port of its own to the server of *uri*, one thread for each direction."""

    def __init__(self, uri: str) -> None:
        self.reroute(uri)
        self._lose_reply_of: bytes | None = None
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def uri(self) -> str:
        """Where to connect; the server's own address is not looked for."""
        return f"mongodb://127.0.0.1:{self._listener.getsockname()[1]}/?directConnection=true"

    def reroute(self, uri: str) -> None:
        """Send new connections to the server of *uri*."""
        [self._upstream] = parse_uri(uri)["nodelist"]

    def cut(self) -> None:
        """Close every connection."""
        with self._lock:
            cut, self._open = self._open, set()
        for one in cut:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def lose_reply_of(self, command: str) -> None:
        """Pass the next *command* on to the server, and close the connection in the place of its reply."""
        self._lose_reply_of = command.encode() + b"\x00"

    def close(self) -> None:
        """Close everything."""
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._connect(self._listener.accept()[0])

    def _connect(self, near: socket.socket) -> None:
        try:
            far = socket.create_connection(self._upstream)
        except OSError:
            near.close()
            return
        with self._lock:
            self._open |= {near, far}
        losing = threading.Event()
        threading.Thread(target=self._ask, args=(near, far, losing), daemon=True).start()
        threading.Thread(target=self._answer, args=(far, near, losing), daemon=True).start()

    def _ask(self, near: socket.socket, far: socket.socket, losing: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := near.recv(65536):
                if self._lose_reply_of is not None and self._lose_reply_of in data:
                    self._lose_reply_of = None
                    losing.set()
                far.sendall(data)
        self._hang_up(near, far)

    def _answer(self, far: socket.socket, near: socket.socket, losing: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while (data := far.recv(65536)) and not losing.is_set():
                near.sendall(data)
        self._hang_up(near, far)

    def _hang_up(self, *sockets: socket.socket) -> None:
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


@contextlib.contextmanager
def proxy(uri: str) -> Iterator[Proxy]:
    """A proxy that is closed again."""
    made = Proxy(uri)
    try:
        yield made
    finally:
        made.close()


@contextlib.contextmanager
def nobody() -> Iterator[str]:
    """The address of a port that refuses connections."""
    with socket.socket() as taken:  # bound and not listening, so that no other process gets it
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@contextlib.contextmanager
def silence() -> Iterator[str]:
    """The address of a port that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
