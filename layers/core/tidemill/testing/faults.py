"""Executors that die at a chosen command to MongoDB, as a killed process does, and the reclaim of what they leave."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Literal, TypeAlias

from pymongo.database import Database
from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent

from tidemill.client import Queue
from tidemill.clock import Clock, ServerClock, read_monotonic
from tidemill.control.queues import OptionsReader
from tidemill.model import RetryPolicy, Task
from tidemill.policy.retry import DEFAULT, resolve_policy
from tidemill.reclaim import NAMES, ReclaimContext, reclaim
from tidemill.registry import REGISTRY, Registry
from tidemill.store.connection import Tasks, open_tasks, translate_errors, with_prefix
from tidemill.testing.clock import ManualClock, ShortestJitter

RECLAIM_TIMEOUT_SEC = 60.0

Where: TypeAlias = Queue | Database[Any]
"""A queue of an application, or the database it is in."""


def get_database(where: Where) -> Database[Any]:
    """Return the database of the tasks, with the prefix of the queue."""
    return with_prefix(where.database, where.prefix) if isinstance(where, Queue) else where


def get_clock(where: Where) -> Clock:
    """Return the clock of the queue, or the clock of the database."""
    return where if isinstance(where, Queue) else ServerClock(where)


Point: TypeAlias = Literal["claim", "settle"] | int
"""A command to MongoDB: the first that leases tasks, the first that writes outcomes, or the n-th of all."""

_Side: TypeAlias = Literal["before", "after"]


class ExecutorDied(BaseException):
    """Ends the executor at the chosen point; `dies_before` and `dies_after` catch it."""


class Faults(CommandListener):
    """Makes executors die between two commands. Pass it to the client of the queue under test.

    ::

        client = MongoClient(uri, event_listeners=[Faults()])

    It acts only inside `dies_before` or `dies_after`, and only on their thread.
    """

    def __init__(self) -> None:
        self._deaths: dict[int, _Death] = {}

    @contextmanager
    def death(self, side: _Side, point: Point, *, tasks: Tasks) -> Iterator[None]:
        """Make the code inside die at a command to the database of *tasks*; see `dies_before` and `dies_after`."""
        thread = threading.get_ident()
        death = self._deaths[thread] = _Death(side, point, tasks=tasks)
        try:
            yield
        except ExecutorDied:
            return
        finally:
            del self._deaths[thread]
        raise AssertionError(f"it did not die {side} {point!r}: it sent {', '.join(death.sent) or 'no command'}")

    def started(self, event: CommandStartedEvent) -> None:
        """Die before the command is sent, if this is the point."""
        death = self._deaths.get(threading.get_ident())
        if death is not None:
            death.check_command(event)

    def succeeded(self, event: CommandSucceededEvent) -> None:  # noqa: ARG002 - the interface has it
        """Die before the answer is delivered, if this is the point."""
        self._receive_answer()

    def failed(self, event: CommandFailedEvent) -> None:  # noqa: ARG002 - as above
        """Die before the error is delivered, if this is the point."""
        self._receive_answer()

    def _receive_answer(self) -> None:
        death = self._deaths.get(threading.get_ident())
        if death is not None:
            death.check_answer()


@contextmanager
def dies_before(queue: Where, point: Point) -> Iterator[None]:
    """Make the executor that runs inside die just before *point*, as if its process had been killed.

    ::

        with dies_before(queue, "settle"):     # the function has run, but its outcome is lost
            drain(queue)
        reclaim_now(queue)
        drain(queue)                           # so it runs again
        assert bank.charges == ["order-7"]     # and had better be idempotent

    From there on it sends nothing to MongoDB; its leased tasks stay leased until `reclaim_now`. Functions that run at
    that moment share this process and cannot be killed: they are waited for. Only commands of this thread to the
    queue's database count, so run nothing else inside.

    Args:
        queue: The queue, or the database it is in. Its client must have been made with `Faults`.
        point: ``claim``, the first command that leases tasks; ``settle``, the first that writes outcomes; or a number,
            counted from 1 over all commands.

    Raises:
        AssertionError: The executor did not reach the point.
        ValueError: The client was made without `Faults`.
    """
    with _find_faults(queue).death("before", point, tasks=open_tasks(get_database(queue))):
        yield


@contextmanager
def dies_after(queue: Where, point: Point) -> Iterator[None]:
    """Make the executor that runs inside die just after *point*: MongoDB has executed it, and the answer is lost.

    ::

        with dies_after(queue, "claim"):       # taken, and never started
            drain(queue)

    See `dies_before` for the arguments and errors.
    """
    with _find_faults(queue).death("after", point, tasks=open_tasks(get_database(queue))):
        yield


def reclaim_now(queue: Where, *, now: datetime | None = None, registry: Registry = REGISTRY) -> dict[str, int]:
    """Reclaim every leased task, as if all executors had died; return the counts of reclaim.

    The tasks are treated as by ``reclaim`` after the platform reported a death. The first loss of a task is refunded;
    a later loss counts as a failed attempt. The wait after it is the shortest that jitter allows; after a first loss
    there is none.

    Args:
        queue: The queue, or the database it is in. For tests only: leases that have not expired are ignored.
        now: The time of the reclaim. Without it, the time of the queue.
        registry: Registry of the functions, whose retry policies apply.

    Raises:
        TidemillError: MongoDB failed.
    """
    tasks = open_tasks(get_database(queue))
    reclaim_context = ReclaimContext(
        tasks=tasks,
        clock=ManualClock(get_clock(queue).now() if now is None else now),
        policy=lambda task: _resolve_policy(task, registry),
        options=OptionsReader(tasks.database).options,
        rng=ShortestJitter(),
    )
    report = Counter[str]()
    for owner in (*_list_owners(tasks), None):
        report.update(reclaim(reclaim_context, until=read_monotonic() + RECLAIM_TIMEOUT_SEC, dead_owner=owner))
    return {name: report[name] for name in NAMES}


def _find_faults(queue: Where) -> Faults:
    for listener in get_database(queue).client.options.event_listeners:
        if isinstance(listener, Faults):
            return listener
    raise ValueError("the queue's client cannot die: make it with MongoClient(uri, event_listeners=[Faults()])")


class _Death:
    def __init__(self, side: _Side, point: Point, *, tasks: Tasks) -> None:
        self._side = side
        self._point = point
        self._tasks = tasks
        self._is_at_point = False
        self._is_dead = False
        self.sent: list[str] = []

    def check_command(self, event: CommandStartedEvent) -> None:
        """Raise if the command must not be sent."""
        self._is_at_point = event.database_name == self._tasks.database.name and self._is_point(event)
        if self._is_dead or (self._is_at_point and self._side == "before"):
            self._die()

    def check_answer(self) -> None:
        """Raise if the answer must not be delivered."""
        if self._is_at_point and self._side == "after":
            self._die()

    def _die(self) -> None:
        self._is_dead = True
        raise ExecutorDied

    def _is_point(self, event: CommandStartedEvent) -> bool:
        self.sent.append(event.command_name)
        match self._point:
            case "claim":
                return any(values.get("status") == "processing" for values in self._read_updates(event.command))
            case "settle":
                return any("settled_by" in values for values in self._read_updates(event.command))
            case number:
                return len(self.sent) == number

    def _read_updates(self, command: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Return the fields that *command* sets in tasks, one mapping per statement."""
        if command.get("update") != self._tasks.name:
            return []
        return [statement["u"]["$set"] for statement in command["updates"] if "$set" in statement["u"]]


def _resolve_policy(task: Task, registry: Registry) -> RetryPolicy:
    task_type = registry.get(task.name)
    return resolve_policy(task, registered=None if task_type is None else task_type.retry, deployment=DEFAULT)


def _list_owners(tasks: Tasks) -> list[str]:
    with translate_errors():
        owners = tasks.distinct("lease.owner", {"status": "processing"})
    return [owner for owner in owners if isinstance(owner, str)]
