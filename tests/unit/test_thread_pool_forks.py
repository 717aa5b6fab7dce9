"""A function that forks, and returns in the child as well: only the executor goes on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

FORKS = """
import datetime, os, sys, time
from pathlib import Path
from tests.fixtures import T0
from tests.unit.make import a_claimed_task
from tidemill.registry import TaskType
from tidemill.runner.thread_pool import ThreadPool

kind, marks = sys.argv[1], Path(sys.argv[2])

def forks(*_):
    child = os.fork()
    if child == 0:
        (marks / "child").touch()
        if kind == "raises":
            raise ValueError("in the child")
        if kind == "exits":
            sys.exit(3)
    return child

async def awaits(*_):
    return forks()

def start(function):
    minute = datetime.timedelta(minutes=1)
    slots.start(
        a_claimed_task(), TaskType(name="noop", function=function), timeout=minute, is_last_attempt=False, now=T0
    )
    [ended] = slots.collect(wait=20)
    return ended.result

slots = ThreadPool(1)
child = start(awaits if kind == "async" else forks).result
until, buried = time.monotonic() + 10, (0, 0)
while buried[0] == 0 and time.monotonic() < until:
    buried = os.waitpid(child, os.WNOHANG)
    time.sleep(0.01)
if buried[0] == 0:
    os.kill(child, 9)
print(buried == (child, 0), start(lambda *_: "next").result)
"""


@pytest.mark.parametrize("kind", ["returns", "raises", "exits", "async"])
def test_the_child_that_a_function_forked_ends_where_the_function_returns(tmp_path: Path, kind: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", FORKS, kind, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )

    assert (ran.stdout, ran.returncode) == ("True next\n", 0), ran.stderr
    assert (tmp_path / "child").exists()
