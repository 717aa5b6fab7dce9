"""The examples of README and docs run as they stand, and the tables have the values of the code."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pymongo import AsyncMongoClient, MongoClient
from pymongo.database import Database

import tidemill
from tidemill import PRESETS, Queue, SettingsError, Task, indexes
from tidemill.admin.api import OPERATION_MODELS, OPERATIONS
from tidemill.clock import ServerClock
from tidemill.control.queues import OptionsReader
from tidemill.executor.context import ExecutionOptions, Runtime
from tidemill.executor.execution import execute
from tidemill.registry import Registry
from tidemill.requests.events import DirectRequest, ExecuteRequest
from tidemill.requests.tasks import new_task
from tidemill.settings import Settings, from_environment
from tidemill.store.connection import open_tasks
from tidemill.testing import Mongod, drain
from tools.pages import find_blocks, read_page


def read_table(page: str, head: str) -> list[list[str]]:
    """Return the cells of the table whose first column is called *head*, without blanks and backticks."""
    _, _, table = read_page(page).partition(f"\n| {head} | ")
    return [
        [cell.strip(" `") for cell in line.split("|")[1:-1]] for line in table.partition("\n\n")[0].splitlines()[2:]
    ]


READ_TOGETHER = {
    "readme": ("README.md",),
    "guides": ("docs/guides/tasks.md", "docs/guides/enqueue.md", "docs/guides/retries.md"),
    "typed": ("docs/guides/typed-client.md",),
}
"""Pages whose snippets follow one another, like the lines of one module."""


@pytest.mark.parametrize("pages", [READ_TOGETHER["readme"], READ_TOGETHER["guides"]], ids=["readme", "guides"])
def test_the_snippets_define_enqueue_and_run_a_task(
    pages: tuple[str, ...], client: MongoClient[dict[str, Any]], db: Database[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Registry()
    monkeypatch.setattr(tidemill, "task", registry.task)
    names: dict[str, Any] = {"client": _Client(client, db), "__name__": "readme"}

    for page in pages:
        for snippet in find_blocks(read_page(page), "python"):
            exec(compile(snippet, page, "exec", dont_inherit=True), names)
    runtime = Runtime(
        tasks=open_tasks(db),
        registry=registry,
        settings=Settings(),
        clock=ServerClock(db),
        options=OptionsReader(db).options,
    )
    execute(runtime, ExecutionOptions(owner="readme", remaining=timedelta(seconds=120)))

    task = Queue(db).get(names["task_id"])
    assert isinstance(task, Task)
    assert (task.status, task.result) == ("done", {"sent": "order-7"})


def test_the_snippets_about_types_enqueue_and_wait(
    mongod: Mongod,
    client: MongoClient[dict[str, Any]],
    db: Database[Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    registry = Registry()
    monkeypatch.setattr(tidemill, "task", registry.task)
    names: dict[str, Any] = {"client": _Client(client, db), "uri": mongod.uri, "__name__": "typed"}
    open_database = AsyncMongoClient.get_database
    monkeypatch.setattr(
        AsyncMongoClient,
        "__getitem__",
        lambda own, name: open_database(own, db.name if name == "app" else name),
    )

    for snippet in find_blocks(read_page("docs/guides/typed-client.md"), "python"):
        exec(compile(snippet, "typed-client.md", "exec", dont_inherit=True), names)
        drain(Queue(db), registry=registry)

    assert capsys.readouterr().out == "7\npending\n"
    assert [handle.wait(timedelta(0)).number for handle in names["handles"]] == [7, 8]


GIVEN = """
from typing import Any
from pymongo import MongoClient

client: MongoClient[dict[str, Any]] = MongoClient()
uri = ""
"""


def test_the_snippets_are_right_for_a_strict_type_checker(tmp_path: Path) -> None:
    # N62
    for name, pages in READ_TOGETHER.items():
        snippets = [snippet for page in pages for snippet in find_blocks(read_page(page), "python")]
        assert "queue.enqueue(" in "".join(snippets)
        (tmp_path / f"{name}.py").write_text("\n\n".join([GIVEN, *snippets]), encoding="utf-8")
    for recipe in ("fastapi", "flask"):  # Django's own types need a plugin
        shop, _ = find_blocks(read_page(f"docs/guides/{recipe}.md"), "python")
        (tmp_path / f"shop_with_{recipe}.py").write_text(shop, encoding="utf-8")

    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "."],
        cwd=tmp_path,
        env=os.environ | {"MYPYPATH": str(Path(tidemill.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert (checked.returncode, checked.stderr) == (0, ""), checked.stdout


@pytest.mark.parametrize(
    ("name", "pages"),
    [("greet", ["docs/start/first-task.md"]), ("invoices", ["docs/guides/tasks.md", "docs/guides/testing.md"])],
)
def test_the_tests_shown_pass_in_a_project_of_their_own(
    name: str, pages: list[str], tmp_path: Path, mongod: Mongod
) -> None:
    module, *_, tests = [snippet for page in pages for snippet in find_blocks(read_page(page), "python")]
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / f"{name}.py").write_text(module, encoding="utf-8")
    (tmp_path / f"test_{name}.py").write_text(tests, encoding="utf-8")

    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path)],
        cwd=tmp_path,
        env=os.environ | {"TIDEMILL_TEST_MONGODB_URI": mongod.uri},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert run.returncode == 0, run.stdout + run.stderr
    assert f"{tests.count('def test_')} passed" in run.stdout


class _Recorded(dict[str, str]):
    """An empty environment that records the names it is asked for."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.names.add(name)
        return default


