"""What is fuzzed, and what must hold of each of its answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pymongo.database import Database
from werkzeug.test import Client

from tests.handlers.calls import strict
from tidemill.control.callers import grant_right
from tidemill.dev.event import key_id
from tidemill.dev.gateway import Gateway
from tidemill.http.models import CODES

KEY = "of-the-fuzzer"
HEADERS = {"x-api-key": KEY}
CALLER = key_id(KEY)

PAYLOADS: Final[Mapping[str, Mapping[str, Any]]] = {"noop": {}, "deliver_webhook": {"url": "https://example.com/"}}
"""The functions that requests name, and a payload that each takes."""


@dataclass(kw_only=True)
class Front:
    """The handler of `enqueue`, the gateway before it and the database behind it."""

    handler: Callable[[Any, Any], Any]
    gateway: Gateway
    db: Database[dict[str, Any]]
    ids: list[str] = field(default_factory=list)
    stored: int = 0
    also: Collection[str] = ()
    """Codes that no request leads to, but an event that is none of the REST API's."""

    def fill(self) -> None:
        """Enqueue a few tasks to ask for, and grant the right to ask for their queue."""
        grant_right(self.db, CALLER, "queues.read")
        client = Client(self.gateway)
        for name, payload in PAYLOADS.items():
            answer = client.post("/v1/tasks", headers=HEADERS, json={"name": name, "payload": payload})
            self.check(answer.status_code, answer.text)
            self.ids.append(strict(answer.text)["id"])

    def check(self, status: int, text: str) -> None:
        """Check one answer: it is none of a failure, strict JSON, and an error stored nothing."""
        body = strict(text)
        assert 200 <= status < 500, text
        if status >= 400:
            assert body.keys() == {"error"}
            assert body["error"].keys() == {"code", "message", "details"}
            assert all(one.keys() == {"field", "message"} for one in body["error"]["details"])
            assert body["error"]["code"] in CODES[status] or body["error"]["code"] in self.also
            assert len(text) < 20_000
        stored = self.db["tasks"].count_documents({})
        grown, self.stored = stored - self.stored, stored
        # Of a batch, those whose key came before are not new.
        assert 1 <= grown <= _tasks_in(body) if status == 202 else grown == 0, text


def _tasks_in(body: Any) -> int:
    """How many tasks an answer tells of."""
    return len(body["tasks"]) if "tasks" in body else 1


def as_text(returned: Any) -> tuple[int, str]:
    """Status and body of what the handler returned, which JSON must be able to hold."""
    json.dumps(returned, allow_nan=False)
    return int(returned["statusCode"]), str(returned["body"])
