"""Which tasks the demo enqueues, and where each of them has to end."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SEED = 20260701
QUICK = {"base_sec": 0.2, "factor": 2, "max_sec": 2}
"""A back-off for people who watch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Behaviour:
    """So many tasks that behave alike.

    Attributes:
        name: As the table calls them; several behaviours may share a row.
        ends: ``done``, or the reason of the dead letter.
        path: Where the receiver of the webhook does it; ``None`` where *task* is no webhook.
        options: Of the enqueue, beside name and payload.
        payload: Of the webhook, beside url and body.
    """

    name: str
    count: int
    ends: str
    max_retries: int
    path: str | None = None
    task: str = "deliver_webhook"
    options: Mapping[str, Any] = field(default_factory=dict)
    payload: Mapping[str, Any] = field(default_factory=dict)


HANG = "hang past the timeout"

# The retries left over where the end is `done` are for what a loaded machine adds of its own.
BEHAVIOURS = (
    Behaviour(name="succeed", count=120, ends="done", max_retries=4, path="/ok"),
    Behaviour(name="fail twice, then succeed", count=30, ends="done", max_retries=6, path="/flaky"),
    Behaviour(name="always fail (500)", count=20, ends="exhausted", max_retries=2, path="/broken"),
    Behaviour(name="are rejected (422)", count=16, ends="not_retryable", max_retries=2, path="/reject"),
    Behaviour(name=HANG, count=8, ends="exhausted", max_retries=1, path="/hang", payload={"timeout_sec": 1}),
    Behaviour(name=HANG, count=2, ends="exhausted", max_retries=1, task="demo_hang", options={"timeout_sec": 1}),
    Behaviour(name="kill the worker process", count=4, ends="worker_lost", max_retries=2, task="demo_crash"),
)
WEBHOOKS = sum(one.count for one in BEHAVIOURS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The body of one enqueue, and what is expected of its task."""

    behaviour: str
    ends: str
    body: dict[str, Any]


def requests(receiver: str) -> list[Request]:
    """Return the 200 requests, mixed up but the same each time; *receiver* is the URL of the flaky server."""
    wanted = [
        Request(behaviour=one.name, ends=one.ends, body=_body(one, number, receiver))
        for one in BEHAVIOURS
        for number in range(one.count)
    ]
    random.Random(SEED).shuffle(wanted)
    return wanted


def _body(behaviour: Behaviour, number: int, receiver: str) -> dict[str, Any]:
    payload: dict[str, Any] = {}
    if behaviour.path is not None:
        content = {"event": "order.paid", "order_id": number}
        payload = {"url": receiver + behaviour.path, "body": content, **behaviour.payload}
    retry = QUICK | {"max_retries": behaviour.max_retries}
    return {"name": behaviour.task, "payload": payload, "retry": retry, **behaviour.options}
