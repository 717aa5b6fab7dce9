"""API Gateway on this machine: a WSGI application in front of the handler of `enqueue`."""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

from werkzeug.exceptions import BadRequest, RequestEntityTooLarge

from tidemill.dev import responses
from tidemill.dev.event import STAGE, Event, Route, gateway_event
from tidemill.dev.responses import HttpResponse
from tidemill.dev.server import HttpRequest
from tidemill.testing import FakeContext

ENQUEUE_TIMEOUT: Final = timedelta(seconds=10)
"""Of the function `enqueue`, as in the template."""

Handler: TypeAlias = Callable[[Event, Any], dict[str, Any]]


class Gateway:
    """Passes requests below ``/v1`` to *handler*, and shows *document* as a page.

    Args:
        handler: The handler of `enqueue`. Like Lambda, the gateway never calls it twice at once.
        document: The OpenAPI document. It names every path and method that reaches the handler.
        say: Called with a line for each request.
    """

    def __init__(
        self,
        handler: Handler,
        document: Mapping[str, Any],
        *,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._handler = handler
        self._methods = {path: {method.upper() for method in document["paths"][path]} for path in document["paths"]}
        self._pages = responses.pages(document)
        self._say = say
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Answer a request."""
        started = time.monotonic()
        request = HttpRequest(environ)
        response = self._respond(request)
        milliseconds = (time.monotonic() - started) * 1000
        self._say(f"{_describe(request)}  {response.status_code}  {milliseconds:.0f} ms")
        return response(environ, start_response)

    def _respond(self, request: HttpRequest) -> HttpResponse:
        try:
            request.read_body()
        except RequestEntityTooLarge:
            return responses.TOO_LARGE
        except BadRequest:
            return responses.UNREADABLE
        page = self._pages.get(request.target.path) if request.method in {"GET", "HEAD"} else None
        return page or self._forward(request)

    def _forward(self, request: HttpRequest) -> HttpResponse:
        route = self._find_route(request)
        if route is None:
            return responses.NO_ROUTE
        api_key = request.last_header("x-api-key")
        if not api_key:
            return responses.NO_KEY
        event = gateway_event(request, route, api_key=api_key, request_id=str(uuid.uuid4()), now=datetime.now(UTC))
        return self._call_handler(event)

    def _find_route(self, request: HttpRequest) -> Route | None:
        """Return the resource of the path if it has the method; a resource without parameters goes first."""
        path = request.target.path.removeprefix(f"/{STAGE}")
        if path == request.target.path:
            return None
        for resource in sorted(self._methods, key=lambda resource: resource.count("{")):
            match = re.fullmatch(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", resource), path)
            if match:
                route = Route(resource=resource, path=path, parameters=match.groupdict())
                return route if request.environ["REQUEST_METHOD"] in self._methods[resource] else None
        return None

    def _call_handler(self, event: Event) -> HttpResponse:
        try:
            with self._lock:
                returned = self._handler(event, FakeContext(ENQUEUE_TIMEOUT))
            return responses.from_handler(returned)
        except Exception as error:  # noqa: BLE001 - whatever a handler raises, the gateway answers
            self._say(f"the handler failed: {type(error).__name__}")
            return responses.HANDLER_FAILED


def _describe(request: HttpRequest) -> str:
    """Return method and path for a log line: printable, and at most 120 characters."""
    text = f"{request.environ['REQUEST_METHOD']} {request.environ['REQUEST_URI']}"
    return "".join(character if character.isprintable() else "?" for character in text[:120])
