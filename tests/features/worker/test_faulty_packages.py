"""Workers of a package with faults: what they say at the start, what they run, and when they do not start."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pymongo.database import Database

from tests.builders import add, document
from tests.features.worker.workers import Yard
from tidemill.clock import ServerClock
from tidemill.store.connection import open_tasks
from tidemill.testing import Mongod

pytestmark = pytest.mark.slow

CORE = Path(__file__).parents[3] / "layers" / "core"
TASK = "from tidemill import task\n\n\n@task({0!r}{1})\ndef f(payload):\n    return {0!r}\n"
BROKEN = "import no_such_module\n" + TASK.format("bill", "")


@pytest.fixture
def yard(mongod: Mongod, db: Database[Any], tmp_path: Path) -> Iterator[Yard]:
    with closing(Yard(uri=mongod.uri, db=db, folder=tmp_path)) as yard:
        yield yard


@pytest.fixture
def path(tmp_path: Path) -> str:
    return f"{tmp_path}{os.pathsep}{CORE}"


def write(folder: Path, **modules: str) -> None:
    package = folder / "jobs"
    package.mkdir(exist_ok=True)
    for name, source in ({"__init__": ""} | modules).items():
        (package / f"{name}.py").write_text(source)


def run(yard: Yard, path: str) -> tuple[int, list[str], list[str]]:
    """Run a worker until nothing is due."""
    ended = yard.process("--tasks", "jobs", "--until-empty", LINGER_SEC="0", PYTHONPATH=path).ended()
    return ended.status, ended.out, ended.err


def test_a_fault_is_a_warning_at_the_start_and_stops_no_other_task(yard: Yard, tmp_path: Path, path: str) -> None:
    write(tmp_path, billing=TASK.format("bill", ""), mail=TASK.format("send", ""))
    assert run(yard, path)[0] == 0
    write(tmp_path, billing=BROKEN, mail=TASK.format("send", ""), lone=TASK.format("lone", ", isolate=True"))
    now = ServerClock(yard.db).now() - timedelta(days=1)
    add(open_tasks(yard.db), [document(now, name=name) for name in ("bill", "send", "lone")])

    status, out, err = run(yard, path)

    assert status == 0
    assert "2 functions of jobs" in out[0]
    assert out[1] == "stopped: 3 claimed, 2 done, 1 snoozed"
    [warning] = err
    assert warning.startswith("tidemill: warning: jobs/billing.py:1: the task module jobs.billing cannot be imported: ")
    assert warning.endswith("; its tasks wait for a release without the fault")
    statuses = {task["name"]: (task["status"], task["attempts"]) for task in yard.db["tasks"].find()}
    assert statuses == {"bill": ("pending", 0), "send": ("done", 1), "lone": ("done", 1)}


def test_a_worker_without_any_function_does_not_start_and_names_the_faults(
    yard: Yard, tmp_path: Path, path: str
) -> None:
    write(tmp_path, billing=BROKEN, mail=TASK.format("send", ", timeout=0"))

    status, out, err = run(yard, path)

    assert (status, out) == (1, [])
    [message] = err
    assert message.startswith("tidemill: the modules of jobs register no task function: jobs/billing.py:1: ")
    assert "; jobs/mail.py:4: the timeout of 'send' must be 0.1 to 880 seconds" in message
