"""What may keep a dead letter from going back: tasks, keys and later deaths that are there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from bson.raw_bson import RawBSONDocument

from tidemill.dead_letters import redriving
from tidemill.dead_letters.redriving import Alive
from tidemill.documents import is_text, opened
from tidemill.model import Task, TaskId
from tidemill.redrive.seen import Seen
from tidemill.redrive.values import Ground
from tidemill.store.ids import shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What was there when it was last looked at.

    Attributes:
        registered: The names of the functions; ``None`` where nobody asks for them.
        alive: Tasks, by their ids.
        holders: Which tasks hold idempotency keys.
        died: The ids and lives of tasks that have died once more since their redrive was cut short.
    """

    registered: frozenset[str] | None
    alive: dict[bytes, Alive] = field(default_factory=dict)
    holders: dict[str, TaskId] = field(default_factory=dict)
    died: set[tuple[bytes, bytes]] = field(default_factory=set)

    def look(self, on: Ground, letters: Sequence[Seen], bodies: Iterable[RawBSONDocument]) -> None:
        """Learn what concerns these *letters*."""
        named = [one for one in letters if one.can_go_back()]
        cut_short = [(one.task, one.id.redrives) for one in named if one.is_begun]
        keys = [key for key in (opened(one).get("idempotency_key") for one in bodies) if is_text(key) and key]
        self.alive.update(redriving.alive(on.tasks, [one.task for one in named]))
        self.holders.update(redriving.holders(on.tasks, keys))
        self.died.update(redriving.died_since(on.dead, cut_short))

    def expect(self, task: Task, *, of: Seen) -> None:
        """Count with *task*, which comes back out of a letter, as if it were there."""
        self.alive[of.task_key] = Alive(id=task.id, life=of.life, redrives=task.redrives, status=task.status)
        if task.idempotency_key:
            self.holders[task.idempotency_key] = task.id

    def has_come_back(self, letter: Seen) -> bool:
        """Tell whether a redrive of *letter* that was cut short was so behind the insert of its task."""
        task = self.alive.get(letter.task_key)
        is_alive = task is not None and task.life == letter.life and task.redrives > letter.id.redrives
        return letter.is_begun and (is_alive or (letter.task_key, letter.life) in self.died)

    def is_there(self, task: Task, *, of: Seen) -> bool:
        """Tell whether *task*, which comes back out of a letter, was inserted before."""
        same = self.alive.get(of.task_key)
        return same is not None and (same.life, same.redrives) == (of.life, task.redrives)

    def conflict(self, task: Task, *, of: Seen) -> str | None:
        """Return what stands against *task*, which is to come back out of a letter."""
        same = self.alive.get(of.task_key)
        if same is not None:
            return f"task {shown(same.id)} is there: it is {same.status}"
        if task.idempotency_key and task.idempotency_key in self.holders:
            return f"its idempotency key is held by task {shown(self.holders[task.idempotency_key])}"
        return None
