"""What becomes of an attempt: the policy, the rules and the load that hold for it, brought together."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from tidemill.executor.outcomes import Terms, after_end, after_timeout
from tidemill.executor.runtime import Runtime
from tidemill.load import Loads
from tidemill.model import Cancelled, Retried, Succeeded, Task
from tidemill.settlement import Settlement
from tidemill.slots import Ended, Running


class Judge:
    """Judges the attempts of one execution. May ask MongoDB for the load of a queue, at most once a second."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._loads = Loads(runtime.tasks, runtime.options, monotonic=runtime.monotonic)

    def ended(self, ended: Ended) -> Settlement:
        """Return how the attempt of a function that was called is settled. One that was not is to be given back."""
        now = self._runtime.clock.now()
        terms = self._terms(ended.running.task, now=now)
        settlement = after_end(ended, terms, now=now, draw=self._runtime.rng.random())
        return self._noted(settlement, ended.running)

    def late(self, late: Running) -> Settlement:
        """Return how the attempt of a function that was given up is settled."""
        now = self._runtime.clock.now()
        terms = self._terms(late.task, now=now)
        return self._noted(after_timeout(late, terms, now=now, draw=self._runtime.rng.random()), late)

    def _terms(self, task: Task, *, now: datetime) -> Terms:
        load = self._loads.of(task.queue, now=now)
        return Terms(policy=self._runtime.policy(task), rules=self._runtime.rules(task), load=load)

    def _noted(self, settlement: Settlement, running: Running) -> Settlement:
        if running.cancel.is_set() and not isinstance(settlement.outcome, Succeeded):
            return replace(settlement, outcome=Cancelled())  # as the database would have it, and counted as that
        if isinstance(settlement.outcome, Retried) and isinstance(settlement.task, Task):
            self._loads.retried(settlement.task.queue)
        return settlement
