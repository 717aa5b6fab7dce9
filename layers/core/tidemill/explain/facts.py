"""Facts that explain a task: five commands for a pending task, at most three for any other."""

from __future__ import annotations

from datetime import datetime

from tidemill.control.fleet import load_fleet_status
from tidemill.control.queues import load_options
from tidemill.control.task_types import list_registered_names
from tidemill.dead_letters.queries import find_latest
from tidemill.explain.ordering import find_turn
from tidemill.explain.reasons import find_reasons
from tidemill.explain.text import Explanation, Facts
from tidemill.model import Malformed, QueueOptions, Task, TaskId
from tidemill.store import counts
from tidemill.store import tasks as store_tasks
from tidemill.store.connection import Tasks


def explain(tasks: Tasks, dead: Tasks, task_id: TaskId, *, now: datetime) -> Explanation | None:
    """Return the reasons why the task is not running; ``None`` if there is no such task, living or dead letter.

    Raises:
        UnavailableError: MongoDB did not answer.
    """
    facts = _read_facts(tasks, dead, task_id, now=now)
    if facts is None:
        return None
    return Explanation(
        task_id=task_id,
        status="malformed" if isinstance(facts.task, Malformed) else facts.task.status,
        is_dead_letter=facts.is_dead_letter,
        reasons=find_reasons(facts),
    )


def _read_facts(tasks: Tasks, dead: Tasks, task_id: TaskId, *, now: datetime) -> Facts | None:
    alive = store_tasks.get(tasks, task_id)
    letter = find_latest(dead, task_id) if alive is None else None
    if letter is not None:
        return Facts(task=letter, now=now, is_dead_letter=True)
    # A redrive may have inserted the task between the first two reads.
    task = alive or store_tasks.get(tasks, task_id)
    if isinstance(task, Task) and task.status == "pending":
        return _read_pending_facts(tasks, task, now=now)
    return None if task is None else Facts(task=task, now=now)


def _read_pending_facts(tasks: Tasks, task: Task, *, now: datetime) -> Facts:
    names = list_registered_names(tasks.database)
    options = load_options(tasks.database, task.queue) or QueueOptions()
    executors = load_fleet_status(tasks.database, queue=task.queue, now=now)
    task_turn = find_turn(task, options, executors)
    return Facts(
        task=task,
        now=now,
        options=options,
        standing=executors,
        ahead=counts.count_ahead(tasks, task, now=now, in_order=task_turn.in_order, first=task_turn.first),
        is_known=task.name in names,
        is_any_known=bool(names),
    )
