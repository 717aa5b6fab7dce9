"""Move failed tasks to the dead letters: insert there first, delete here last, and run again after any stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from bson.raw_bson import RawBSONDocument

from tidemill import dead_letters
from tidemill.clock import Clock
from tidemill.model import TaskId
from tidemill.store import Tasks

BATCH: Final = 500


def archive(
    tasks: Tasks, dead: Tasks, *, clock: Clock, until: float, monotonic: Callable[[], float] = time.monotonic
) -> dict[str, int]:
    """Move failed tasks in batches until none is left or *until* (monotonic) is past.

    Stopped between insert and delete, a task is in both places until the next run, which finds its dead letter
    there and deletes the task. Returns ``moved`` and ``stuck``: what cannot be stored as a dead letter stays.
    """
    moved = 0
    stuck: list[TaskId] = []
    while monotonic() < until:
        found = dead_letters.failed(tasks, limit=BATCH, but=stuck)
        if not found:
            break
        letters, refused = _letters(found, clock=clock)
        buried = dead_letters.bury(dead, letters) if letters else []
        moved += dead_letters.remove(tasks, buried)
        stuck += refused + [letter["_id"]["task"] for letter in letters if letter["_id"]["task"] not in buried]
    return {"moved": moved, "stuck": len(stuck)}


def _letters(found: Sequence[RawBSONDocument], *, clock: Clock) -> tuple[list[RawBSONDocument], list[TaskId]]:
    letters: list[RawBSONDocument] = []
    refused: list[TaskId] = []
    now = clock.now()
    for raw in found:
        try:
            letters.append(dead_letters.dead_letter(raw, now=now))
        except ValueError:
            refused.append(raw["_id"])
    return letters, refused
