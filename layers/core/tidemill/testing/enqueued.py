"""Find enqueued tasks, and assert that a task was enqueued or was not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from tidemill.clock import truncate_to_ms
from tidemill.documents import read_task
from tidemill.model import Malformed, Task
from tidemill.policy.failures import truncate_text
from tidemill.store.connection import open_tasks, translate_errors
from tidemill.testing.faults import Where, get_database
from tidemill.testing.perform import MAX_SHOWN_CHARS

MAX_LISTED_TASKS: Final = 20
"""Limit of tasks listed in a message."""


def all_enqueued(
    where: Where, /, name: str | None = None, payload: Mapping[str, Any] | None = None, *, queue: str | None = None
) -> list[Task]:
    """Return the matching tasks that were enqueued and have not been run, in the order of their ids.

    ::

        assert [task.payload["to"] for task in all_enqueued(queue, "send_mail")] == ["a@example.com", "b@example.com"]

    Delayed tasks count. Tasks that wait for a further attempt do not, nor do tasks enqueued in a transaction that is
    not committed: no other session sees them.

    Args:
        where: The queue, or the database it is in.
        name: The task function.
        payload: Expected content of the payload. The payload and objects within it may have further keys. A value may
            be any object that defines ``==``, for example ``unittest.mock.ANY``.
        queue: The name of its queue.
    """
    return _Pattern(name=name, payload=payload, queue=queue).select(_read_tasks(where))


def assert_enqueued(
    where: Where,
    /,
    name: str | None = None,
    payload: Mapping[str, Any] | None = None,
    *,
    queue: str | None = None,
    count: int | None = None,
) -> list[Task]:
    """Assert that a task was enqueued and has not been run; return the matching tasks, as `all_enqueued` does.

    ::

        assert_enqueued(queue, "send_mail", {"to": "a@example.com"})
        assert_enqueued(queue, "send_mail", queue="bulk", count=3)
        [task] = assert_enqueued(queue, "remind")
        assert task.due_at - task.created_at == timedelta(days=3)

    Args:
        where: As for `all_enqueued`.
        name: As for `all_enqueued`.
        payload: As for `all_enqueued`.
        queue: As for `all_enqueued`.
        count: Exact number of matching tasks; without it, one or more.

    Raises:
        AssertionError: The number differs; the message lists the tasks that exist.
    """
    __tracebackhide__ = True
    pattern, tasks = _Pattern(name=name, payload=payload, queue=queue), _read_tasks(where)
    found = pattern.select(tasks)
    if len(found) == count or (found and count is None):
        return found
    how_often = f"was enqueued {len(found)} times, not {count}" if found else "was never enqueued"
    raise AssertionError(f"{pattern} {how_often}; {pattern.list_tasks(tasks)}")


def refute_enqueued(
    where: Where, /, name: str | None = None, payload: Mapping[str, Any] | None = None, *, queue: str | None = None
) -> None:
    """Assert that no matching task was enqueued and has not been run. Give as few criteria as possible.

    ::

        refute_enqueued(queue, "send_mail")

    Args:
        where: As for `all_enqueued`.
        name: As for `all_enqueued`.
        payload: As for `all_enqueued`.
        queue: As for `all_enqueued`.

    Raises:
        AssertionError: There are matching tasks; the message lists them.
    """
    __tracebackhide__ = True
    pattern = _Pattern(name=name, payload=payload, queue=queue)
    found = pattern.select(_read_tasks(where))
    if found:
        raise AssertionError(f"{pattern} was enqueued; {pattern.list_tasks(found)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pattern:
    name: str | None
    payload: Mapping[str, Any] | None
    queue: str | None

    def select(self, tasks: Sequence[Task | Malformed]) -> list[Task]:
        return [task for task in tasks if isinstance(task, Task) and _is_waiting(task) and self._matches(task)]

    def list_tasks(self, tasks: Sequence[Task | Malformed]) -> str:
        if not tasks:
            return "there are no tasks"
        lines = [_describe_task(task) for task in sorted(tasks, key=self._rank)]
        more = len(lines) - MAX_LISTED_TASKS
        return "\n  ".join(["there is", *lines[:MAX_LISTED_TASKS], *([f"and {more} more"] if more > 0 else [])])

    def __str__(self) -> str:
        words = ["a task" if self.name is None else repr(self.name)]
        words += [] if self.payload is None else [f"with {_show_payload(self.payload)}"]
        words += [] if self.queue is None else [f"in queue {self.queue!r}"]
        return " ".join(words)

    def _matches(self, task: Task) -> bool:
        return (
            self.name in (None, task.name)
            and self.queue in (None, task.queue)
            and (self.payload is None or matches_expected(self.payload, task.payload))
        )

    def _rank(self, task: Task | Malformed) -> tuple[bool, bool]:
        """Return a sort key that puts the most likely meant task first."""
        is_named = isinstance(task, Task) and task.name == self.name
        return not is_named, not (isinstance(task, Task) and _is_waiting(task))


def matches_expected(expected: Any, found: Any) -> bool:  # noqa: ANN401 - payloads hold anything
    """Return whether *found*, as the database returned it, contains what is *expected*.

    Objects may have further keys. Lists must have equal lengths; a tuple counts as a list. A time is compared as it
    is stored: in whole milliseconds, and in UTC if it has no time zone. Other values are compared with ``==``.
    """
    if isinstance(expected, Mapping) and isinstance(found, Mapping):
        return all(key in found and matches_expected(value, found[key]) for key, value in expected.items())
    if isinstance(expected, list | tuple) and isinstance(found, list):
        return len(expected) == len(found) and all(map(matches_expected, expected, found))
    if isinstance(expected, datetime):
        aware = expected if expected.utcoffset() is not None else expected.replace(tzinfo=UTC)
        return bool(truncate_to_ms(aware) == found)
    return bool(expected == found)


def _read_tasks(where: Where) -> list[Task | Malformed]:
    with translate_errors():
        return [read_task(raw) for raw in open_tasks(get_database(where)).find(sort=[("_id", 1)])]


def _is_waiting(task: Task) -> bool:
    return task.status == "pending" and task.attempts == 0


def _describe_task(task: Task | Malformed) -> str:
    if isinstance(task, Malformed):
        return f"a document that is no task: {task.problem}"
    state = "" if _is_waiting(task) else f", {task.status} in attempt {task.attempts}"
    return f"{task.name!r} with {_show_payload(task.payload)} in queue {task.queue!r}{state}"


def _show_payload(payload: Mapping[str, Any]) -> str:
    return truncate_text(repr(payload), MAX_SHOWN_CHARS)
