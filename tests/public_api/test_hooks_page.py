"""The examples of the page about hooks and resources run as they stand, in several slots."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.database import Database

import tidemill
from tidemill import Queue, Task
from tidemill.registry import Registry
from tidemill.testing import Mongod, drain
from tools.pages import find_blocks, read_page

PAGE = "docs/guides/hooks.md"


def test_a_client_for_each_slot_and_a_session_for_each_run(
    mongod: Mongod, client: MongoClient[Any], db: Database[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Registry()
    monkeypatch.setattr(tidemill, "task", registry.task)
    monkeypatch.setattr(tidemill, "task_hook", registry.task_hook)
    monkeypatch.setenv("SHOP_URI", mongod.uri)
    monkeypatch.chdir(tmp_path)
    with closing(sqlite3.connect("shop.db")) as connection:
        connection.execute("CREATE TABLE payments (number INTEGER NOT NULL)")
    names: dict[str, Any] = {"__name__": "shop_tasks"}
    for snippet in find_blocks(read_page(PAGE), "python"):
        exec(compile(snippet, PAGE, "exec", dont_inherit=True), names)
    queue = Queue(db)
    counting = [queue.enqueue("count_orders", {}) for _ in range(40)]
    for order in (1, 2, 3, None):
        queue.enqueue("pay", {"order": order}, max_retries=0)

    drained = drain(queue, registry=registry, concurrency=4)

    assert (drained.done, drained.failed) == (43, 1)
    expected = client["shop"]["orders"].count_documents({})
    tasks = [queue.get(task_id) for task_id in counting]
    assert [task.result for task in tasks if isinstance(task, Task)] == [expected] * 40
    with closing(sqlite3.connect("shop.db")) as connection:
        assert connection.execute("SELECT number FROM payments ORDER BY number").fetchall() == [(1,), (2,), (3,)]
