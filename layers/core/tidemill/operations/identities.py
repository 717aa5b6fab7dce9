"""Which task a person means, who types an id as `task.list` shows it, or as it reads in JSON."""

from __future__ import annotations

from collections.abc import Sequence

from tidemill.classify import bounded
from tidemill.dead_letters import lookups
from tidemill.errors import InvalidRequestError, Problem, TaskNotFoundError
from tidemill.model import TaskId
from tidemill.operations.desk import Desk
from tidemill.operations.warnings import of_nobody, warnings_of
from tidemill.store import ids

_MAX_TEXT = 200
"""Of an id in a sentence."""


class NoTaskError(TaskNotFoundError):
    """There is no such task, and it may be that another database is meant."""

    def __init__(self, text: str, *, database: str, hints: list[str]) -> None:
        super().__init__(text)
        self.args = ("; ".join([f"there is no task {bounded(text, _MAX_TEXT)} in {database}", *hints]),)


class NoLetterError(TaskNotFoundError):
    """There is no such dead letter."""

    def __init__(self, text: str, *, database: str, redrives: int | None = None, hints: Sequence[str] = ()) -> None:
        super().__init__(text)
        number = "" if redrives is None else f" with redrives {redrives}"
        told = f"there is no dead letter of task {bounded(text, _MAX_TEXT)}{number} in {database}"
        self.args = ("; ".join([told, *hints]),)


def meant(text: str, desk: Desk) -> TaskId:
    """Return the id of the one task that *text* stands for: alive, or where none is, a dead letter.

    Raises:
        TaskNotFoundError: There is none.
        InvalidRequestError: There are several.
    """
    candidates = ids.meant(text)
    # Between the two looks it may have come back from the dead letters.
    found = ids.stored(desk.tasks, candidates) or _dead(candidates, desk) or ids.stored(desk.tasks, candidates)
    if not found:
        raise NoTaskError(text, database=desk.db.name, hints=of_nobody(desk))
    return _only(found)


def meant_dead(text: str, desk: Desk) -> TaskId:
    """Return the id of the one task with dead letters that *text* stands for, or of a letter that bears it itself.

    Raises:
        TaskNotFoundError: There is none.
        InvalidRequestError: There are several.
    """
    candidates = ids.meant(text)
    found = _dead(candidates, desk) or ids.stored(desk.dead, candidates)
    if not found:
        raise NoLetterError(text, database=desk.db.name, hints=_why_none(text, desk))
    return _only(found)


def _only(found: Sequence[TaskId]) -> TaskId:
    if len(found) > 1:
        exact = " or ".join(bounded(ids.exactly(one), _MAX_TEXT) for one in found)
        raise InvalidRequestError([Problem("id", f"stands for several tasks: say which, {exact}")])
    return found[0]


def _why_none(text: str, desk: Desk) -> list[str]:
    living = warnings_of(lambda: _alive(text, desk), of="whether it is alive")
    return living or of_nobody(desk)


def _alive(text: str, desk: Desk) -> list[str]:
    return ["the task is among the living ones"] if ids.stored(desk.tasks, ids.meant(text)) else []


def _dead(candidates: tuple[TaskId, ...], desk: Desk) -> list[TaskId]:
    return [one for one in candidates if lookups.deaths(desk.dead, one, limit=1)]
