"""For the tests of applications that enqueue tasks, and of the functions that run them.

`enqueued`, `assert_enqueued` and `refute_enqueued` tell what was enqueued; `drain` runs it, with the real executor on
a real database, at a time that the test chooses; `perform` calls one function without either. `dies_before`,
`dies_after`, `reclaim_now` and `double_tick` are for the promise that a task may run more than once. `Mongod` is a
MongoDB that leaves nothing behind, `ManualClock` a clock for a queue, `FakeContext` a Lambda context for a handler.

Nothing here knows of a test runner: what does not hold is an ``AssertionError``. It is not shipped to Lambda.
"""

from tidemill.testing.clock import ManualClock
from tidemill.testing.context import FakeContext
from tidemill.testing.double_tick import double_tick
from tidemill.testing.drained import Drained
from tidemill.testing.draining import drain
from tidemill.testing.enqueued import assert_enqueued, enqueued, refute_enqueued
from tidemill.testing.faults import Faults, dies_after, dies_before
from tidemill.testing.mongod import (
    Mongod,
    MongodNotFoundError,
    MongodStartError,
    NotLoopbackError,
)
from tidemill.testing.performing import perform, task_context
from tidemill.testing.reclaiming import reclaim_now
from tidemill.testing.watched import FailedRun

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
    "assert_enqueued",
    "dies_after",
    "dies_before",
    "double_tick",
    "drain",
    "enqueued",
    "perform",
    "reclaim_now",
    "refute_enqueued",
    "task_context",
]
