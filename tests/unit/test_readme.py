"""What the README shows runs as it stands."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import pytest
from pymongo import MongoClient
from pymongo.database import Database

import tidemill
from tidemill import PRESETS, Queue, SettingsError, Task, indexes
from tidemill.admin.api import OPERATION_ADAPTER, OPERATIONS
from tidemill.cli import main
from tidemill.clock import ServerClock
from tidemill.control.queues import OptionsReader
from tidemill.executor.execution import execute
from tidemill.executor.options import ExecutionOptions, Runtime
from tidemill.registry import Registry
from tidemill.requests.tasks import new_task
from tidemill.settings import Settings, from_environment
from tidemill.store.connection import open_tasks
from tidemill.testing import Mongod
from tools.pages import read_page

README = read_page("README.md")


def read_table(page: str, head: str) -> list[list[str]]:
    """Return the cells of the table whose first column is called *head*, without blanks and backticks."""
    _, _, table = read_page(page).partition(f"\n| {head} | ")
    return [
        [cell.strip(" `") for cell in line.split("|")[1:-1]] for line in table.partition("\n\n")[0].splitlines()[2:]
    ]


def section(title: str) -> str:
    _, _, following = README.partition(f"\n## {title}\n")
    return following.partition("\n## ")[0]


def snippets(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_the_snippets_define_enqueue_and_run_a_task(
    client: MongoClient[dict[str, Any]], db: Database[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = Registry()
    monkeypatch.setattr(tidemill, "task", registry.task)
    names: dict[str, Any] = {"client": _Client(client, db), "__name__": "readme"}

    for snippet in snippets(README.replace(section("Test your tasks"), "")):
        exec(compile(snippet, "README.md", "exec", dont_inherit=True), names)
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


def test_the_tests_shown_pass_in_a_project_of_their_own(tmp_path: Path, mongod: Mongod) -> None:
    [module], [tests] = snippets(section("Write a task")), snippets(section("Test your tasks"))
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "invoices.py").write_text(module, encoding="utf-8")
    (tmp_path / "test_invoices.py").write_text(tests, encoding="utf-8")

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


@pytest.mark.parametrize("name", ["retry-priority", "starvation"])
def test_the_simulations_print_what_the_readme_shows(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", name]) == 0

    assert f"`tidemill simulate {name}`" in README
    assert f"```\n{capsys.readouterr().out.rstrip()}\n```" in README


def test_the_table_of_presets_has_their_numbers() -> None:
    lines = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in README.splitlines() if line[:3] == "| `"]
    rows = [cells for cells in lines if cells[0] in PRESETS]
    assert [name for name, *_ in rows] == list(PRESETS)
    for name, strategy, base, factor, cap, jitter, max_retries in rows:
        policy = PRESETS[name]
        assert int(max_retries) == policy.max_retries
        if name != "one_shot":
            backoff = policy.backoff
            assert (strategy, jitter, float(factor)) == (backoff.strategy, backoff.jitter, backoff.factor)
            assert (_seconds(base), _seconds(cap)) == (backoff.base_sec, backoff.max_sec)


def test_the_policies_shown_can_be_asked_for() -> None:
    [by_name, by_numbers] = re.findall(r'^"retry": (.*?)  ', README, re.MULTILINE)
    [in_environment] = re.findall(r"^RETRY_POLICY='(.*?)'", README, re.MULTILINE)

    for shown in (by_name, by_numbers):
        assert new_task(name="noop", payload={}, retry=json.loads(shown)).retry is not None
    assert from_environment({"RETRY_POLICY": in_environment}).retry.backoff.strategy == "fibonacci"


def test_every_file_the_readme_names_is_there() -> None:
    root = Path(__file__).parents[2]
    named = re.findall(r"`((?:tests|layers|functions|events|demo|localapi|tools)/[\w/.]+)`", README)

    assert named
    assert [path for path in named if not (root / path).exists()] == []


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
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in README.splitlines() if line.startswith("| `")]
    told = {op: row[1] for row in rows for op in re.findall(r"`([\w.]+)`", row[0]) if op in OPERATIONS}

    assert told.keys() == set(OPERATIONS)
    for op, fields in told.items():
        [model] = [
            kind
            for kind in get_args(get_args(OPERATION_ADAPTER._type)[0])
            if get_args(kind.model_fields["op"].annotation) == (op,)
        ]
        assert [name for name in model.model_fields if name != "op" and f"`{name}`" not in fields] == [], op
