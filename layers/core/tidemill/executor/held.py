"""What an execution holds leases of, from the claim until the outcome is known."""

from __future__ import annotations

from collections.abc import Iterable

import bson
from bson import ObjectId

from tidemill.model import Malformed, Task, TaskId


def key(task_id: TaskId) -> bytes:
    """Return *task_id* as something that can be looked up: whatever BSON allows may be one."""
    if type(task_id) is ObjectId:
        return task_id.binary
    return bson.encode({"_id": task_id})


class Held:
    """The tasks in hand: waiting for a slot, running, or ended and not settled."""

    def __init__(self) -> None:
        self._tasks: dict[bytes, Task | Malformed] = {}

    def add(self, tasks: Iterable[Task | Malformed]) -> None:
        """Note tasks that were claimed."""
        self._tasks.update((key(task.id), task) for task in tasks)

    def drop(self, tasks: Iterable[Task | Malformed]) -> None:
        """Forget tasks whose lease is given up or lost; another claim of the same task stays."""
        for task in tasks:
            if task in self:
                del self._tasks[key(task.id)]

    def __contains__(self, task: Task | Malformed) -> bool:
        """Tell whether the lease of this very claim is still held, as far as known."""
        return self._tasks.get(key(task.id)) is task

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def tasks(self) -> list[Task]:
        """The tasks, without the documents that cannot be one."""
        return [task for task in self._tasks.values() if isinstance(task, Task)]

    @property
    def ids(self) -> list[TaskId]:
        """The ids of all that is in hand."""
        return [task.id for task in self._tasks.values()]
