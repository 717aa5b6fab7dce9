"""Operations that look at dead letters."""

from __future__ import annotations

from typing import Any

from tidemill.dead_letters import listing as letter_listing
from tidemill.dead_letters import lookups
from tidemill.dead_letters.groups import groups
from tidemill.dead_letters.values import Letter, LetterId, exact_id
from tidemill.model import TaskId
from tidemill.operations.desk import Desk
from tidemill.operations.identities import NoLetterError, meant_dead
from tidemill.operations.letter_documents import death_document, group_document, letter_document, listed_letter
from tidemill.operations.letter_requests import DeadLetterGroups, DeadLetterList, DeadLetterShow
from tidemill.operations.matching import of_no_letter, which
from tidemill.operations.task_documents import allowances
from tidemill.operations.warnings import of_nobody

MAX_DEATHS = 20
"""So many other deaths of a task are shown."""


def largest_groups(request: DeadLetterGroups, desk: Desk) -> dict[str, Any]:
    """Return the largest groups of open letters, and how many groups and letters there are in all.

    ``newest_only`` is ``null``, or all of this is of so many dead letters, the newest: there are more.
    """
    found = groups(desk.dead, limit=request.limit, now=desk.clock.now())
    return {
        "groups": [group_document(one) for one in found.page],
        "letters": found.letters,
        "groups_in_all": found.in_all,
        "newest_only": found.newest_only,
        "warnings": of_nobody(desk) if not found.letters and found.newest_only is None else [],
    }


def listing(request: DeadLetterList, desk: Desk) -> dict[str, Any]:
    """Return a page of letters, and the cursor of the next."""
    page = letter_listing.listing(
        desk.dead, which(request), redriven=request.redriven, limit=request.limit, after=request.cursor
    )
    allowed = allowances(desk)
    letters = [listed_letter(letter, allowed) for letter in page.letters]
    is_nothing = not letters and request.cursor is None
    return {"letters": letters, "next": page.next, "warnings": of_no_letter(request, desk) if is_nothing else []}


def show(request: DeadLetterShow, desk: Desk) -> dict[str, Any]:
    """Return one letter of a task, and its other deaths, the newest first."""
    task_id = meant_dead(request.id, desk)
    letter = _letter(request, task_id, desk)
    others = [one for one in lookups.deaths(desk.dead, task_id, limit=MAX_DEATHS + 1) if one.id != letter.id]
    return {
        "letter": letter_document(letter, allowances(desk)),
        "deaths": [death_document(one) for one in others[:MAX_DEATHS]],
    }


def _letter(request: DeadLetterShow, task_id: TaskId, desk: Desk) -> Letter:
    """Return the one that is asked for by number, or the newest that is open, or the newest."""
    if request.redrives is not None:
        letter = lookups.numbered(desk.dead, task_id, request.redrives)
    else:
        letter = lookups.letter(desk.dead, _newest(task_id, desk))
    if letter is None:
        raise NoLetterError(request.id, redrives=request.redrives, database=desk.db.name)
    return letter


def _newest(task_id: TaskId, desk: Desk) -> LetterId:
    is_open = lookups.newest_open(desk.dead, task_id)
    newest = (one.id for one in lookups.deaths(desk.dead, task_id, limit=1))
    return is_open or next(newest, None) or exact_id(task_id)
