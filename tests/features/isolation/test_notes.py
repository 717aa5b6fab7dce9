"""Notes of isolated functions, however their processes end."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders import add, document, stored
from tests.features.conftest import Bench
from tests.features.isolation.runs import MakeProcessPool, Package
from tidemill.runner.process_pool import ProcessPool

pytestmark = pytest.mark.slow

SOURCE = """
import os
import threading
import time

from tidemill import task


@task("noted")
def noted(payload, ctx):
    ctx.note("first")
    for n in range(payload.get("notes", 0)):
        ctx.note(f"{n} of many " + "x" * 1000)
    if payload["end"] == "fork":
        if os.fork() == 0:
            ctx.note("of another process")
            os._exit(0)
        os.wait()
    if payload["end"] == "thread":
        threads = [threading.Thread(target=ctx.note, args=(f"of thread {n}" * 20,)) for n in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    ctx.note(payload["note"])
    if payload["end"] == "raises":
        raise ValueError("broken")
    if payload["end"] == "dies":
        os._exit(9)
    if payload["end"] == "hangs":
        time.sleep(60)
"""


@pytest.fixture
def pool(make_process_pool: MakeProcessPool, package: Package) -> ProcessPool:
    return make_process_pool(package(SOURCE))


@pytest.mark.parametrize(
    ("end", "status", "note"),
    [
        ("returns", "succeeded", "3 of 7"),
        ("thread", "succeeded", "3 of 7"),
        ("fork", "succeeded", "3 of 7"),
        ("raises", "failed", "; 3 of 7"),
        ("dies", "failed", "crashed: its process exited with code 9; 3 of 7"),
        ("hangs", "timed_out", "it ran longer than 0.5 s; 3 of 7"),
    ],
)
def test_the_note_of_an_isolated_function_is_kept_however_its_process_ends(
    bench: Bench, pool: ProcessPool, end: str, status: str, note: str
) -> None:
    # S07
    line = run_isolated(bench, pool, end=end, note="3 of 7", timeout_sec=0.5)

    assert line["status"] == status
    assert line["note"].endswith(note)


def test_a_flood_of_long_notes_does_no_harm(bench: Bench, pool: ProcessPool) -> None:
    line = run_isolated(bench, pool, end="returns", notes=5000, note="\x00" + "x" * 10_000, timeout_sec=20)

    assert line["status"] == "succeeded"
    assert line["note"].startswith("\\x00xxx")
    assert len(line["note"]) <= 200


def run_isolated(bench: Bench, pool: ProcessPool, *, timeout_sec: float, **payload: Any) -> dict[str, Any]:
    """The line of the execution log of a run in a process of *pool*."""
    bench.isolation = pool
    bench.task("noted", isolate=True)(lambda _payload, _ctx: None)
    [task_id] = add(bench.tasks, [document(bench.clock.now(), name="noted", payload=payload, timeout_sec=timeout_sec)])
    bench.execute()
    [line] = stored(bench.tasks, task_id)["attempt_log"]
    return dict(line)
