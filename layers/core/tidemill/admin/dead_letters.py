"""Operations on dead letters."""

from __future__ import annotations

import time
from functools import partial
from typing import Final

from tidemill.admin import requests, responses
from tidemill.admin.context import (
    AdminContext,
    collect_warnings,
    describe_unknown,
    find_unknown_queue,
    warn_no_executor,
)
from tidemill.admin.tasks import NotStoredError, copy_task, find_dead_letter_id
from tidemill.control import task_types
from tidemill.control.task_types import Directory
from tidemill.dead_letters import queries, selection
from tidemill.dead_letters.archive import move_failed
from tidemill.dead_letters.documents import DeadLetter, DeadLetterId, decode_id
from tidemill.dead_letters.export import export as export_letters
from tidemill.dead_letters.redrive import RedriveContext, RedriveRequest
from tidemill.dead_letters.redrive import redrive as redrive_letters
from tidemill.dead_letters.selection import DeadLetterFilter
from tidemill.errors import InvalidRequestError, Problem, TidemillError
from tidemill.model import Malformed, TaskId
from tidemill.store.counts import count_failed_by_name
from tidemill.text import describe_not_archived, did_you_mean

_MAX_SUGGESTED_FROM = 1_000
"""Number of the newest dead letters whose fingerprints may be suggested."""


def build_filter(request: requests.FilterRequest, *ids: DeadLetterId) -> DeadLetterFilter:
    """Return the criteria of *request*, or of the dead letters in *ids*."""
    return DeadLetterFilter(ids=ids, **request.filters)


def select_dead_letters(
    request: requests.SelectionRequest, context: AdminContext, *, open_only: bool = False
) -> DeadLetterFilter:
    """Return the criteria of the dead letters to change. The id of a task selects its newest open dead letter.

    Raises:
        TaskNotFoundError: There is no such dead letter.
        InvalidRequestError: It is redriven, all dead letters of its task are, or the id stands for several tasks.
    """
    if request.id is None:
        return build_filter(request)
    task_id = find_dead_letter_id(request.id, context)
    if request.redrives is not None:
        found = queries.find_by_redrives(context.dead, task_id, request.redrives)
        letter = _require_letter(found, request.id, context, redrives=request.redrives)
        if open_only and letter.redriven_at is not None:
            raise InvalidRequestError([Problem("redrives", "this dead letter has been redriven")])
        return build_filter(request, letter.id)
    newest = queries.find_newest_open(context.dead, task_id)
    if newest is None:
        raise InvalidRequestError([Problem("id", "has been redriven: give redrives for one that is not open any more")])
    return build_filter(request, newest)


def _warn_unknown_filters(request: requests.FilterRequest, context: AdminContext) -> list[str]:
    warnings: list[str] = []
    if request.fingerprint is not None and not queries.has_fingerprint(context.dead, request.fingerprint):
        known = queries.find_fingerprints(context.dead, of=_MAX_SUGGESTED_FROM)
        warnings.append(
            f"no dead letter has the fingerprint {request.fingerprint}{did_you_mean(request.fingerprint, known)}"
        )
    if request.name is not None and request.name not in (names := task_types.list_registered_names(context.db)):
        warnings.append(f"no executor has registered a function {request.name}{did_you_mean(request.name, names)}")
    return warnings + find_unknown_queue(request.queue, context)


CALL_TIMEOUT_SEC: Final = 2.0
"""Time after which a call starts no more work. MongoDB may take 4 s for the whole call."""

ARCHIVED_LATER: Final = "archive moves them every 5 minutes, `tidemill dlq redrive` moves them before it begins"
MOVE_TIMEOUT_SEC: Final = 1.0
"""Time after which a redrive moves no more failed tasks to the dead letters. The archive moves the rest."""


def redrive(request: requests.DeadLetterRedrive, context: AdminContext) -> responses.RedriveResponse:
    """Redrive open dead letters, the oldest first. Return the counts, with refusals by reason.

    Failed tasks that are no dead letters yet become dead letters first, unless it is a dry run.
    """
    if not request.dry_run and request.cursor is None:
        until = time.monotonic() + MOVE_TIMEOUT_SEC
        move_failed(context.tasks, context.dead, clock=context.clock, until=until)
    registered = partial(task_types.list_registered_names, context.db)
    which = select_dead_letters(request, context, open_only=True)
    result = redrive_letters(
        RedriveContext(tasks=context.tasks, dead=context.dead, clock=context.clock, registered=registered),
        RedriveRequest(which=which, per_sec=request.per_sec, drop_expiry=request.drop_expiry),
        limit=request.limit,
        dry_run=request.dry_run,
        after=request.cursor,
        until=_compute_deadline(),
    )
    warnings = _warn_if_nothing(request, context, is_nothing=not result.examined)
    not_archived, more_warnings = _count_not_archived(request, context)
    counts = responses.RedriveResponse.copy_fields(result)
    return responses.RedriveResponse(
        dry_run=request.dry_run, warnings=warnings + more_warnings, not_archived=not_archived, **counts
    )


def purge(request: requests.DeadLetterPurge, context: AdminContext) -> responses.PurgeResponse:
    """Delete dead letters, redriven ones too. Return the counts, with the number of unexported ones."""
    result = selection.purge(
        context.dead,
        select_dead_letters(request, context),
        limit=request.limit,
        dry_run=request.dry_run,
        after=request.cursor,
        now=context.clock.now(),
        until=_compute_deadline(),
    )
    warnings = _warn_if_nothing(request, context, is_nothing=not result.examined)
    warnings += _warn_not_archived(request, context)
    counts = responses.PurgeResponse.copy_fields(result)
    return responses.PurgeResponse(dry_run=request.dry_run, warnings=warnings, **counts)


