"""The OpenAPI document as a page on which it can be tried out, all in one file: it works without a network."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from html import escape
from importlib import resources
from typing import Any

from aws_lambda_powertools.event_handler.openapi import swagger_ui


def swagger_page(document: Mapping[str, Any]) -> str:
    """Return the HTML of Swagger UI with *document* in it."""
    page = swagger_ui.generate_swagger_html(
        _in_script(json.dumps(document)),
        _file("swagger-ui-bundle.min.js"),  # as it is: nothing in it ends a script
        _file("swagger-ui.min.css"),
        "",  # without an address scripts and styles are part of the page
        None,
        persist_authorization=True,
    )
    page = page.replace('"?format=json"', '"openapi.json"')  # what the page links to
    return page.replace("<title>Swagger UI</title>", f"<title>{escape(document['info']['title'])}</title>")


@cache
def _file(name: str) -> str:
    return (resources.files(swagger_ui) / name).read_text(encoding="utf-8")


def _in_script(text: str) -> str:
    """Keep what looks like the end of a script from being one; of JSON only, as code may hold ``/</``."""
    return text.replace("</", "<\\/")
