"""One task among a thousand that ends its process: the others lose seconds, not attempts. Through real deaths."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections import Counter
from datetime import UTC, timedelta
from pathlib import Path
from typing import Any

import pytest
from pymongo.database import Database

from tests.builders import document, stored
from tidemill.clock import ServerClock
from tidemill.control.queues import OptionsReader
from tidemill.documents import decode
from tidemill.policy.retry import resolve_policy
from tidemill.reclaim import ReclaimContext, reclaim
from tidemill.settings import Settings
from tidemill.store.connection import open_tasks
from tidemill.testing import Mongod

INNOCENTS = 999
BESIDE = 16 + 100 + 100
"""At most so many are in hand beside the culprit: in a slot, waiting for one, or ended and not settled."""

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("culprit", "described"),
    [
        ("crash.segfault", "SIGSEGV"),
        ("crash.exit", "code 7"),
        ("crash.memory", "SIGKILL"),
        ("crash.recursion", "SIGSEGV"),
    ],
)
def test_one_crasher_among_a_thousand_tasks_is_the_only_one_that_pays(
    mongod: Mongod, db: Database[Any], tmp_path: Path, culprit: str, described: str
) -> None:
    tasks, clock, trace = open_tasks(db), ServerClock(db), tmp_path / "trace"
    now = clock.now()
    names = ["crash.innocent"] * (INNOCENTS // 2) + [culprit] + ["crash.innocent"] * (INNOCENTS - INNOCENTS // 2)
    documents = [document(now, name=name, max_retries=0, payload={"trace": str(trace)}) for name in names]
    tasks.insert_many(documents)
    [crasher] = [one["_id"] for one in documents if one["name"] == culprit]
    first = uuid.uuid4().hex

    assert run_to_the_end(mongod, db, first, "tick").returncode != 0
    crashed_at = clock.now()
    taken_back = reclaim(a_keeper(db, clock), until=float("inf"), dead_owner=first)
    second = run_to_the_end(mongod, db, uuid.uuid4().hex, "backlog")

    innocents = [decode(raw) for raw in tasks.find({"name": "crash.innocent"})]
    dead = stored(tasks, crasher)
    assert second.returncode == 0, second.stderr
    assert Counter((one["status"], one["attempts"]) for one in innocents) == {("done", 1): INNOCENTS}
    # None had to wait for a lease, which ends two minutes later.
    assert max(one["finished_at"].replace(tzinfo=UTC) for one in innocents) - crashed_at < timedelta(seconds=60)
    assert 1 <= taken_back["reclaimed"] <= BESIDE
    assert (dead["status"], dead["reason"], dead["attempts"]) == ("failed", "worker_lost", 1)
    assert described in dead["error"]["message"]
    assert json.loads(second.stdout)["failed"] == 1
    # At least once: what was running beside the crasher in its first run was run again.
    runs = Counter(trace.read_text(encoding="utf-8").split())
    assert runs[str(crasher)] == 2
    assert sum(runs.values()) - 2 <= INNOCENTS + BESIDE


def run_to_the_end(mongod: Mongod, db: Database[Any], owner: str, source: str) -> subprocess.CompletedProcess[str]:
    """Run one invocation in a process of its own."""
    command = [sys.executable, "-m", "tests.features.execute.invocation", mongod.uri, db.name, owner, source]
    paths = [str(ROOT), str(ROOT / "layers" / "core"), str(ROOT / "layers" / "tasks")]
    return subprocess.run(
        command, cwd=ROOT, env={"PYTHONPATH": ":".join(paths)}, capture_output=True, text=True, timeout=60, check=False
    )


def a_keeper(db: Database[Any], clock: ServerClock) -> ReclaimContext:
    """What reclaim needs, with the deployment's usual policy."""
    return ReclaimContext(
        tasks=open_tasks(db),
        clock=clock,
        policy=lambda task: resolve_policy(task, registered=None, deployment=Settings().retry),
        options=OptionsReader(db).options,
    )
