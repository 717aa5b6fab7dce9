"""Executors that die at a point of one's choice, and leave behind what a killed process would."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias

from pymongo.monitoring import CommandFailedEvent, CommandListener, CommandStartedEvent, CommandSucceededEvent

from tidemill.documents import TASKS
from tidemill.testing.target import Where, database_of

Point: TypeAlias = Literal["claim", "settle"] | int
"""A command to MongoDB: the one that takes tasks under a lease, the one that writes outcomes, or the n-th of all."""

_Side: TypeAlias = Literal["before", "after"]


class ExecutorDied(BaseException):
    """Ends whatever an executor does when it is to die; `dies_before` and `dies_after` catch it."""


class Faults(CommandListener):
    """Lets executors die between two commands. To be given to the client that the queue under test uses.

    ::

        client = MongoClient(uri, event_listeners=[Faults()])

    It does nothing but where `dies_before` or `dies_after` is in force, and then only on that thread.
    """

    def __init__(self) -> None:
        self._deaths: dict[int, _Death] = {}

    @contextmanager
    def death(self, side: _Side, point: Point, *, database: str) -> Iterator[None]:
        """Let the code inside die at a command to *database*; see `dies_before` and `dies_after`."""
        thread = threading.get_ident()
        death = self._deaths[thread] = _Death(side, point, database=database)
        try:
            yield
        except ExecutorDied:
            return
        finally:
            del self._deaths[thread]
        raise AssertionError(f"it did not die {side} {point!r}: it sent {', '.join(death.sent) or 'no command'}")

    def started(self, event: CommandStartedEvent) -> None:
        """Die instead of sending the command, if it is time to."""
        death = self._deaths.get(threading.get_ident())
        if death is not None:
            death.comes_to(event)

    def succeeded(self, event: CommandSucceededEvent) -> None:  # noqa: ARG002 - the interface has it
        """Die before anybody learns of the answer, if it is time to."""
        self._answered()

    def failed(self, event: CommandFailedEvent) -> None:  # noqa: ARG002 - as above
        """Do the same where there is an error for an answer."""
        self._answered()

    def _answered(self) -> None:
        death = self._deaths.get(threading.get_ident())
        if death is not None:
            death.has_passed()


@contextmanager
def dies_before(queue: Where, point: Point) -> Iterator[None]:
    """Let the executor that is run inside die just before *point*, as if its process had been killed.

    ::

        with dies_before(queue, "settle"):     # the function has run, and nobody will ever know
            drain(queue)
        reclaim_now(queue)
        drain(queue)                           # so it runs again
        assert bank.charges == ["order-7"]     # and had better be idempotent

    From there on it sends nothing to MongoDB; what it has leased stays leased, until `reclaim_now`. The functions that
    run at that moment cannot be killed with it, since they share this process: they are waited for. Only commands of
    this thread to the queue's database count, so let there be nothing else inside.

    Args:
        queue: The queue, or the database it is in. Its client must have been made with `Faults`.
        point: ``claim``, the first command that takes tasks under a lease; ``settle``, the first that writes outcomes;
            or a number, counted from 1 over all commands.

    Raises:
        AssertionError: It did not come to that.
        ValueError: The client was made without `Faults`.
    """
    with _faults(queue).death("before", point, database=database_of(queue).name):
        yield


@contextmanager
def dies_after(queue: Where, point: Point) -> Iterator[None]:
    """Let the executor that is run inside die just after *point*: MongoDB has done it, and the answer is lost.

    ::

        with dies_after(queue, "claim"):       # taken, and never started
            drain(queue)

    For the rest see `dies_before`.
    """
    with _faults(queue).death("after", point, database=database_of(queue).name):
        yield


def _faults(queue: Where) -> Faults:
    for listener in database_of(queue).client.options.event_listeners:
        if isinstance(listener, Faults):
            return listener
    raise ValueError("the queue's client cannot die: make it with MongoClient(uri, event_listeners=[Faults()])")


class _Death:
    def __init__(self, side: _Side, point: Point, *, database: str) -> None:
        self._side = side
        self._point = point
        self._database = database
        self._is_there = False
        self._has_come = False
        self.sent: list[str] = []

    def comes_to(self, event: CommandStartedEvent) -> None:
        """Raise if the command is not to be sent any more."""
        self._is_there = event.database_name == self._database and self._is_point(event)
        if self._has_come or (self._is_there and self._side == "before"):
            self._come()

    def has_passed(self) -> None:
        """Raise if the answer is not to be heard any more."""
        if self._is_there and self._side == "after":
            self._come()

    def _come(self) -> None:
        self._has_come = True
        raise ExecutorDied

    def _is_point(self, event: CommandStartedEvent) -> bool:
        self.sent.append(event.command_name)
        match self._point:
            case "claim":
                return any(values.get("status") == "processing" for values in _updates(event.command))
            case "settle":
                return any("settled_by" in values for values in _updates(event.command))
            case number:
                return len(self.sent) == number


def _updates(command: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return what *command* sets in tasks, one mapping for each statement."""
    if command.get("update") != TASKS:
        return []
    return [one["u"]["$set"] for one in command["updates"] if "$set" in one["u"]]
