"""What still runs though nobody waits for it: known to the whole process, for as long as it lasts."""

from __future__ import annotations

import threading
from typing import Final

from tidemill.model import TaskId


class Leftovers:
    """Threads that were left to themselves, and the tasks whose functions they run. For any number of threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left: list[tuple[threading.Thread, TaskId]] = []

    def add(self, thread: threading.Thread, task_id: TaskId) -> None:
        """Remember that *thread* still runs the function of a task."""
        with self._lock:
            self._left.append((thread, task_id))

    def task_ids(self) -> list[TaskId]:
        """Return the tasks whose functions still run."""
        if not self._left:
            return []
        with self._lock:
            self._left = [one for one in self._left if one[0].is_alive()]
            return [task_id for _, task_id in self._left]


LEFTOVERS: Final = Leftovers()
"""Those of this process: they outlive the execution that started them."""
