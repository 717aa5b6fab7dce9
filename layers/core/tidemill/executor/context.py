"""Values that the parts of an execution share: options of its event, runtime of its process, lifetime and report."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final, Literal, TypeVar

from tidemill.clock import Clock, read_monotonic
from tidemill.control.declarer import Declarer
from tidemill.control.fleet import Subscription
from tidemill.errors import TidemillError
from tidemill.executor.lifetime import TIMING, Lifetime, Timing
from tidemill.executor.prefetch import Prefetch
from tidemill.model import LANES, OUTCOME_NAMES, Lane, Outcome, QueueOptions, RetryPolicy, Selection, Task
from tidemill.module_faults import Fault
from tidemill.policy.failures import COMMON, Rules
from tidemill.policy.retry import resolve_policy
from tidemill.policy.scheduling import Limits
from tidemill.registry import Registry
from tidemill.requests.events import Source
from tidemill.runner.process_protocol import IsolatedRunner
from tidemill.settings import Settings
from tidemill.store.connection import Tasks
from tidemill.store.settle import Settlement

_T = TypeVar("_T")

COUNT_NAMES: Final = (
    "claimed",  # taken under a lease
    "done",
    "retried",
    "failed",
    "snoozed",
    "cancelled",
    "released",  # given back before they started
    "timed_out",  # attempts that exceeded their timeout; also counted as retried or failed
    "lost",  # settled too late: another process had taken the lease
    "unknown",  # run, but MongoDB did not confirm the outcome
    "write_rejected",  # outcomes that MongoDB rejects
    "quarantined",  # documents that no claim can take
    "contended_ids",  # ids that another executor claimed first
    "errors",  # operations that failed
    "leftovers",  # abandoned functions that were still running at the end
)


class Report(Counter[str]):
    """Counts by the names of `COUNT_NAMES`. `as_dict` returns all of them, with zeros.

    Attributes:
        skipped: Reason for not claiming at all: ``executor_slots`` (none is free), ``time`` (not enough is left).
        backlog: Due tasks are left to other executors.
        spent: The process has no threads left, so another process must continue.
        not_started: Reason why the first function without a thread or process did not start; ``None`` without one.
    """

    def __init__(self, *, skipped: Literal["executor_slots", "time"] | None = None) -> None:
        super().__init__()
        self.skipped = skipped
        self.backlog = False
        self.spent = False
        self.not_started: str | None = None

    def count_outcome(self, outcome: Outcome) -> None:
        """Count an outcome that was written."""
        self[OUTCOME_NAMES[type(outcome)]] += 1

    def as_dict(self) -> dict[str, int | str]:
        """Return every count by its name, and ``skipped`` if the execution was skipped."""
        counts: dict[str, int | str] = {name: self[name] for name in COUNT_NAMES}
        return counts if self.skipped is None else {"skipped": self.skipped, **counts}


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueChoices:
    """Choices for one queue. ``max_in_flight_retries`` of ``None`` is no limit, 0 a pause."""

    selection: Selection
    retry_share: float
    paused: bool
    max_in_flight_retries: int | None


def _ignore_value(_: object) -> None:
    """Do nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionOptions:
    """Options of one execution, from its event.

    ``owner`` names the invocation. ``remaining`` is the remaining time of its process, read once at the start.
    ``None`` leaves a choice to the deployment.
    """

    owner: str
    remaining: timedelta
    source: Source = "tick"
    queues: Sequence[str] = ()
    lanes: tuple[Lane, ...] = LANES
    selection: Selection | None = None
    concurrency: int | None = None
    isolated_concurrency: int | None = None
    batch_size: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """Collaborators that the executions of a process share. Clock and random numbers are arguments, for tests.

    ``options`` returns the options of a queue. ``isolation`` runs a function in its own process; without it every
    function runs in a thread of this process. ``observe`` is called for each settled attempt. ``watch`` is called with
    the counts at each step of an execution and at its end, also after an exception. Neither may raise.
    ``keeps_tracebacks`` leaves the tracebacks of their exceptions in failed attempts. ``make_prefetch`` makes the
    estimate of an execution. ``declarer`` declares the task types again from time to time.
    """

    tasks: Tasks
    registry: Registry
    settings: Settings
    clock: Clock
    options: Callable[[str], QueueOptions]
    isolation: IsolatedRunner | None = None
    observe: Callable[[Settlement], None] = _ignore_value
    watch: Callable[[Report], None] = _ignore_value
    timing: Timing = TIMING
    make_prefetch: Callable[[Timing], Prefetch] = Prefetch
    declarer: Declarer | None = None
    keeps_tracebacks: bool = False
    rng: random.Random = field(default_factory=random.Random)
    monotonic: Callable[[], float] = read_monotonic

    @property
    def faults(self) -> tuple[Fault, ...]:
        """The faults of the task modules: what this process cannot run."""
        return () if self.declarer is None else self.declarer.faults

    def queue_choices(self, queue: str, options: ExecutionOptions) -> QueueChoices:
        """Return the choices for *queue* of an execution with *options*.

        Raises:
            UnavailableError: MongoDB did not return the options of the queue.
        """
        stored = self.options(queue)
        return QueueChoices(
            selection=options.selection or stored.selection or self.settings.selection,
            retry_share=self.settings.retry_share if stored.retry_share is None else stored.retry_share,
            paused=stored.paused,
            max_in_flight_retries=stored.max_in_flight_retries,
        )

    def subscription(self, options: ExecutionOptions) -> Subscription:
        """Return the subscription of an executor with *options*, for the fleet status."""
        return Subscription(
            queues=tuple(options.queues),
            lanes=options.lanes,
            asked=options.selection,
            selection=self.settings.selection,
            retry_share=self.settings.retry_share,
        )

    def policy(self, task: Task) -> RetryPolicy:
        """Return the retry policy of *task*."""
        task_type = self.registry.get(task.name)
        registered = task_type.retry if task_type is not None else None
        return resolve_policy(task, registered=registered, deployment=self.settings.retry)

    def rules(self, task: Task) -> Rules:
        """Return the classification rules of the function of *task*, or the common rules."""
        task_type = self.registry.get(task.name)
        return COMMON if task_type is None else task_type.rules

    def limits(self, task: Task) -> Limits:
        """Return the limits of *task* for admission."""
        task_type = self.registry.get(task.name)
        registered = task_type.timeout if task_type is not None else None
        is_faulty = task_type is None and self.declarer is not None and self.declarer.has_fault(task.name)
        return Limits(
            known=task_type is not None,
            timeout=task.timeout or registered or self.settings.task_timeout,
            max_retries=self.policy(task).max_retries,
            max_timeout=self.settings.max_task_timeout,
            margin=self.settings.margin,
            is_faulty=is_faulty,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionContext:
    """Runtime, options, lifetime and report of one execution, which all of its parts share."""

    runtime: Runtime
    options: ExecutionOptions
    lifetime: Lifetime
    report: Report = field(default_factory=Report)

    @property
    def tasks(self) -> Tasks:
        """The collection of tasks."""
        return self.runtime.tasks

    @property
    def timing(self) -> Timing:
        """The times of the execution."""
        return self.runtime.timing

    def now(self) -> datetime:
        """Return the time, on the clock of the database."""
        return self.runtime.clock.now()

    def monotonic(self) -> float:
        """Return the seconds of the monotonic clock."""
        return self.runtime.monotonic()

    def draw(self) -> float:
        """Return a random number in [0, 1)."""
        return self.runtime.rng.random()

    def lease_until(self) -> datetime:
        """Return the end of a lease that is taken now.

        The time is read now, because a time read before a slow operation would end the lease before the invocation.
        """
        return self.lifetime.lease_until(self.now())

    def may_claim(self) -> bool:
        """Return whether a task that is claimed now can still finish here."""
        return self.lifetime.may_claim() and not self.report.spent

    def attempt(self, operation: Callable[[], _T], *, default: _T) -> _T:
        """Return the result of *operation*. After an error of MongoDB count the error and return *default*."""
        try:
            return operation()
        except TidemillError:
            self.report["errors"] += 1
            return default
