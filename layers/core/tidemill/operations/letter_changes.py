"""Operations that do something with dead letters, many at a time: each answer says where the next call goes on."""

from __future__ import annotations

import time
from typing import Any, Final

from tidemill.errors import InvalidRequestError, Problem
from tidemill.export import export as export_letters
from tidemill.operations.desk import Desk
from tidemill.operations.letter_requests import Chosen, DeadLetterExport, DeadLetterPurge, DeadLetterRedrive
from tidemill.operations.matching import chosen, of_no_letter
from tidemill.purge import purge as purge_letters
from tidemill.redrive import Plan, Redriver, Refused
from tidemill.redrive import redrive as redrive_letters
from tidemill.store import ids

CALL_SEC: Final = 2.0
"""After so long a call begins nothing more: MongoDB may take 4 s over all of it."""


def redrive(request: DeadLetterRedrive, desk: Desk) -> dict[str, Any]:
    """Redrive open letters, the oldest first; return how many, and what was refused for what reason."""
    on = Redriver(tasks=desk.tasks, dead=desk.dead, registered=desk.registered, clock=desk.clock)
    plan = Plan(which=chosen(request, desk, open_only=True), per_sec=request.per_sec, drop_expiry=request.drop_expiry)
    done = redrive_letters(on, plan, limit=request.limit, dry_run=request.dry_run, after=request.cursor, until=_until())
    return {
        "dry_run": request.dry_run,
        "looked_at": done.looked_at,
        "redriven": done.redriven,
        "refused": dict(done.refused),
        "unregistered": dict(done.unregistered),
        "examples": [_refused(one) for one in done.examples],
        "next": done.next,
        "warnings": _of_nothing(request, desk, is_nothing=not done.looked_at),
    }


def purge(request: DeadLetterPurge, desk: Desk) -> dict[str, Any]:
    """Delete letters, redriven ones too; return how many, and how many of them were not exported."""
    done = purge_letters(
        desk.dead,
        chosen(request, desk),
        limit=request.limit,
        dry_run=request.dry_run,
        after=request.cursor,
        now=desk.clock.now(),
        until=_until(),
    )
    return {
        "dry_run": request.dry_run,
        "looked_at": done.looked_at,
        "purged": done.purged,
        "unexported": done.unexported,
        "under_way": done.under_way,
        "next": done.next,
        "warnings": _of_nothing(request, desk, is_nothing=not done.looked_at),
    }


def export(request: DeadLetterExport, desk: Desk) -> dict[str, Any]:
    """Copy letters to the bucket that are not there yet; return how many, and how many are left.

    Raises:
        InvalidRequestError: There is no bucket.
    """
    if desk.put is None:
        raise InvalidRequestError([Problem("op", "there is no bucket to export to: ARCHIVE_BUCKET names one")])
    done = export_letters(desk.dead, desk.put, clock=desk.clock, until=_until(), limit=request.limit)
    counts = {"exported": done.exported, "refused": done.refused, "failed": done.failed, "left": done.left}
    return counts | {"trouble": done.trouble}


def _until() -> float:
    return time.monotonic() + CALL_SEC


def _refused(one: Refused) -> dict[str, Any]:
    return {
        "id": ids.shown(one.id.task),
        "redrives": one.id.redrives,
        "code": one.code,
        "message": one.message,
    }


def _of_nothing(request: Chosen, desk: Desk, *, is_nothing: bool) -> list[str]:
    # Of the first call alone: the others may look at nothing although letters match.
    return of_no_letter(request, desk) if is_nothing and request.cursor is None else []
