"""What the schedules and the wakes of a deployment do: `execute`, `reclaim` and `archive`, again and again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from types import ModuleType
from typing import Any, Final

from demo.functions import death_of, event
from tidemill.slots.leftovers import LEFTOVERS
from tidemill.testing import FakeContext

KEEPING: Final = 3
"""So many ticks of `execute` pass between two of `reclaim` and `archive`."""

EXECUTE_LIFE: Final = timedelta(seconds=120)
KEEPER_LIFE: Final = timedelta(seconds=50)
ARCHIVE_LIFE: Final = timedelta(seconds=240)

PATIENCE_SEC: Final = 1.0
"""How long to wait at the end for a tick that is under way."""

_OF_INTEREST: Final = ("done", "retried", "failed", "snoozed", "cancelled", "timed_out", "lost", "reclaimed", "moved")


class Ticks:
    """Ticks `execute` every *every* and whenever woken, the others less often; *say* gets a line if that did something.

    `execute` and the others have a thread each, so that a long task holds up no reclaiming.
    """

    def __init__(
        self,
        execute: ModuleType,
        reclaim: ModuleType,
        archive: ModuleType,
        *,
        every: timedelta,
        say: Callable[[str], None],
    ) -> None:
        self._execute = execute
        self._reclaim = reclaim
        self._archive = archive
        self._every = every.total_seconds()
        self._say = say
        self._woken = threading.Event()
        self._stopping = threading.Event()
        self._told: set[object] = set()
        vars(execute)["_recycle"] = self._stay  # it would end this process, and all with it

    def wake(self) -> None:
        """Tick `execute` now, or once more if it is at work."""
        self._woken.set()

    def first(self) -> None:
        """Do what has to come before the first enqueue: make the indexes, declare the tasks.

        Raises:
            TidemillError: That failed.
        """
        self._reclaim.lambda_handler(event("reclaim"), FakeContext(KEEPER_LIFE))
        self._execute.lambda_handler(event("tick"), FakeContext(EXECUTE_LIFE))

    @contextmanager
    def ticking(self) -> Iterator[None]:
        """Tick until the block ends."""
        threads = [threading.Thread(target=loop, daemon=True) for loop in (self._run_tasks, self._keep)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            self._woken.set()
            give_up_at = time.monotonic() + PATIENCE_SEC
            for thread in threads:
                thread.join(max(0.0, give_up_at - time.monotonic()))

    def _run_tasks(self) -> None:
        while not self._stopping.is_set():
            context = FakeContext(EXECUTE_LIFE)
            if not self._tick("execute", self._execute, event("tick"), context):
                # As Lambda does: who died is reported, so that what it held need not wait for its leases to end.
                self._tick("reclaim", self._reclaim, death_of(context.aws_request_id), FakeContext(KEEPER_LIFE))
            self._woken.wait(self._every)
            self._woken.clear()

    def _keep(self) -> None:
        while not self._stopping.wait(self._every * KEEPING):
            self._tick("reclaim", self._reclaim, event("reclaim"), FakeContext(KEEPER_LIFE))
            self._tick("archive", self._archive, event("archive"), FakeContext(ARCHIVE_LIFE))

    def _tick(self, name: str, module: ModuleType, cause: Mapping[str, Any], context: FakeContext) -> bool:
        """Invoke a handler, and tell what it did; false where it failed."""
        try:
            report = module.lambda_handler(cause, context)
        except Exception as error:  # noqa: BLE001 - as the Lambda runtime does; the next tick goes on
            if not self._stopping.is_set():
                self._say(f"{name} failed: {type(error).__name__}")
            return False
        done = [f"{report[one]} {one.replace('_', ' ')}" for one in _OF_INTEREST if report.get(one)]
        if done and not self._stopping.is_set():
            self._say(f"{name}: {', '.join(done)}")
        return True

    def _stay(self, error: BaseException | None = None) -> None:
        """Stand in for the end of the process, which a new one would follow on Lambda."""
        left = set(LEFTOVERS.task_ids())
        if error is not None or not left <= self._told:
            what = f"the function of task {', '.join(map(str, left))} does not stop" if left else "it is out of threads"
            self._say(f"execute: {what}; Lambda would go on in a new process, this one stays")
        self._told |= left
