"""A program: concludes every saying on threads, as slots do, and writes the conclusions pickled to its output.

The functions are registered here and not in the process of the tests, whose registry is everybody's.
"""

from __future__ import annotations

import pickle
import sys
import threading

from tests.features.isolation.sayings import SAYINGS
from tidemill import TaskContext
from tidemill.registry import load
from tidemill.runner.call import Coroutines, run_function
from tidemill.runner.results import RunResult

PACKAGE = "tests.features.isolation.hostile_tasks"


def main() -> None:
    """Run each in a thread of its own."""
    registry = load(PACKAGE)
    found: dict[tuple[str, str], RunResult] = {}

    def run(kind: str, what: str) -> None:
        task_type = registry.get(f"hostile.{kind}")
        assert task_type is not None
        ctx = TaskContext(task_id=1, attempt=1, is_last_attempt=False, deadline=float("inf"))
        calls = Coroutines()
        found[kind, what] = run_function(
            lambda: calls.run_to_end(lambda: task_type.call({"what": what}, ctx)), task_type.rules
        )

    for saying in SAYINGS:
        thread = threading.Thread(target=run, args=saying)
        thread.start()
        thread.join()
    sys.stdout.buffer.write(pickle.dumps(found))


if __name__ == "__main__":
    main()
