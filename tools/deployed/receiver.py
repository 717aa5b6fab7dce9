"""The other side of the webhooks: an HTTP server on loopback whose answer is in the path."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Final

SLOW_SEC: Final = 2.0
RETRY_AFTER_SEC: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One request: the task's id, and when it came, on the monotonic clock."""

    path: str
    task_id: str
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Receiver:
    """What came in; from *is_cured* on, ``/broken`` takes what it refused before.

    ``/ok`` is answered 204, and so are all others in the end: ``/flaky`` after one 503, ``/slow`` after `SLOW_SEC`,
    ``/broken`` after 410s, and ``/hang`` when it is sent for the second time: the first one waits for ever.
    """

    url: str
    deliveries: list[Delivery] = field(default_factory=list)
    is_cured: Event = field(default_factory=Event)

    def find(self, task_id: str) -> list[Delivery]:
        """Return the deliveries of a task."""
        return [one for one in list(self.deliveries) if one.task_id == task_id]


@contextmanager
def start_receiver() -> Iterator[Receiver]:
    """Serve until the block ends."""
    is_over = Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            task_id = self.headers["Webhook-Id"]
            is_first = not receiver.find(task_id)
            receiver.deliveries.append(Delivery(path=self.path, task_id=task_id, at=time.monotonic()))
            if self.path == "/hang" and is_first:
                is_over.wait()
            elif self.path == "/slow":
                time.sleep(SLOW_SEC)
            self._answer(is_first=is_first)

        def _answer(self, *, is_first: bool) -> None:
            if self.path == "/flaky" and is_first:
                self.send_response(503)
                self.send_header("Retry-After", str(RETRY_AFTER_SEC))
            elif self.path == "/broken" and not receiver.is_cured.is_set():
                self.send_response(410)
            else:
                self.send_response(204)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Leave the screen to the table."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, *_: object) -> None:
            """Callers that are killed close their connections early."""

    with Server(("127.0.0.1", 0), Handler) as server:
        receiver = Receiver(url=f"http://127.0.0.1:{server.server_address[1]}")
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        try:
            yield receiver
        finally:
            is_over.set()
            server.shutdown()
