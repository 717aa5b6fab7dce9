"""What was enqueued: finding it, and asserting that it is there or is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tidemill.classify import bounded
from tidemill.documents import read
from tidemill.model import Malformed, Task
from tidemill.store import open_tasks, translated
from tidemill.testing.payloads import fits
from tidemill.testing.target import Where, database_of
from tidemill.testing.watched import MAX_SHOWN

MOST_LINES: Final = 20
"""So many tasks are listed in a message."""


def enqueued(
    where: Where, /, name: str | None = None, payload: Mapping[str, Any] | None = None, *, queue: str | None = None
) -> list[Task]:
    """Return the tasks that were enqueued and have not been run, as far as they match, in the order of their ids.

    ::

        assert [task.payload["to"] for task in enqueued(queue, "send_mail")] == ["a@example.com", "b@example.com"]

    Delayed ones count; those that were tried and wait for their next attempt do not, nor does what is enqueued in a
    transaction that has not been committed: nobody else sees that.

    Args:
        where: The queue, or the database it is in.
        name: The task function.
        payload: What the payload holds, at least: keys that are left out may be there, in objects within it, too.
            Values may be anything that knows what it equals, ``unittest.mock.ANY`` for one.
        queue: The name of its queue.
    """
    return _Wanted(name=name, payload=payload, queue=queue).among(_tasks(where))


def assert_enqueued(
    where: Where,
    /,
    name: str | None = None,
    payload: Mapping[str, Any] | None = None,
    *,
    queue: str | None = None,
    count: int | None = None,
) -> list[Task]:
    """Assert that a task was enqueued and has not been run; return those that match, as `enqueued` does.

    ::

        assert_enqueued(queue, "send_mail", {"to": "a@example.com"})
        assert_enqueued(queue, "send_mail", queue="bulk", count=3)
        [task] = assert_enqueued(queue, "remind")
        assert task.due_at - task.created_at == timedelta(days=3)

    Args:
        where: As for `enqueued`, and so are *name*, *payload* and *queue*.
        name: See there.
        payload: See there.
        queue: See there.
        count: How many there must be, exactly; without it, one or more.

    Raises:
        AssertionError: There are others; the message lists what there is.
    """
    __tracebackhide__ = True
    wanted, tasks = _Wanted(name=name, payload=payload, queue=queue), _tasks(where)
    found = wanted.among(tasks)
    if len(found) == count or (found and count is None):
        return found
    how_often = f"was enqueued {len(found)} times, not {count}" if found else "was never enqueued"
    raise AssertionError(f"{wanted} {how_often}; {wanted.listing(tasks)}")


def refute_enqueued(
    where: Where, /, name: str | None = None, payload: Mapping[str, Any] | None = None, *, queue: str | None = None
) -> None:
    """Assert that no task was enqueued that matches and has not been run; say as little of it as will do.

    ::

        refute_enqueued(queue, "send_mail")

    Args:
        where: As for `enqueued`, and so are *name*, *payload* and *queue*.
        name: See there.
        payload: See there.
        queue: See there.

    Raises:
        AssertionError: There are some; the message lists them.
    """
    __tracebackhide__ = True
    wanted = _Wanted(name=name, payload=payload, queue=queue)
    found = wanted.among(_tasks(where))
    if found:
        raise AssertionError(f"{wanted} was enqueued; {wanted.listing(found)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    name: str | None
    payload: Mapping[str, Any] | None
    queue: str | None

    def among(self, tasks: Sequence[Task | Malformed]) -> list[Task]:
        return [task for task in tasks if isinstance(task, Task) and _waits(task) and self._matches(task)]

    def listing(self, tasks: Sequence[Task | Malformed]) -> str:
        if not tasks:
            return "there are no tasks"
        lines = [_line(task) for task in sorted(tasks, key=self._distance)]
        left = len(lines) - MOST_LINES
        return "\n  ".join(["there is", *lines[:MOST_LINES], *([f"and {left} more"] if left > 0 else [])])

    def __str__(self) -> str:
        words = ["a task" if self.name is None else repr(self.name)]
        words += [] if self.payload is None else [f"with {_shown(self.payload)}"]
        words += [] if self.queue is None else [f"in queue {self.queue!r}"]
        return " ".join(words)

    def _matches(self, task: Task) -> bool:
        return (
            self.name in (None, task.name)
            and self.queue in (None, task.queue)
            and (self.payload is None or fits(self.payload, task.payload))
        )

    def _distance(self, task: Task | Malformed) -> tuple[bool, bool]:
        """Return what brings first what was most likely meant."""
        is_named = isinstance(task, Task) and task.name == self.name
        return not is_named, not (isinstance(task, Task) and _waits(task))


def _tasks(where: Where) -> list[Task | Malformed]:
    with translated():
        return [read(raw) for raw in open_tasks(database_of(where)).find(sort=[("_id", 1)])]


def _waits(task: Task) -> bool:
    return task.status == "pending" and task.attempts == 0


def _line(task: Task | Malformed) -> str:
    if isinstance(task, Malformed):
        return f"a document that is no task: {task.problem}"
    state = "" if _waits(task) else f", {task.status} in attempt {task.attempts}"
    return f"{task.name!r} with {_shown(task.payload)} in queue {task.queue!r}{state}"


def _shown(payload: Mapping[str, Any]) -> str:
    return bounded(repr(payload), MAX_SHOWN)
