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
from tidemill.redrive.seen import Seen
from tidemill.redrive.values import Ground, Refused, under_way
from tidemill.store import within
from tidemill.store.intake import DUPLICATE_KEY

INSERT_WITHIN: Final = timedelta(seconds=30)
"""Nothing is inserted later after its mark: well before somebody else may take the redrive for cut short."""

_RIGID: Final = "MongoDB refuses to change its letter"


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """How many tasks are back, and which letters are as they were before."""

    redriven: int
    refused: tuple[Refused, ...]


def carry(on: Ground, ready: Sequence[Ready]) -> Carried:
    """Redrive the letters that are *ready*. Somebody else may have been quicker: that is no refusal.

    Raises:
        UnavailableError: Some, all or none of the tasks are back; the marks of the letters tell `complete`.
    """
    if not ready:
        return Carried(redriven=0, refused=())
    token = uuid.uuid4().hex
    marked_at = on.clock.now()
    marked = redriving.mark(on.dead, [one.mark() for one in ready], token=token, now=marked_at)
    ours, late = list(ready), list[Refused]()
    if marked.changed < len(ready):
        ours, late = _told_apart(on, ready, token, is_any_refused=marked.refused > 0)
    left = INSERT_WITHIN - (on.clock.now() - marked_at)
    if left <= timedelta(0):
        return Carried(redriven=0, refused=(*late, *(under_way(one.letter.id) for one in ours)))
    wrong = _insert(on, ours, left)
    redriving.take_back(on.dead, [(ours[index].letter.raw_id, token) for index in wrong])
    back = [one for index, one in enumerate(ours) if index not in wrong]
    closed = close(on, [(one.letter, token) for one in back])
    return Carried(redriven=closed.redriven, refused=(*late, *wrong.values(), *closed.refused))


def close(on: Ground, letters: Sequence[tuple[Seen, object]]) -> Carried:
    """Close letters whose tasks are back, each given with its token; those stay open that cannot be changed."""
    changed = redriving.close(on.dead, [(one.raw_id, token) for one, token in letters], now=on.clock.now())
    if changed == len(letters):
        return Carried(redriven=changed, refused=())
    tokens = redriving.standing(on.dead, [one.raw_id for one, _ in letters])
    rest = [one for one, token in letters if one.key in tokens and tokens[one.key] == token]
    return Carried(redriven=changed, refused=tuple(_unwritable(one, f"its task is back, but {_RIGID}") for one in rest))


def _told_apart(
    on: Ground, ready: Sequence[Ready], token: str, *, is_any_refused: bool
) -> tuple[list[Ready], list[Refused]]:
    """Return which letters bear our *token*, and what keeps the other open ones from bearing it."""
    tokens = redriving.standing(on.dead, [one.letter.raw_id for one in ready])
    ours = [one for one in ready if tokens.get(one.letter.key) == token]
    others = [one.letter for one in ready if one.letter.key in tokens and tokens[one.letter.key] != token]
    return ours, [
        _unwritable(one, _RIGID) if is_any_refused and tokens[one.key] == one.token else under_way(one.id)
        for one in others
    ]


def _unwritable(letter: Seen, message: str) -> Refused:
    return Refused(id=letter.id, code="unwritable", message=message)


def _insert(on: Ground, ours: Sequence[Ready], left: timedelta) -> Mapping[int, Refused]:
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


def _conflicts(on: Ground, taken: Mapping[int, Ready]) -> dict[int, Refused]:
    """Return those that were not inserted by ourselves before, for others hold their ids or keys."""
    if not taken:
        return {}
    around = Around(registered=None)
    around.look(on, [one.letter for one in taken.values()], [one.document for one in taken.values()])
    return {
        index: one.refused("conflict", around.conflict(one.task, of=one.letter) or "others took its id or key")
        for index, one in taken.items()
        if not around.is_there(one.task, of=one.letter)
    }
