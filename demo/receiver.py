"""The other side of the webhooks: a small HTTP server on loopback that is as flaky as it is told to be."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread

from tasks.deliver_webhook import signature

LATENCY_SEC = 0.05
FAILURES_OF_FLAKY = 2
STATUS = {"/hooks/orders": 200, "/ok": 200, "/flaky": 200, "/broken": 500, "/reject": 422}


@dataclass(frozen=True, slots=True, kw_only=True)
class Receiver:
    """What came in: the ``Webhook-Id`` of every delivery, and of those that were answered 200."""

    url: str
    deliveries: list[str] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)

    @property
    def repeated(self) -> int:
        """How many webhooks were accepted more than once: their executor died before it could write so."""
        return sum(times > 1 for times in Counter(self.accepted).values())


@contextmanager
def receiver(*, secret: str) -> Iterator[Receiver]:
    """Serve until the block ends. A delivery not signed with *secret* is answered 401."""
    over = Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            state.deliveries.append(self.headers["Webhook-Id"])
            if self.path == "/hang":
                over.wait()
                return
            time.sleep(LATENCY_SEC)
            self.answer(self.status(body))

        def status(self, body: bytes) -> int:
            if not self.is_signed(body):
                return 401
            if self.path == "/flaky" and int(self.headers["Webhook-Attempt"]) <= FAILURES_OF_FLAKY:
                return 503
            return STATUS.get(self.path, 404)

        def is_signed(self, body: bytes) -> bool:
            message_id, timestamp = self.headers["Webhook-Id"], int(self.headers["Webhook-Timestamp"])
            wanted = signature(secret.encode(), message_id=message_id, timestamp=timestamp, body=body)
            return bool(self.headers["Webhook-Signature"] == wanted)

        def answer(self, status: int) -> None:
            if status == 200:
                state.accepted.append(self.headers["Webhook-Id"])
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Leave the screen to the table."""

    with _Server(("127.0.0.1", 0), Handler) as server:
        state = Receiver(url=f"http://127.0.0.1:{server.server_address[1]}")
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield state
        finally:
            over.set()
            server.shutdown()


class _Server(ThreadingHTTPServer):
    request_queue_size = 128  # three executors of 16 slots call at once; a refused connection waits a second

    def handle_error(self, *_: object) -> None:
        """Callers that are killed hang up early; that is what the demo is about."""
