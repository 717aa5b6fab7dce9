"""Test kit for applications that enqueue tasks and for the functions that run them.

- `all_enqueued`, `assert_enqueued` and `refute_enqueued` find enqueued tasks.
- `drain` runs due tasks with the real executor on a real database, at a time that the test chooses.
- `perform` calls one function without executor and database.
- `dies_before`, `dies_after`, `reclaim_now` and `double_tick` test that a task may run more than once.
- `Mongod` is a MongoDB that leaves nothing behind, `ManualClock` a clock for a queue, `FakeContext` a Lambda context.

The kit depends on no test runner: a failed check raises ``AssertionError``. It is not shipped to Lambda.
"""

from tidemill.testing.clock import ManualClock
from tidemill.testing.drain import Drained, double_tick, drain
from tidemill.testing.enqueued import all_enqueued, assert_enqueued, refute_enqueued
from tidemill.testing.faults import Faults, dies_after, dies_before, reclaim_now
from tidemill.testing.mongod import Mongod, MongodNotFoundError, MongodStartError, NotLoopbackError
from tidemill.testing.perform import FailedRun, FakeContext, perform, task_context

__all__ = [
    "Drained",
    "FailedRun",
    "FakeContext",
    "Faults",
    "ManualClock",
    "Mongod",
    "MongodNotFoundError",
    "MongodStartError",
    "NotLoopbackError",
    "all_enqueued",
    "assert_enqueued",
    "dies_after",
    "dies_before",
    "double_tick",
    "drain",
    "perform",
    "reclaim_now",
    "refute_enqueued",
    "task_context",
]
