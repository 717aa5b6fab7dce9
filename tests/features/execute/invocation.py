"""One invocation of an executor in a process of its own, as the platform starts one: run as a module.

``python -m tests.features.execute.invocation URI DATABASE OWNER SOURCE``; the functions are those of `crash_tasks`.
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, cast

from pymongo import MongoClient

from tidemill.clock import ServerClock
from tidemill.control.queues import OptionsReader
from tidemill.executor.context import ExecutionOptions, Runtime
from tidemill.executor.execution import execute
from tidemill.registry import load
from tidemill.runner.process_pool import ProcessPool
from tidemill.settings import Settings
from tidemill.store.connection import open_tasks

PACKAGE = "tests.features.crash_tasks"


def invoke(uri: str, database: str, owner: str, source: str) -> dict[str, int | str]:
    """Run due tasks with the clock of the database and isolation; return the counts."""
    with MongoClient[dict[str, Any]](uri, tz_aware=True) as client:
        db = client[database]
        runtime = Runtime(
            tasks=open_tasks(db),
            registry=load(PACKAGE),
            settings=Settings(),
            clock=ServerClock(db),
            options=OptionsReader(db).options,
            isolation=ProcessPool(PACKAGE, directory=Path.cwd()),
        )
        order = ExecutionOptions(
            owner=owner,
            remaining=timedelta(seconds=120),
            source=cast(Literal["tick", "backlog"], source),
        )
        return execute(runtime, order).as_dict()


if __name__ == "__main__":
    sys.stdout.write(json.dumps(invoke(*sys.argv[1:])))
