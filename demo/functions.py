"""The Lambda handlers, the sample events and the context, as AWS would bring them together."""

from __future__ import annotations

import importlib
import json
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, TypeAlias

from demo import ROOT

Event: TypeAlias = dict[str, Any]

EVENTS = ROOT / "events"
ID_IN_EVENTS = "0" * 24
REQUEST_ID_IN_EVENTS = "7b0e9d52-6c1f-4a38-b2d7-5e4f3a2b1c0d"


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a handler is told of its invocation, which may last *timeout_sec*."""

    timeout_sec: float
    aws_request_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    started: float = field(default_factory=time.monotonic)

    def get_remaining_time_in_millis(self) -> int:
        """Return what is left of the invocation."""
        return int((self.started + self.timeout_sec - time.monotonic()) * 1000)


Handler: TypeAlias = Callable[[Event, Context], dict[str, Any]]


def handler(function: str) -> Handler:
    """Return the handler of a function."""
    found: Handler = module(function).lambda_handler
    return found


def module(function: str) -> ModuleType:
    """Return the module of a function's handler."""
    return importlib.import_module(f"tidemill.handlers.{function}")


def event(name: str, *, filled_in: Mapping[str, str] | None = None) -> Event:
    """Return ``events/<name>.json``, with the ids in it replaced as *filled_in* says."""
    text = (EVENTS / f"{name}.json").read_text()
    for placeholder, value in (filled_in or {}).items():
        text = text.replace(placeholder, value)
    loaded: Event = json.loads(text)
    return loaded


def post(task: Mapping[str, Any]) -> Event:
    """Return ``events/enqueue_webhook.json`` with *task* for a body."""
    return event("enqueue_webhook") | {"body": json.dumps(task)}


def about(name: str, task_id: str) -> Event:
    """Return ``events/get_task.json`` or ``cancel_task.json`` (by *name*) for this task."""
    return event(name, filled_in={ID_IN_EVENTS: task_id})


def death_of(request_id: str) -> Event:
    """Return what Lambda sends to the on-failure destination when this invocation of `execute` died."""
    return event("execute_failed", filled_in={REQUEST_ID_IN_EVENTS: request_id})
