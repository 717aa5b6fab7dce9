"""What an execution is given: what its process shares, and what it is asked to do."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from tidemill.admission import Limits
from tidemill.classify import COMMON, Rules
from tidemill.clock import Clock
from tidemill.control import Service
from tidemill.executor.report import Report
from tidemill.executor.serving import Serving, serving
from tidemill.isolation import Isolation
from tidemill.model import LANES, Lane, Task
from tidemill.policies import QueueOptions, RetryPolicy, Selection
from tidemill.registry import Registry
from tidemill.requests import Source
from tidemill.retry import resolved
from tidemill.settings import Settings
from tidemill.settlement import Settlement
from tidemill.store import Tasks


def _ignore(_: object) -> None:
    """Tell nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What one execution is asked to do.

    ``owner`` names the invocation, ``remaining`` is what is left of its process's life, read once at the start.
    ``None`` leaves a choice to the deployment.
    """

    owner: str
    remaining: timedelta
    source: Source = "tick"
    queues: Sequence[str] = ()
    lanes: tuple[Lane, ...] = LANES
    selection: Selection | None = None
    concurrency: int | None = None
    batch_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """What the executions of a process share. Time and chance are given, so that tests can own them.

    ``options`` tells what a queue chooses for itself. ``isolation`` gives a function a process of its own; without
    it everything runs in threads of this one. ``observe`` is told of each attempt whose outcome is written; ``watch``
    is shown the counts so far, at each step of an execution and at its end, however that comes. Neither may raise.
    """

    tasks: Tasks
    registry: Registry
    settings: Settings
    clock: Clock
    options: Callable[[str], QueueOptions]
    isolation: Isolation | None = None
    observe: Callable[[Settlement], None] = _ignore
    watch: Callable[[Report], None] = _ignore
    rng: random.Random = field(default_factory=random.Random)
    monotonic: Callable[[], float] = time.monotonic

    def serving(self, queue: str, order: Order) -> Serving:
        """Return how *order* has *queue* served.

        Raises:
            UnavailableError: MongoDB did not say what the queue chooses.
        """
        return serving(
            self.options(queue),
            asked=order.selection,
            lanes=order.lanes,
            selection=self.settings.selection,
            retry_share=self.settings.retry_share,
        )

    def service(self, order: Order) -> Service:
        """Return what an executor with *order* serves, as others are told."""
        return Service(
            queues=tuple(order.queues),
            lanes=order.lanes,
            asked=order.selection,
            selection=self.settings.selection,
            retry_share=self.settings.retry_share,
        )

    def policy(self, task: Task) -> RetryPolicy:
        """Return how *task* is retried."""
        task_type = self.registry.get(task.name)
        registered = task_type.retry if task_type is not None else None
        return resolved(task, registered=registered, deployment=self.settings.retry)

    def rules(self, task: Task) -> Rules:
        """Return what the function of *task* adds to the rules of classification."""
        task_type = self.registry.get(task.name)
        return COMMON if task_type is None else task_type.rules

    def limits(self, task: Task) -> Limits:
        """Return what admission needs to know of *task*."""
        task_type = self.registry.get(task.name)
        registered = task_type.timeout if task_type is not None else None
        return Limits(
            known=task_type is not None,
            timeout=task.timeout or registered or self.settings.task_timeout,
            max_retries=self.policy(task).max_retries,
            max_timeout=self.settings.max_task_timeout,
            margin=self.settings.margin,
        )
