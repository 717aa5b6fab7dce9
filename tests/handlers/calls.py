"""Raw events for handlers, and their answers taken apart."""

from __future__ import annotations

import copy
import functools
import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[2]
FUNCTIONS = ("enqueue", "execute", "reclaim", "archive", "operate")
CALLER = "k9p2s7x4q1"  # the id of the API key in events/


@functools.cache
def app(function: str) -> ModuleType:
    """The module of a function's handler."""
    return importlib.import_module(f"tidemill.handlers.{function}")


def sample(name: str) -> dict[str, Any]:
    """One of the events in events/."""
    event: dict[str, Any] = json.loads((ROOT / "events" / f"{name}.json").read_text())
    return event


def request(
    method: str = "POST",
    path: str = "/tasks",
    *,
    body: str | Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
    caller: str | None = CALLER,
    **changes: Any,
) -> dict[str, Any]:
    """A whole event of the REST API; *changes* replace its top-level fields."""
    event = copy.deepcopy(sample("enqueue_noop"))
    event["httpMethod"] = event["requestContext"]["httpMethod"] = method
    event["path"] = path
    event["requestContext"]["path"] = f"/v1{path}"
    event["requestContext"]["identity"]["apiKeyId"] = caller
    event["body"] = json.dumps(body) if isinstance(body, Mapping) else body
    for name, value in (headers or {}).items():
        event["headers"][name] = value
        event["multiValueHeaders"][name] = [value]
    return event | changes


def about(event: dict[str, Any], task_id: str) -> dict[str, Any]:
    """*event* with *task_id* where the sample has an id of zeros."""
    changed: dict[str, Any] = json.loads(json.dumps(event).replace("0" * 24, task_id))
    return changed


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What goes back to API Gateway; *body* is the parsed JSON, as strict as JSON is."""

    status: int
    headers: Mapping[str, str]
    body: Any
    text: str

    @property
    def id(self) -> str:
        """The id of the task that is told of."""
        task_id: str = self.body["id"]
        return task_id

    @property
    def code(self) -> str:
        """The code of the error, whose shape is checked by the way."""
        assert self.body.keys() == {"error"}
        assert self.body["error"].keys() == {"code", "message", "details"}
        code: str = self.body["error"]["code"]
        return code

    @property
    def fields(self) -> set[str]:
        """The fields that are said to be wrong."""
        return {one["field"] for one in self.body["error"]["details"]}


def answer(raw: Any) -> Answer:
    """Take apart what the handler of enqueue returned, as strictly as API Gateway does."""
    json.dumps(raw, allow_nan=False)
    assert raw.keys() <= {"statusCode", "headers", "multiValueHeaders", "body", "isBase64Encoded"}
    single = {name: values[0] for name, values in raw.get("multiValueHeaders", {}).items() if len(values) == 1}
    headers = single | raw.get("headers", {})
    assert all(isinstance(value, str) for value in headers.values())
    assert headers["Content-Type"] == "application/json"
    assert headers["Cache-Control"] == "no-store"
    return Answer(status=raw["statusCode"], headers=headers, body=strict(raw["body"]), text=raw["body"])


def strict(text: str) -> Any:
    """Parse JSON and nothing more than JSON."""
    return json.loads(text, parse_constant=_not_json)


def _not_json(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")
