"""The check: where every task is, read from MongoDB itself, and whether each accepted one is in just one place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pymongo.database import Database

from tidemill.documents import DEAD_LETTERS, TASKS
from tidemill.model import TaskId

FINAL = ("done", "cancelled", "dead letter")
SAME_ENDS = frozenset({("exhausted", "worker_lost")})
"""What has to end in the first way may end in the second: its last attempt was lost with a killed executor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A place a task was found in: its status, or ``dead letter`` with the reason."""

    where: str
    reason: str = ""

    @property
    def end(self) -> str:
        """The status, or the reason of the dead letter: what a scenario expects."""
        return self.reason or self.where


def places(db: Database[Any]) -> dict[TaskId, list[Place]]:
    """Return where each task is. Tasks come first: one that `archive` moves meanwhile is seen twice, never missed."""
    found: dict[TaskId, list[Place]] = {}
    for task in db[TASKS].find({}, {"status": 1}):
        found.setdefault(task["_id"], []).append(Place(where=task["status"]))
    for letter in db[DEAD_LETTERS].find({}, {"reason": 1}):
        found.setdefault(letter["_id"]["task"], []).append(Place(where="dead letter", reason=letter["reason"]))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What became of the accepted tasks.

    Attributes:
        ended: How many ended in each of `FINAL`.
        dead_letters: How many of them by reason.
        lost: Those that are not in exactly one place, or not in a final one, and where they are.
        elsewhere: Those that ended, but not as their behaviour would have it, and how.
        unasked: Tasks that were stored and not accepted.
    """

    accepted: int
    ended: Counter[str]
    dead_letters: Counter[str]
    lost: Mapping[TaskId, str]
    elsewhere: Mapping[TaskId, str]
    unasked: tuple[TaskId, ...]

    @property
    def is_balanced(self) -> bool:
        """Tell whether each accepted task, and no other, is where it has to be."""
        return not (self.lost or self.elsewhere or self.unasked)


def account(expected: Mapping[TaskId, str], found: Mapping[TaskId, list[Place]]) -> Account:
    """Compare where the accepted tasks have to end (`Place.end`) with where all tasks are."""
    ended: Counter[str] = Counter()
    dead_letters: Counter[str] = Counter()
    lost: dict[TaskId, str] = {}
    elsewhere: dict[TaskId, str] = {}
    for task_id, end in expected.items():
        match found.get(task_id, []):
            case [Place(where=where, reason=reason) as place] if where in FINAL:
                ended[where] += 1
                dead_letters.update([reason] if reason else [])
                if place.end != end and (end, place.end) not in SAME_ENDS:
                    elsewhere[task_id] = f"{place.end}, not {end}"
            case unfit:
                lost[task_id] = " and ".join(place.where for place in unfit) or "nowhere"
    return Account(
        accepted=len(expected),
        ended=ended,
        dead_letters=dead_letters,
        lost=lost,
        elsewhere=elsewhere,
        unasked=tuple(task_id for task_id in found if task_id not in expected),
    )


def stories(db: Database[Any], ids: Iterable[TaskId]) -> dict[TaskId, Mapping[str, Any]]:
    """Return the whole documents of these tasks, wherever they are."""
    wanted = set(ids)
    found = {task["_id"]: task for task in db[TASKS].find({}) if task["_id"] in wanted}
    letters = {letter["_id"]["task"]: letter for letter in db[DEAD_LETTERS].find({})}
    return found | {task_id: letter for task_id, letter in letters.items() if task_id in wanted}
