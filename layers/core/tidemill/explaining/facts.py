"""Reading what explains a task: five commands for one that is pending, at most three for any other."""

from __future__ import annotations

from datetime import datetime

from tidemill.control import options_of, registered_names, standing
from tidemill.dead_letters import latest
from tidemill.explaining.reasons import reasons
from tidemill.explaining.turns import turn
from tidemill.explaining.values import Explanation, Facts
from tidemill.model import Malformed, Task, TaskId
from tidemill.policies import QueueOptions
from tidemill.store import Tasks, gauges, lookups


def explain(tasks: Tasks, dead: Tasks, task_id: TaskId, *, now: datetime) -> Explanation | None:
    """Return why the task is not running, or ``None`` where there is no such task, neither alive nor dead.

    Raises:
        UnavailableError: MongoDB did not answer.
    """
    facts = _facts(tasks, dead, task_id, now=now)
    if facts is None:
        return None
    return Explanation(
        task_id=task_id,
        status="malformed" if isinstance(facts.task, Malformed) else facts.task.status,
        is_dead_letter=facts.is_dead_letter,
        reasons=reasons(facts),
    )


def _facts(tasks: Tasks, dead: Tasks, task_id: TaskId, *, now: datetime) -> Facts | None:
    alive = lookups.get(tasks, task_id)
    letter = latest(dead, task_id) if alive is None else None
    if letter is not None:
        return Facts(task=letter, now=now, is_dead_letter=True)
    # Between the two looks it may have come back from the dead letters.
    task = alive or lookups.get(tasks, task_id)
    if isinstance(task, Task) and task.status == "pending":
        return _surroundings(tasks, task, now=now)
    return None if task is None else Facts(task=task, now=now)


def _surroundings(tasks: Tasks, task: Task, *, now: datetime) -> Facts:
    names = registered_names(tasks.database)
    options = options_of(tasks.database, task.queue) or QueueOptions()
    executors = standing(tasks.database, queue=task.queue, now=now)
    its_turn = turn(task, options, executors)
    return Facts(
        task=task,
        now=now,
        options=options,
        standing=executors,
        ahead=gauges.ahead_of(tasks, task, now=now, in_order=its_turn.in_order, first=its_turn.first),
        is_known=task.name in names,
        is_any_known=bool(names),
    )
