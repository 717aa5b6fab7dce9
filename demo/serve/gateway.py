"""API Gateway on this machine: a WSGI application in front of the handler of `enqueue`."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any, Final, TypeAlias

from demo.functions import Event
from demo.serve import answer
from demo.serve.answer import HttpAnswer
from demo.serve.event import STAGE, gateway_event
from demo.serve.http import Environ, HttpRequest, TooLargeError, UnreadableError, received, shown
from demo.serve.page import swagger_page
from demo.serve.routes import Routes
from tidemill.testing import FakeContext

TIMEOUT: Final = timedelta(seconds=10)
"""Of the function `enqueue`, as in the template."""

Handler: TypeAlias = Callable[[Event, FakeContext], dict[str, Any]]
StartResponse: TypeAlias = Callable[[str, list[tuple[str, str]]], object]


def _nothing(*_: object) -> None:
    """Do without it."""


class Gateway:
    """Passes requests below ``/v1`` to *handler*, one at a time, and shows *document* as a page.

    Args:
        handler: The handler of `enqueue`. Like Lambda, this never calls it twice at once.
        document: The OpenAPI document; its paths and methods are all that is let through.
        accepted: Called after a task was accepted.
        say: Gets a line for each request.
    """

    def __init__(
        self,
        handler: Handler,
        document: Mapping[str, Any],
        *,
        accepted: Callable[[], None] = _nothing,
        say: Callable[[str], None] = _nothing,
    ) -> None:
        self._handler = handler
        self._routes = Routes(document)
        self._pages = {
            "/": answer.page(answer.HTML, swagger_page(document)),
            "/openapi.json": answer.page(answer.JSON, json.dumps(document, indent=2)),
        }
        self._accepted = accepted
        self._say = say
        self._lock = threading.Lock()

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request."""
        started = time.monotonic()
        found = self._answer(environ)
        start_response(found.status_line, [*found.headers, ("Content-Length", str(len(found.body)))])
        self._say(f"{shown(environ)}  {found.status}  {(time.monotonic() - started) * 1000:.0f} ms")
        return [] if environ["REQUEST_METHOD"] == "HEAD" else [found.body]

    def _answer(self, environ: Environ) -> HttpAnswer:
        try:
            request = received(environ)
        except UnreadableError:
            return answer.unreadable()
        except TooLargeError:
            return answer.too_large()
        if request.method in {"GET", "HEAD"} and request.path in self._pages:
            return self._pages[request.path]
        return self._passed_on(request)

    def _passed_on(self, request: HttpRequest) -> HttpAnswer:
        stage, path = f"/{STAGE}", request.path.removeprefix(f"/{STAGE}")
        route = self._routes.find(request.method, path) if request.path.startswith(stage) else None
        if route is None:
            return answer.no_route()
        api_key = request.header("x-api-key")
        if not api_key:
            return answer.no_key()
        event = gateway_event(
            replace(request, path=path),
            route,
            api_key=api_key,
            request_id=str(uuid.uuid4()),
            now=datetime.now(UTC),
        )
        found = self._handled(event)
        if found.status == HTTPStatus.ACCEPTED:
            self._accepted()
        return found

    def _handled(self, event: Event) -> HttpAnswer:
        try:
            with self._lock:
                returned = self._handler(event, FakeContext(TIMEOUT))
            return answer.from_handler(returned)
        except Exception as error:  # noqa: BLE001 - whatever a handler raises, the gateway answers
            self._say(f"the handler failed: {type(error).__name__}")
            return answer.broken()