def test_the_table_of_variables_has_the_names_and_defaults_that_hold() -> None:
    rows = {row[0]: row[1] for row in read_table("docs/reference/settings.md", "variable")}
    env = _Recorded()
    settings = from_environment(env)

    assert env.names - rows.keys() == {"AWS_LAMBDA_FUNCTION_VERSION"}
    assert {name for name in rows.keys() - env.names if name[:8] != "WEBHOOK_"} == {"POWERTOOLS_LOG_LEVEL"}
    assert rows["TASK_PACKAGE"] == settings.task_package
    assert float(rows["LINGER_SEC"]) == settings.linger.total_seconds()
    assert int(rows["MAX_EXECUTORS"]) == settings.max_executors

    assert rows["MONGODB_DATABASE"] == settings.database
    assert float(rows["TASK_TIMEOUT_SEC"]) == settings.task_timeout.total_seconds()
    assert float(rows["MAX_TASK_TIMEOUT_SEC"]) == settings.max_task_timeout.total_seconds()
    assert int(rows["CONCURRENCY"]) == settings.concurrency
    assert int(rows["BATCH_SIZE"]) == settings.batch_size
    assert float(rows["RETRY_SHARE"]) == settings.retry_share
    assert PRESETS[rows["RETRY_POLICY"]] == settings.retry
    assert rows["SELECTION"] == settings.selection
    assert timedelta(days=float(rows["RETENTION_DAYS"])) == settings.retention.tasks
    assert timedelta(days=float(rows["DEAD_LETTER_RETENTION_DAYS"])) == settings.retention.dead_letters
    assert rows["EXPIRE_UNEXPORTED"] == str(settings.expire_unexported).lower()
    assert f"{indexes.MAX_DOCUMENTS_MADE_AT_START:,}" in read_page("docs/reference/settings.md")


RANGES = [
    (row[0], *found.groups())
    for row in read_table("docs/reference/settings.md", "variable")
    if (found := re.fullmatch(r"([\d.]+) to (\d+)", row[2]))
]


@pytest.mark.parametrize(("name", "least", "most"), RANGES)
def test_a_variable_takes_its_range_and_no_more(name: str, least: str, most: str) -> None:
    widest = {"MAX_TASK_TIMEOUT_SEC": "890"} if name == "TASK_TIMEOUT_SEC" else {"TASK_TIMEOUT_SEC": "1"}

    for value in (least, most):
        from_environment(widest | {name: value})
    for value in (f"{float(least) - 0.001:g}", str(int(most) + 1)):
        with pytest.raises(SettingsError, match=name):
            from_environment(widest | {name: value})


def test_the_table_of_presets_has_their_numbers() -> None:
    rows = read_table("docs/guides/retries.md", "preset")
    assert [name for name, *_ in rows] == list(PRESETS)
    for name, strategy, base, factor, cap, jitter, max_retries in rows:
        policy = PRESETS[name]
        assert int(max_retries) == policy.max_retries
        if name != "one_shot":
            backoff = policy.backoff
            assert (strategy, jitter, float(factor)) == (backoff.strategy, backoff.jitter, backoff.factor)
            assert (_seconds(base), _seconds(cap)) == (backoff.base_sec, backoff.max_sec)


def test_the_policies_shown_can_be_asked_for() -> None:
    page = read_page("docs/guides/retries.md")
    [by_name, by_numbers] = [json.loads(block)["retry"] for block in find_blocks(page, "json")]
    [in_environment] = re.findall(r"^export RETRY_POLICY='(.*?)'", page, re.MULTILINE)

    for shown in (by_name, by_numbers):
        assert new_task(name="noop", payload={}, retry=shown).retry is not None
    assert from_environment({"RETRY_POLICY": in_environment}).retry.backoff.strategy == "fibonacci"


@pytest.mark.parametrize(
    ("page", "model"), [("docs/guides/queues.md", ExecuteRequest), ("docs/guides/recurring.md", DirectRequest)]
)
def test_the_events_shown_are_events_that_are_read(page: str, model: type[BaseModel]) -> None:
    [event] = find_blocks(read_page(page), "json")
    schedule = "arn:aws:scheduler:eu-central-1:123456789012:schedule/default/daily"
    event = event.replace("<aws.scheduler.schedule-arn>", schedule)
    event = event.replace("<aws.scheduler.scheduled-time>", "2026-07-01T09:00:00Z")

    model.model_validate_json(event)


def _seconds(text: str) -> float:
    number, unit = text.split()
    return float(number) * {"s": 1, "min": 60, "h": 3600}[unit]


class _Client:
    """The reader's client: its database ``app`` is the test's."""

    def __init__(self, client: MongoClient[dict[str, Any]], db: Database[Any]) -> None:
        self._client = client
        self._db = db
        self.start_session = client.start_session

    def __getitem__(self, name: str) -> Database[Any]:
        assert name == "app"
        return self._db


def test_every_operation_is_told_with_its_fields() -> None:
    page = read_page("docs/operate/commands.md")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| `")]
    told = {op: row[1] for row in rows for op in re.findall(r"`([\w.]+)`", row[0]) if op in OPERATIONS}

    assert told.keys() == set(OPERATIONS)
    for op, fields in told.items():
        assert [
            name for name in OPERATION_MODELS[op].model_fields if name != "op" and f"`{name}`" not in fields
        ] == [], op
