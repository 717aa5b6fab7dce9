"""What the HTTP handler takes: in this process, warm, with an event of the REST API in its hands.

Its overhead is the time of the whole handler less that of the commands it sent.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TextIO

import pymongo
import pytest
from pymongo.database import Database
from pymongo.monitoring import CommandListener, CommandStartedEvent, CommandSucceededEvent

from tests.handlers.calls import app, request
from tests.handlers.warm import cool_down
from tidemill.testing import FakeContext
from tools.bench.figures import Figure
from tools.bench.measuring import seconds, spread

MANY: Final = 1000
FEWER: Final = 20
"""Batches are sent so many times less often than single tasks."""

_MS: Final = 1000.0


def payload(n: int) -> dict[str, Any]:
    """Return what each task of the bench is told."""
    return {"url": "https://example.org/hooks/17", "body": {"n": n, "note": "x" * 100}}


class Spent(CommandListener):
    """Adds up how long commands took, and counts them."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.commands = 0

    def started(self, _event: CommandStartedEvent) -> None:
        """Count it."""
        self.commands += 1

    def succeeded(self, event: CommandSucceededEvent) -> None:
        """Add it."""
        self.seconds += event.duration_micros / 1e6

    def failed(self, event: object) -> None:
        """Nothing fails here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """How long the handler was about one request, what of that was its own, and how many commands it sent."""

    ms: float
    own_ms: float
    commands: int


def figures(uri: str, db: Database[Any], *, rounds: int, requests: int) -> list[Figure]:
    """Return the figures of so many *requests* of each kind in each of the *rounds*.

    In *db* an executor has registered ``noop``.
    """
    with _front(uri, db) as send:
        kinds: dict[str, Callable[[], Answered]] = {
            "POST /tasks": lambda: send(_single()),
            "POST /tasks, a key again": lambda: send(_single(key="again")),
        }
        batches = {f"POST /tasks/batch of {MANY:,}": lambda: send(_batch())}
        _in_rounds(1, 1, kinds | batches)
        found = _in_rounds(rounds, requests, kinds) | _in_rounds(rounds, max(1, requests // FEWER), batches)
    return [_figure(kind, answers) for kind, answers in found.items()]


@contextmanager
def _front(uri: str, db: Database[Any]) -> Iterator[Callable[[dict[str, Any]], Answered]]:
    """Give what sends an event to the handler, whose logs nobody reads."""
    spent = Spent()
    make, module = pymongo.MongoClient, app("enqueue")
    clients = []

    def observed(*args: Any, **options: Any) -> pymongo.MongoClient[Any]:
        clients.append(make(*args, **options, event_listeners=[spent]))
        return clients[-1]

    def send(event: dict[str, Any]) -> Answered:
        before, commands = spent.seconds, spent.commands
        took = seconds(lambda: _accepted(module.lambda_handler(event, FakeContext())))
        own = took - (spent.seconds - before)
        return Answered(ms=took * _MS, own_ms=own * _MS, commands=spent.commands - commands)

    with pytest.MonkeyPatch.context() as environment, Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        environment.setattr(pymongo, "MongoClient", observed)
        _silence(module.logger.handlers, nowhere, environment)
        for name, value in {"MONGODB_URI": uri, "MONGODB_DATABASE": db.name}.items():
            environment.setenv(name, value)
        environment.delenv("EXECUTE_FUNCTION", raising=False)
        cool_down()
        try:
            yield send
        finally:
            cool_down()
            for client in clients:
                client.close()


def _silence(handlers: Sequence[Any], nowhere: TextIO, environment: pytest.MonkeyPatch) -> None:
    for handler in handlers:
        environment.setattr(handler, "stream", nowhere)


def _accepted(answer: Mapping[str, Any]) -> None:
    if answer["statusCode"] >= 300:
        raise RuntimeError(answer["body"])


def _single(*, key: str | None = None) -> dict[str, Any]:
    headers = {} if key is None else {"Idempotency-Key": key}
    return request(body={"name": "noop", "payload": payload(0)}, headers=headers)


def _batch() -> dict[str, Any]:
    tasks = [{"name": "noop", "payload": payload(n)} for n in range(MANY)]
    return request(path="/tasks/batch", body=json.dumps({"tasks": tasks}))


def _in_rounds(rounds: int, times: int, kinds: Mapping[str, Callable[[], Answered]]) -> dict[str, list[list[Answered]]]:
    found: dict[str, list[list[Answered]]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        for kind, send in kinds.items():
            found[kind].append([send() for _ in range(times)])
    return found


def _figure(kind: str, rounds: Sequence[Sequence[Answered]]) -> Figure:
    every = [one for answers in rounds for one in answers]
    each = spread([statistics.median(one.own_ms for one in answers) for answers in rounds])
    whole, commands = statistics.median(one.ms for one in every), max(one.commands for one in every)
    slowest = sorted(one.own_ms for one in every)[int(len(every) * 0.99)]
    return Figure(
        name=f"{kind}: the handler's own time",
        value=each.median,
        unit="ms",
        absolute=f"p99 {slowest:.2f} ms; with MongoDB {whole:.2f} ms, round trips: {commands}",
        least=each.least,
        most=each.most,
    )
