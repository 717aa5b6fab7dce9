"""Which dead letters an operation means, and what to say where there are none."""

from __future__ import annotations

from tidemill import control
from tidemill.dead_letters import lookups
from tidemill.dead_letters.groups import fingerprints
from tidemill.dead_letters.values import LetterId
from tidemill.dead_letters.which import Which
from tidemill.errors import InvalidRequestError, Problem
from tidemill.operations.desk import Desk
from tidemill.operations.identities import NoLetterError, meant_dead
from tidemill.operations.letter_requests import Chosen, Filtered
from tidemill.operations.warnings import of_nobody, warnings_of
from tidemill.wording import guess

_GUESSED = 1_000
"""Of the groups that so many letters are of, the newest ones, one may be meant."""


def which(request: Filtered, *ids: LetterId) -> Which:
    """Return the letters that match, or those of *ids*."""
    return Which(
        ids=ids,
        fingerprint=request.fingerprint,
        name=request.name,
        queue=request.queue,
        since=request.since,
        until=request.until,
    )


def chosen(request: Chosen, desk: Desk, *, open_only: bool = False) -> Which:
    """Return the letters that something is to be done to; by the id of a task, its newest open one.

    Raises:
        TaskNotFoundError: There is no such letter.
        InvalidRequestError: It has gone back, or all letters of its task have, or several tasks may be meant.
    """
    if request.id is None:
        return which(request)
    task_id = meant_dead(request.id, desk)
    if request.redrives is not None:
        letter = lookups.numbered(desk.dead, task_id, request.redrives)
        if letter is None:
            raise NoLetterError(request.id, redrives=request.redrives, database=desk.db.name)
        if open_only and letter.redriven_at is not None:
            raise InvalidRequestError([Problem("redrives", "this dead letter has been redriven")])
        return which(request, letter.id)
    newest = lookups.newest_open(desk.dead, task_id)
    if newest is None:
        raise InvalidRequestError([Problem("id", "has been redriven: give redrives for one that is not open any more")])
    return which(request, newest)


def of_no_letter(request: Filtered, desk: Desk) -> list[str]:
    """Return what may be wrong with a request that no letter matches."""
    return [*warnings_of(lambda: _unknown(request, desk), of="what may be meant"), *of_nobody(desk)]


def _unknown(request: Filtered, desk: Desk) -> list[str]:
    found: list[str] = []
    if request.fingerprint is not None and not lookups.has_fingerprint(desk.dead, request.fingerprint):
        known = fingerprints(desk.dead, of=_GUESSED)
        found.append(f"no dead letter has the fingerprint {request.fingerprint}{guess(request.fingerprint, known)}")
    if request.name is not None and request.name not in (names := control.registered_names(desk.db)):
        found.append(f"no executor has registered a function {request.name}{guess(request.name, names)}")
    if request.queue is not None and request.queue not in (queues := control.known_queues(desk.db)):
        found.append(control.no_queue(request.queue, queues))
    return found
