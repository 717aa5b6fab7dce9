"""``make bench``: what taking tasks in costs beside what MongoDB does, warm, in one run.

Handler overhead is the time of the whole handler less that of the commands it sent. Ours and the bare driver's go in
turns, since the machine may be busy.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import pymongo
from pymongo.monitoring import CommandListener, CommandStartedEvent, CommandSucceededEvent

from tests.databases import make
from tests.functions.calls import app, sample
from tidemill import control
from tidemill.clock import ServerClock
from tidemill.registry import load
from tidemill.testing import FakeContext, Mongod

MANY: Final = 1000
_MS: Final = 1000.0


class Spent(CommandListener):
    """Adds up how long commands took."""

    seconds = 0.0

    def started(self, event: CommandStartedEvent) -> None:
        """Nothing is kept of it."""

    def succeeded(self, event: CommandSucceededEvent) -> None:
        self.seconds += event.duration_micros / 1e6

    def failed(self, event: object) -> None:
        """There are none."""


def timed(work: Callable[[], object]) -> float:
    """How many milliseconds *work* takes."""
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * _MS


def measure(event: dict[str, Any], bare: Callable[[], object], spent: Spent, *, times: int) -> dict[str, float]:
    """Medians of the handler, of its overhead, and of *bare*, in turns."""
    handler = app("enqueue").lambda_handler
    whole, overhead, floor = [], [], []
    for _ in range(times):
        fresh = json.loads(json.dumps(event))
        spent.seconds = 0.0
        whole.append(timed(lambda: _accepted(handler(fresh, FakeContext()))))  # noqa: B023 - called at once
        overhead.append(whole[-1] - spent.seconds * _MS)
        floor.append(timed(bare))
    return {
        "handler_ms": statistics.median(whole),
        "overhead_ms": statistics.median(overhead),
        "overhead_p99_ms": sorted(overhead)[int(times * 0.99)],
        "bare_ms": statistics.median(floor),
    }


def _accepted(answer: dict[str, Any]) -> None:
    if answer["statusCode"] >= 300:
        raise RuntimeError(answer["body"])


def _batch(**fields: Any) -> dict[str, Any]:
    tasks = [{"name": "noop", "payload": {"n": n, "to": "x" * 100}} | fields for n in range(MANY)]
    return sample("enqueue_batch") | {"body": json.dumps({"tasks": tasks})}


def main() -> int:
    """Print the table."""
    spent = Spent()
    with Mongod() as mongod, pymongo.MongoClient[dict[str, Any]](mongod.uri, tz_aware=True) as client:
        db, other = make(client), make(client)
        control.declare_types(db, load("tasks"), package="tasks", release="1", now=ServerClock(db).now())
        os.environ.update(MONGODB_URI=mongod.uri, MONGODB_DATABASE=db.name, POWERTOOLS_LOG_LEVEL="WARNING")
        pymongo.monitoring.register(spent)
        floor = other.with_options(write_concern=pymongo.WriteConcern("majority")).tasks

        def one() -> None:
            floor.insert_one({"name": "noop", "status": "done", "payload": {}})

        def many() -> None:
            floor.insert_many([{"name": "noop", "status": "done", "payload": {"n": n}} for n in range(MANY)])

        measure(sample("enqueue_webhook"), one, spent, times=50)  # warm up
        rows = {
            "POST /tasks": measure(sample("enqueue_webhook"), one, spent, times=500),
            "the same key again": measure(sample("enqueue_keyed"), one, spent, times=500),
            f"POST /tasks/batch of {MANY}": measure(_batch(), many, spent, times=9),
        }
    print(f"{'':28}" + "".join(f"{name:>17}" for name in next(iter(rows.values()))))  # noqa: T201
    for name, row in rows.items():
        print(f"{name:28}" + "".join(f"{value:17.2f}" for value in row.values()))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
