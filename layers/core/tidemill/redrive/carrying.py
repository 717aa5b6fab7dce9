"""Letters go back in three steps, each safe to stop after: a letter is marked, its task inserted, the letter closed."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from tidemill.dead_letters import redriving
from tidemill.redrive.around import Around
from tidemill.redrive.judging import Ready
from tidemill.redrive.values import Redriver, Refused, under_way
from tidemill.store import within
from tidemill.store.intake import DUPLICATE_KEY

INSERT_WITHIN: Final = timedelta(seconds=30)
"""Nothing is inserted later after its mark: well before somebody else may take the redrive for cut short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """How many tasks are back, and which letters are as they were before."""

    redriven: int
    refused: tuple[Refused, ...]


def carry(on: Redriver, ready: Sequence[Ready]) -> Carried:
    """Redrive the letters that are *ready*. Somebody else may have been quicker: that is no refusal.

    Raises:
        UnavailableError: Some, all or none of the tasks are back; the marks of the letters tell `complete`.
    """
    if not ready:
        return Carried(redriven=0, refused=())
    token = uuid.uuid4().hex
    marked_at = on.clock.now()
    is_all = redriving.mark(on.dead, [one.mark() for one in ready], token=token, now=marked_at) == len(ready)
    ours, late = (list(ready), []) if is_all else _told_apart(on, ready, token)
    left = INSERT_WITHIN - (on.clock.now() - marked_at)
    if left <= timedelta(0):
        return Carried(redriven=0, refused=(*late, *(under_way(one.letter.id) for one in ours)))
    wrong = _insert(on, ours, left)
    redriving.take_back(on.dead, [(ours[index].letter.raw_id, token) for index in wrong])
    back = [one for index, one in enumerate(ours) if index not in wrong]
    redriving.close(on.dead, [(one.letter.raw_id, token) for one in back], now=on.clock.now())
    return Carried(redriven=len(back), refused=(*late, *wrong.values()))


def _told_apart(on: Redriver, ready: Sequence[Ready], token: str) -> tuple[list[Ready], list[Refused]]:
    """Return which letters bear our *token*, and that the other open ones are in somebody else's hands."""
    tokens = redriving.standing(on.dead, [one.letter.raw_id for one in ready])
    ours = [one for one in ready if tokens.get(one.letter.key) == token]
    theirs = [one for one in ready if one.letter.key in tokens and tokens[one.letter.key] != token]
    return ours, [under_way(one.letter.id) for one in theirs]


def _insert(on: Redriver, ours: Sequence[Ready], left: timedelta) -> Mapping[int, Refused]:
    """Insert the tasks; return those that cannot be, by their place."""
    if not ours:
        return {}
    usual = on.tasks.database.client.options.timeout
    seconds = left.total_seconds()
    with within(seconds if usual is None else min(seconds, usual)):
        wrong = redriving.insert(on.tasks, [one.document for one in ours])
    taken = {index: ours[index] for index, code in wrong.items() if code == DUPLICATE_KEY}
    refused = {
        index: ours[index].refused("malformed", f"MongoDB refuses its task (code {code})")
        for index, code in wrong.items()
        if index not in taken
    }
    return refused | _conflicts(on, taken)


def _conflicts(on: Redriver, taken: Mapping[int, Ready]) -> dict[int, Refused]:
    """Return those that were not inserted by ourselves before, for others hold their ids or keys."""
    if not taken:
        return {}
    around = Around(registered=None)
    around.look(on, [one.letter for one in taken.values()], [one.document for one in taken.values()])
    return {
        index: one.refused(
            "conflict", around.conflict(one.task, key=one.letter.task_key) or "others took its id or key"
        )
        for index, one in taken.items()
        if not around.is_there(one.task, key=one.letter.task_key)
    }
