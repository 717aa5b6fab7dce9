"""Redrive: insert the tasks of dead letters again, page by page, the oldest first; complete interrupted redrives.

A redrive marks its dead letters, inserts their tasks, and closes the dead letters, in this order.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from tidemill.clock import Clock
from tidemill.dead_letters import redrive_writes
from tidemill.dead_letters.redrive_checks import (
    Candidate,
    CheckResult,
    LiveState,
    RateSchedule,
    Redrivable,
    RefusalCode,
    Refused,
    check_letters,
    read_candidate,
    take_batch,
)
from tidemill.dead_letters.selection import POSITION_KEYS, DeadLetterFilter, build_walk, read_cursor
from tidemill.store.connection import Tasks, limit_time
from tidemill.store.paging import Position, build_cursor_error, encode_cursor, read_page, read_position
from tidemill.store.writes import DUPLICATE_KEY_CODE, insert_each

BATCH_SIZE: Final = 500
MAX_EXAMPLES: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class RedriveContext:
    """Collections and clock of a redrive; ``registered`` returns the names of all registered functions."""

    tasks: Tasks
    dead: Tasks
    clock: Clock
    registered: Callable[[], frozenset[str]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RedriveRequest:
    """Request of a redrive.

    Attributes:
        which: Selects the dead letters.
        per_sec: Number of tasks that become due each second; ``None`` makes all due at once.
        drop_expiry: Remove the time by which a task must start.
    """

    which: DeadLetterFilter
    per_sec: float | None = None
    drop_expiry: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RedriveResult:
    """Result of a redrive, or of a dry run.

    Attributes:
        refused: Number of refused dead letters, by the code of the reason.
        unregistered: Number of refused dead letters, by the name that is not registered.
        examples: At most `MAX_EXAMPLES` of the refused dead letters.
        next: Cursor for the next call; ``None`` after the last dead letter.
    """

    examined: int = 0
    redriven: int = 0
    refused: Mapping[RefusalCode, int] = field(default_factory=dict)
    unregistered: Mapping[str, int] = field(default_factory=dict)
    examples: tuple[Refused, ...] = ()
    next: str | None = None

    def add(self, batch: BatchResult, *, examined: int) -> RedriveResult:
        """Return the sum of this result and of one batch of *examined* dead letters."""
        names = [refusal.name for refusal in batch.refused if refusal.name is not None]
        return replace(
            self,
            examined=self.examined + examined,
            redriven=self.redriven + batch.redriven,
            refused=dict(Counter(self.refused) + Counter(refusal.code for refusal in batch.refused)),
            unregistered=dict(Counter(self.unregistered) + Counter(names)),
            examples=(*self.examples, *batch.refused)[:MAX_EXAMPLES],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult:
    """Number of redriven tasks, and the dead letters that are as they were before."""

    redriven: int = 0
    refused: Sequence[Refused] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Progress:
    """Progress of a redrive. Its cursor holds all but the live state."""

    after: Position | None = None
    up_to: datetime
    schedule: RateSchedule
    live: LiveState

    def encode(self) -> str | None:
        start, placed = self.schedule.start, self.schedule.placed
        state = {"up_to": self.up_to, "start": start, "placed": placed}
        return None if self.after is None else encode_cursor({**self.after, **state})


def redrive(
    on: RedriveContext,
    request: RedriveRequest,
    *,
    limit: int,
    dry_run: bool,
    after: str | None = None,
    until: float,
    monotonic: Callable[[], float] = time.monotonic,
) -> RedriveResult:
    """Redrive open dead letters until *limit* tasks are inserted, *until* (monotonic) is past, or none is left.

    Dead letters that are inserted after the first call are left out, also with the cursors of that call. If a call is
    interrupted, `complete` finishes its work. With *dry_run* nothing is written, and the expected result is returned.

    Raises:
        InvalidRequestError: *after* is not a cursor.
        UnavailableError: MongoDB did not confirm a write; `complete` will finish the work.
    """
    live = LiveState(registered=None if on.registered is None else on.registered())
    progress = _start_progress(request, after, live, now=on.clock.now())
    result = RedriveResult()
    while result.redriven < limit:
        batch, behind = _read_batch(on.dead, request, progress, limit=min(limit - result.redriven, BATCH_SIZE))
        if batch:
            written, progress = _redrive_batch(on, request, batch, progress, dry_run=dry_run)
            result = result.add(written, examined=len(batch))
        progress = replace(progress, after=behind)
        if behind is None or monotonic() >= until:
            break
    return replace(result, next=progress.encode())


def _start_progress(request: RedriveRequest, after: str | None, live: LiveState, *, now: datetime) -> _Progress:
    if after is None:
        return _Progress(up_to=now, schedule=RateSchedule(per_sec=request.per_sec, start=now), live=live)
    position, values = read_cursor(after, up_to=datetime, start=datetime, placed=int)
    schedule = RateSchedule(per_sec=request.per_sec, start=values["start"], placed=values["placed"])
    if not schedule.is_possible(now=now):
        raise build_cursor_error()
    return _Progress(after=position, up_to=values["up_to"], schedule=schedule, live=live)


def _read_batch(
    dead: Tasks, request: RedriveRequest, progress: _Progress, *, limit: int
) -> tuple[Sequence[Candidate], Position | None]:
    """Return the next dead letters whose bodies may be held in memory at once, and the position behind them."""
    shown, is_open = redrive_writes.CANDIDATE_PROJECTION, {"redriven_at": None}
    walk = build_walk(request.which, shown=shown, after=progress.after, up_to=progress.up_to, only=is_open)
    page = read_page(dead, walk, limit=limit)
    letters = [read_candidate(raw) for raw in page.found]
    batch = take_batch(letters)
    following = letters[len(batch) :]
    return batch, read_position(following[0].raw, *POSITION_KEYS) if following else page.behind


def _redrive_batch(
    on: RedriveContext, request: RedriveRequest, batch: Sequence[Candidate], progress: _Progress, *, dry_run: bool
) -> tuple[BatchResult, _Progress]:
    now = on.clock.now()
    free = [letter for letter in batch if not letter.is_in_progress(now=now)]
    checked = _check_letters(
        on, free, progress.live, schedule=progress.schedule, drops_expiry=request.drop_expiry, now=now
    )
    busy = [letter.refuse_in_progress() for letter in batch if letter.is_in_progress(now=now)]
    if dry_run:
        expected = len(checked.already_redriven) + len(checked.redrivable)
        result = BatchResult(redriven=expected, refused=(*busy, *checked.refused))
    else:
        closed = _close_redriven(on, checked.already_redriven)
        inserted = _write_redrives(on, checked.redrivable)
        result = BatchResult(
            redriven=closed.redriven + inserted.redriven,
            refused=(*busy, *checked.refused, *closed.refused, *inserted.refused),
        )
    return result, replace(progress, live=checked.live, schedule=checked.schedule or progress.schedule)


def _check_letters(
    on: RedriveContext,
    letters: Sequence[Candidate],
    live: LiveState,
    *,
    schedule: RateSchedule | None,
    drops_expiry: bool,
    now: datetime,
) -> CheckResult:
    """Read the bodies of *letters* and the state that concerns them, and check them."""
    without = ("expires_at",) if drops_expiry else ()
    bodies = redrive_writes.read_bodies(on.dead, letters, without=without)
    existing = [letter for letter in letters if letter.key in bodies]
    live = redrive_writes.read_live_state(on.tasks, on.dead, existing, bodies.values(), known=live)
    return check_letters(existing, bodies, live, schedule=schedule, drops_expiry=drops_expiry, now=now)


def complete(
    on: RedriveContext, *, until: float, monotonic: Callable[[], float] = time.monotonic, task_retention: timedelta
) -> int:
    """Complete redrives that were interrupted more than a minute ago, until *until* (monotonic); return the task count.

    If the task exists, or failed again later, only the dead letter is closed. If something prevents the task, the marks
    are removed. This also applies to a redrive that started *task_retention* ago: its task may be done and removed.
    A dead letter that MongoDB refuses to change does not delay the others. Safe to stop anywhere, and to repeat.

    Raises:
        UnavailableError: The next run completes the rest.
    """
    redriven = 0
    batches = _find_interrupted(on)
    while monotonic() < until and (letters := next(batches, None)):
        redriven += _complete_batch(on, letters, task_retention=task_retention)
    return redriven


def _find_interrupted(on: RedriveContext) -> Iterator[Sequence[Candidate]]:
    """Yield dead letters that may be held in memory at once, with the same choice about expiry."""
    for page in redrive_writes.find_interrupted(on.dead, now=on.clock.now(), limit=BATCH_SIZE):
        letters = [read_candidate(raw) for raw in page]
        for drops_expiry in (False, True):
            rest: Sequence[Candidate] = [letter for letter in letters if letter.drops_expiry == drops_expiry]
            while rest:
                yield (batch := take_batch(rest))
                rest = rest[len(batch) :]


def _complete_batch(on: RedriveContext, letters: Sequence[Candidate], *, task_retention: timedelta) -> int:
    now = on.clock.now()
    drops_expiry = letters[0].drops_expiry
    checked = _check_letters(on, letters, LiveState(), schedule=None, drops_expiry=drops_expiry, now=now)
    recent = list[Redrivable]()
    unfit = [refusal.letter for refusal in checked.refused]
    for ready in checked.redrivable:
        if ready.letter.has_started_within(task_retention, now=now):
            recent.append(ready)
        else:
            unfit.append(ready.letter)
    closed = _close_redriven(on, checked.already_redriven)
    redrive_writes.remove_marks(on.dead, unfit)
    return closed.redriven + _write_redrives(on, recent).redriven


INSERT_TIMEOUT: Final = timedelta(seconds=30)
"""Maximum time between mark and insert. It is well below the time after which another redrive takes over."""

_CHANGE_REFUSED: Final = "MongoDB refuses to change its letter"


def _write_redrives(on: RedriveContext, redrivable: Sequence[Redrivable]) -> BatchResult:
    """Redrive the dead letters in *redrivable*. One that another redrive took first is not counted as refused.

    Raises:
        UnavailableError: Some, all or none of the tasks were inserted. The marks allow `complete` to find out.
    """
    token = uuid.uuid4().hex
    marked_at = on.clock.now()
    marked = redrive_writes.mark(on.dead, redrivable, token=token, now=marked_at)
    ours, lost = redrivable, list[Refused]()
    if marked.changed < len(redrivable):
        ours, lost = _split_by_token(on, redrivable, token, is_any_refused=marked.refused > 0)
    ours = [replace(ready, letter=replace(ready.letter, token=token)) for ready in ours]
    remaining = INSERT_TIMEOUT - (on.clock.now() - marked_at)
    if remaining <= timedelta(0):
        return BatchResult(refused=(*lost, *(ready.letter.refuse_in_progress() for ready in ours)))
    refused = _insert_tasks(on, ours, timeout=remaining)
    redrive_writes.remove_marks(on.dead, [refusal.letter for refusal in refused.values()])
    closed = _close_redriven(on, [ready.letter for index, ready in enumerate(ours) if index not in refused])
    return BatchResult(redriven=closed.redriven, refused=(*lost, *refused.values(), *closed.refused))


def _close_redriven(on: RedriveContext, letters: Sequence[Candidate]) -> BatchResult:
    """Close dead letters whose tasks exist again. Dead letters that MongoDB refuses to change stay open."""
    changed = redrive_writes.close(on.dead, letters, now=on.clock.now())
    if changed == len(letters):
        return BatchResult(redriven=changed)
    tokens = redrive_writes.find_open_tokens(on.dead, letters)
    rest = [letter for letter in letters if letter.key in tokens and tokens[letter.key] == letter.token]
    message = f"its task is back, but {_CHANGE_REFUSED}"
    return BatchResult(redriven=changed, refused=[letter.refuse("write_rejected", message) for letter in rest])


def _split_by_token(
    on: RedriveContext, redrivable: Sequence[Redrivable], token: str, *, is_any_refused: bool
) -> tuple[list[Redrivable], list[Refused]]:
    """Return the dead letters that bear our *token*, and refusals of the other open ones."""
    tokens = redrive_writes.find_open_tokens(on.dead, [ready.letter for ready in redrivable])
    ours = [ready for ready in redrivable if tokens.get(ready.letter.key) == token]
    not_ours = [ready.letter for ready in redrivable if tokens.get(ready.letter.key, token) != token]
    return ours, [
        letter.refuse("write_rejected", _CHANGE_REFUSED)
        if is_any_refused and tokens[letter.key] == letter.token
        else letter.refuse_in_progress()
        for letter in not_ours
    ]


def _insert_tasks(on: RedriveContext, ours: Sequence[Redrivable], *, timeout: timedelta) -> Mapping[int, Refused]:
    """Insert the tasks. Return the refusals, by index."""
    if not ours:
        return {}
    usual = on.tasks.database.client.options.timeout
    seconds = timeout.total_seconds()
    with limit_time(seconds if usual is None else min(seconds, usual)):
        codes = insert_each(on.tasks, [ready.document for ready in ours])
    taken = {index: ours[index] for index, code in codes.items() if code == DUPLICATE_KEY_CODE}
    refused = {
        index: ours[index].letter.refuse("malformed", f"MongoDB refuses its task (code {code})")
        for index, code in codes.items()
        if index not in taken
    }
    return refused | _check_conflicts(on, taken)


def _check_conflicts(on: RedriveContext, taken: Mapping[int, Redrivable]) -> dict[int, Refused]:
    """Return the refusals of dead letters whose id or key another task has. Tasks that we inserted are no conflict."""
    if not taken:
        return {}
    letters, documents = zip(*((ready.letter, ready.document) for ready in taken.values()), strict=True)
    live = redrive_writes.read_live_state(on.tasks, on.dead, letters, documents, known=LiveState())
    return {
        index: ready.letter.refuse(
            "conflict", live.describe_conflict(ready.letter, ready.task) or "another task took its id or key"
        )
        for index, ready in taken.items()
        if not live.has_task(ready)
    }
