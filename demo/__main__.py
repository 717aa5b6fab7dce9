"""``python -m demo [--json]``: the exit status is 0 if every accepted task is accounted for, else 1."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from pymongo import MongoClient
from pymongo.database import Database
from pymongo.errors import PyMongoError
from rich.console import Console

from demo import report, scenario, screen
from demo.aws import Aws
from demo.front import Front
from demo.ledger import stories
from demo.play import Play, Show
from demo.receiver import receiver
from tidemill import TidemillError
from tidemill.testing import Mongod

DATABASE = "tidemill_demo"
SECRET = "the-demo-signs-with-this"
INTRODUCTION = (
    f"Tidemill: {scenario.WEBHOOKS} webhooks as tasks, through the Lambda handlers of functions/ and a MongoDB of the "
    "demo's own. Some fail, some hang, some kill the process of the executor that runs them. Each schedule ticks once "
    "a second."
)


def main() -> int:
    """Run the demo; return the exit status."""
    options = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    options.add_argument("--json", action="store_true", help="no table; one JSON object as the last line")
    chosen = options.parse_args()
    signal.signal(signal.SIGTERM, _stopped)
    signal.signal(signal.SIGINT, _stopped)
    try:
        return _in_json() if chosen.json else _on_screen()
    except (TidemillError, PyMongoError) as error:
        text = str(error) if isinstance(error, TidemillError) else f"MongoDB failed ({type(error).__name__})"
        print(f"tidemill: {text}", file=sys.stderr)
        return 1


def _in_json() -> int:
    with screen.plain(sys.stderr) as show:
        told = _played(show)
    print(told.verdict(), file=sys.stderr)
    print(json.dumps(told.numbers()))
    return 0 if told.account.is_balanced else 1


def _on_screen() -> int:
    console = Console(highlight=False, width=None if sys.stdout.isatty() else screen.WIDTH)
    console.print(INTRODUCTION)
    with screen.live(console) as show:
        told = _played(show)
    report.show(console, told)
    return 0 if told.account.is_balanced else 1


def _played(show: Show) -> report.Report:
    started = time.monotonic()
    with receiver(secret=SECRET) as other_side, _database() as db:
        front, aws = Front(receiver=other_side.url), Aws()
        account = Play(db, front=front, aws=aws, show=show).run(scenario.requests(other_side.url))
        return report.Report(
            account=account,
            front=front,
            aws=aws,
            receiver=other_side,
            stories=stories(db, front.accepted),
            seconds=time.monotonic() - started,
        )


@contextmanager
def _database() -> Iterator[Database[Any]]:
    """Give an empty database, to which the handlers of this process and its children are pointed."""
    with Mongod() as server, MongoClient[dict[str, Any]](server.uri, serverSelectionTimeoutMS=5000) as client:
        os.environ.update(_environment(server.uri))
        client.drop_database(DATABASE)
        try:
            yield client[DATABASE]
        finally:
            client.drop_database(DATABASE)


def _environment(uri: str) -> dict[str, str]:
    """Return what the functions read: as the template sets it, so that nothing of the caller's gets in."""
    return {
        "MONGODB_URI": uri,
        "MONGODB_SECRET_ARN": "",
        "MONGODB_DATABASE": DATABASE,
        "TASK_PACKAGE": "demo.tasks",
        "TASK_TIMEOUT_SEC": "30",
        "MAX_TASK_TIMEOUT_SEC": "50",
        "CONCURRENCY": "16",
        "BATCH_SIZE": "100",
        "LINGER_SEC": "10",
        "MAX_EXECUTORS": "5",
        "EXECUTE_FUNCTION": "",
        "RETRY_SHARE": "0.2",
        "DEFAULT_TASK": "",
        "RETENTION_DAYS": "7",
        "WEBHOOK_ALLOWED_HOSTS": "127.0.0.1",
        "WEBHOOK_ALLOWED_NETWORKS": "127.0.0.0/8",
        "WEBHOOK_SECRET": SECRET,
        "POWERTOOLS_LOG_LEVEL": "CRITICAL",  # their lines would run through the table
        "POWERTOOLS_METRICS_DISABLED": "true",
    }


def _stopped(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
