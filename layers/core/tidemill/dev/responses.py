"""Responses: what a handler returned, the refusals of API Gateway itself, and the page of the documentation."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib import resources
from typing import Any, Final

from aws_lambda_powertools.event_handler.openapi import swagger_ui
from werkzeug.datastructures import Headers
from werkzeug.http import HTTP_STATUS_CODES
from werkzeug.wrappers import Response


class HttpResponse(Response):
    """A response, JSON unless its headers say otherwise, with the reason phrase as HTTP writes it."""

    default_mimetype = "application/json"

    def __init__(self, status: int, body: str | bytes, headers: Headers | Sequence[tuple[str, str]] = ()) -> None:
        super().__init__(body, f"{status} {HTTP_STATUS_CODES.get(status, '-')}", headers)


def _refusal(status: int, code: str, message: str, *headers: tuple[str, str]) -> HttpResponse:
    return HttpResponse(status, json.dumps({"error": {"code": code, "message": message, "details": []}}), headers)


# The refusals of API Gateway itself; the template's gateway responses have the same words.
UNREADABLE: Final = _refusal(400, "request_refused", "Send the body with a Content-Length.")
NO_KEY: Final = _refusal(403, "forbidden", "Send a valid API key in the header x-api-key.")
NO_ROUTE: Final = _refusal(404, "not_found", "There is no such path or method.")
TOO_LARGE: Final = _refusal(413, "too_large", "A request is at most 4 MB.")
HANDLER_FAILED: Final = _refusal(
    502,
    "internal",
    "The request may or may not have been carried out. Send it again, a POST with the same Idempotency-Key.",
    ("Retry-After", "1"),
)


def from_handler(returned: Mapping[str, Any]) -> HttpResponse:
    """Return what API Gateway makes of the answer of a handler.

    Raises:
        LookupError: API Gateway does not accept the answer.
        TypeError: Likewise.
        ValueError: Likewise.
    """
    body = returned.get("body") or ""
    content = base64.b64decode(body, validate=True) if returned.get("isBase64Encoded") else str(body).encode()
    headers = Headers(returned.get("multiValueHeaders"))
    for name, value in (returned.get("headers") or {}).items():
        headers.setdefault(name, value)
    return HttpResponse(int(returned["statusCode"]), content, headers)


def pages(document: Mapping[str, Any]) -> Mapping[str, HttpResponse]:
    """Return the pages by their path: the OpenAPI document, and Swagger UI with the document in it.

    Swagger UI is one file, so that it works without a network.
    """
    html = swagger_ui.generate_swagger_html(
        json.dumps(document).replace("</", "<\\/"),  # so that no text of the document ends the script
        _read_asset("swagger-ui-bundle.min.js"),  # unchanged: nothing in it ends a script
        _read_asset("swagger-ui.min.css"),
        "",  # without an address scripts and styles are part of the page
        None,
        persist_authorization=True,
    )
    html = html.replace('"?format=json"', '"openapi.json"')  # the link on the page
    html = html.replace("<title>Swagger UI</title>", f"<title>{escape(document['info']['title'])}</title>")
    return {
        "/": _page("text/html; charset=utf-8", html),
        "/openapi.json": _page("application/json", json.dumps(document, indent=2)),
    }


def _page(content_type: str, text: str) -> HttpResponse:
    return HttpResponse(200, text, [("Content-Type", content_type), ("Cache-Control", "no-store")])


def _read_asset(name: str) -> str:
    return (resources.files(swagger_ui) / name).read_text(encoding="utf-8")