def export(request: requests.DeadLetterExport, context: AdminContext) -> responses.ExportResponse:
    """Copy dead letters to the bucket that are not exported. Return the counts, with the number left.

    Raises:
        InvalidRequestError: There is no bucket.
    """
    if context.put is None:
        raise InvalidRequestError([Problem("op", "there is no bucket to export to: ARCHIVE_BUCKET names one")])
    result = export_letters(
        context.dead, context.put, clock=context.clock, until=_compute_deadline(), limit=request.limit
    )
    return responses.ExportResponse.model_validate(result)


def _compute_deadline() -> float:
    return time.monotonic() + CALL_TIMEOUT_SEC


def _count_not_archived(
    request: requests.DeadLetterList | requests.SelectionRequest, context: AdminContext
) -> tuple[dict[str, int], tuple[str, ...]]:
    """Return the number of failed tasks that *request* would select as dead letters, by name; only for a first page.

    They have no fingerprint yet. They are moved after now, so an ``until`` in the past leaves them out. If they cannot
    be counted, a warning says so: the operation itself may be done already.
    """
    has_id = isinstance(request, requests.SelectionRequest) and request.id is not None
    is_past = request.until is not None and request.until <= context.clock.now()
    if has_id or is_past or request.cursor is not None:
        return {}, ()
    try:
        return count_failed_by_name(context.tasks, queue=request.queue, name=request.name), ()
    except TidemillError as error:
        return {}, (describe_unknown("whether failed tasks are no dead letters yet", error),)


def _warn_not_archived(
    request: requests.DeadLetterList | requests.SelectionRequest, context: AdminContext
) -> tuple[str, ...]:
    counted, warnings = _count_not_archived(request, context)
    return (*warnings, f"{describe_not_archived(counted)}: {ARCHIVED_LATER}") if counted else warnings


def _warn_if_nothing(
    request: requests.DeadLetterList | requests.SelectionRequest, context: AdminContext, *, is_nothing: bool
) -> tuple[str, ...]:
    """Return likely mistakes in a request that no dead letter matches."""
    if not is_nothing or request.cursor is not None:  # a later call may examine nothing although dead letters match
        return ()
    return (
        *collect_warnings(lambda: _warn_unknown_filters(request, context), of="what may be meant"),
        *warn_no_executor(context),
    )


MAX_OTHER_FAILURES: Final = 20
"""Maximum number of other failures of a task in an answer."""


def list_groups(request: requests.DeadLetterGroups, context: AdminContext) -> responses.GroupsResponse:
    """Return the largest groups of open dead letters, and the numbers of all groups and dead letters."""
    now = context.clock.now()
    found = queries.find_groups(context.dead, limit=request.limit, now=now, limits=context.group_limits)
    warnings = warn_no_executor(context) if not found.dead_letters and found.sampled_newest is None else ()
    warnings += _warn_not_archived(requests.DeadLetterList(op="dlq.list"), context)
    return responses.GroupsResponse(warnings=warnings, **responses.GroupsResponse.copy_fields(found))


def list_dead_letters(request: requests.DeadLetterList, context: AdminContext) -> responses.DeadLetterPage:
    """Return a page of dead letters, and the cursor of the next page."""
    page = selection.list_dead_letters(
        context.dead, build_filter(request), redriven=request.redriven, limit=request.limit, after=request.cursor
    )
    directory = context.directory
    letters = tuple(_build_dead_letter(letter, context, directory, is_listed=True) for letter in page.letters)
    warnings = _warn_if_nothing(request, context, is_nothing=not letters)
    if not request.redriven:
        warnings += _warn_not_archived(request, context)
    return responses.DeadLetterPage(dead_letters=letters, next=page.next, warnings=warnings)


def show(request: requests.DeadLetterShow, context: AdminContext) -> responses.DeadLetterResponse:
    """Return one dead letter of a task, and its other failures, the newest first."""
    task_id = find_dead_letter_id(request.id, context)
    letter = _find_letter(request, task_id, context)
    letters = queries.find_of_task(context.dead, task_id, limit=MAX_OTHER_FAILURES + 1)
    other_letters = [other_letter for other_letter in letters if other_letter.id != letter.id]
    return responses.DeadLetterResponse(
        letter=_build_dead_letter(letter, context, context.directory),
        other_failures=tuple(map(responses.OtherFailure.model_validate, other_letters[:MAX_OTHER_FAILURES])),
    )


def _build_dead_letter(
    letter: DeadLetter, context: AdminContext, directory: Directory, *, is_listed: bool = False
) -> responses.AnyDeadLetter:
    fields = copy_task(letter.task, context, directory, is_listed=is_listed) | responses.Marks.copy_fields(letter)
    fields["dead_letter"] = True
    is_malformed = isinstance(letter.task, Malformed)
    return (responses.MalformedDeadLetterView if is_malformed else responses.DeadLetterView)(**fields)


def _find_letter(request: requests.DeadLetterShow, task_id: TaskId, context: AdminContext) -> DeadLetter:
    """Return the dead letter with the requested number, or else the newest open one, or else the newest."""
    if request.redrives is not None:
        letter = queries.find_by_redrives(context.dead, task_id, request.redrives)
    else:
        newest = queries.find_newest_open(context.dead, task_id) or next(
            (failed.id for failed in queries.find_of_task(context.dead, task_id, limit=1)), decode_id(task_id)
        )
        letter = queries.find_dead_letter(context.dead, newest)
    return _require_letter(letter, request.id, context, redrives=request.redrives)


def _require_letter(letter: DeadLetter | None, text: str, context: AdminContext, *, redrives: int | None) -> DeadLetter:
    if letter is None:
        raise NotStoredError("dead letter of task", text, database=context.db.name, redrives=redrives)
    return letter
