"""What goes back over HTTP: what a handler returned, or what API Gateway itself would say."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

JSON: Final = "application/json"
HTML: Final = "text/html; charset=utf-8"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAnswer:
    """An answer; a header may be there more than once."""

    status: int
    headers: Sequence[tuple[str, str]]
    body: bytes

    @property
    def status_line(self) -> str:
        """The status as WSGI wants it."""
        try:
            return f"{self.status} {HTTPStatus(self.status).phrase}"
        except ValueError:  # a number of the handler's own
            return f"{self.status} -"


def page(kind: str, text: str) -> HttpAnswer:
    """Return a page that is there for people."""
    return HttpAnswer(status=200, headers=[("Content-Type", kind), ("Cache-Control", "no-store")], body=text.encode())


def from_handler(returned: Mapping[str, Any]) -> HttpAnswer:
    """Return what API Gateway makes of the answer of a handler.

    Raises:
        LookupError: It is none that API Gateway takes.
        TypeError: Likewise.
        ValueError: Likewise.
    """
    body = returned.get("body") or ""
    content = base64.b64decode(body, validate=True) if returned.get("isBase64Encoded") else str(body).encode()
    return HttpAnswer(status=int(returned["statusCode"]), headers=list(_headers(returned)), body=content)


def no_key() -> HttpAnswer:
    """Return the answer to a request without ``x-api-key``; the template's gateway responses have the same words."""
    return refusal(403, "forbidden", "Send a valid API key in the header x-api-key.")


def no_route() -> HttpAnswer:
    """Return the answer to a path or method that there is not."""
    return refusal(404, "not_found", "There is no such path or method.")


def too_large() -> HttpAnswer:
    """Return the answer to a body that API Gateway does not take."""
    return refusal(413, "too_large", "A request is at most 4 MB.")


def unreadable() -> HttpAnswer:
    """Return the answer to a request that cannot be read."""
    return refusal(400, "request_refused", "Send the body with a Content-Length.")


def broken() -> HttpAnswer:
    """Return the answer where a handler failed or returned what is no answer."""
    message = "The request may or may not have been carried out. Send it again, a POST with the same Idempotency-Key."
    return refusal(502, "internal", message, ("Retry-After", "1"))


def refusal(status: int, code: str, message: str, *headers: tuple[str, str]) -> HttpAnswer:
    """Return an error in the one shape that all errors have."""
    body = json.dumps({"error": {"code": code, "message": message, "details": []}})
    return HttpAnswer(status=status, headers=[("Content-Type", JSON), *headers], body=body.encode())


def _headers(returned: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Yield the headers; one that is in both maps is in the one of many values."""
    many: Mapping[str, Sequence[Any]] = returned.get("multiValueHeaders") or {}
    taken = {name.lower() for name in many}
    for name, values in many.items():
        yield from ((name, str(value)) for value in values)
    for name, value in (returned.get("headers") or {}).items():
        if name.lower() not in taken:
            yield name, str(value)
