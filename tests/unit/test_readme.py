"""What the README shows runs as it stands."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database

import tidemill
from tidemill import Queue, Task, indexes
from tidemill.clock import ServerClock
from tidemill.control import OptionsReader
from tidemill.executor import Order, Runtime, execute
from tidemill.registry import Registry
from tidemill.settings import Settings, from_environment
from tidemill.store import open_tasks

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def test_the_snippets_define_enqueue_and_run_a_task(
    client: MongoClient[dict[str, Any]], db: Database[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Registry()
    monkeypatch.setattr(tidemill, "task", registry.task)
    names: dict[str, Any] = {"client": _Client(client, db), "__name__": "readme"}

    for snippet in re.findall(r"```python\n(.*?)```", README, re.DOTALL):
        exec(compile(snippet, "README.md", "exec", dont_inherit=True), names)
    runtime = Runtime(
        tasks=open_tasks(db),
        registry=registry,
        settings=Settings(),
        clock=ServerClock(db),
        options=OptionsReader(db).options,
    )
    execute(runtime, Order(owner="readme", remaining=timedelta(seconds=120)))

    task = Queue(db).get(names["task_id"])
    assert isinstance(task, Task)
    assert (task.status, task.result) == ("done", {"sent": "order-7"})


def test_the_table_of_variables_has_the_defaults_that_hold() -> None:
    rows = dict(re.findall(r"^\| `([A-Z_]+)` \| ?`?([^|`]*?)`? ?\|", README, re.MULTILINE))
    settings = from_environment({})

    assert rows["MONGODB_DATABASE"] == settings.database
    assert float(rows["TASK_TIMEOUT_SEC"]) == settings.task_timeout.total_seconds()
    assert float(rows["MAX_TASK_TIMEOUT_SEC"]) == settings.max_task_timeout.total_seconds()
    assert int(rows["CONCURRENCY"]) == settings.concurrency
    assert int(rows["BATCH_SIZE"]) == settings.batch_size
    assert float(rows["RETRY_SHARE"]) == settings.retry_share
    assert timedelta(days=float(rows["RETENTION_DAYS"])) == settings.retention
    assert f"{indexes.SMALL:,}" in README


def test_every_file_the_readme_names_is_there() -> None:
    root = Path(__file__).parents[2]
    named = re.findall(r"`((?:tests|layers|functions|events|demo)/[\w/.]+)`", README)

    assert named
    assert [path for path in named if not (root / path).exists()] == []


class _Client:
    """The reader's client: its database ``app`` is the test's."""

    def __init__(self, client: MongoClient[dict[str, Any]], db: Database[Any]) -> None:
        self._client = client
        self._db = db
        self.start_session = client.start_session

    def __getitem__(self, name: str) -> Database[Any]:
        assert name == "app"
        return self._db
