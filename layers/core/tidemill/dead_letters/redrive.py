"""Redrive: insert the tasks of dead letters again, page by page, the oldest first; complete interrupted redrives.

A redrive marks its dead letters, inserts their tasks, and closes the dead letters, in this order.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

from bson.raw_bson import RawBSONDocument

from tidemill.clock import truncate_to_ms
from tidemill.dead_letters import redrive_writes
from tidemill.dead_letters.queries import POSITION_KEYS, build_walk
from tidemill.dead_letters.redrive_checks import (
    INTERRUPTED_AFTER,
    MAX_EXAMPLES,
    Candidate,
    LiveState,
    Redrivable,
    RedriveContext,
    RedriveRequest,
    RedriveResult,
    RedriveStore,
    RefusalCode,
    Refused,
    Verdict,
    check_candidate,
    check_candidates,
    read_candidate,
    refuse_in_progress,
    take_batch,
)
from tidemill.requests.tasks import MAX_DELAY_SEC
from tidemill.store.connection import limit_time
from tidemill.store.paging import Position, build_cursor_error, decode_cursor, encode_cursor, read_page, read_position
from tidemill.store.writes import DUPLICATE_KEY_CODE

BATCH_SIZE: Final = 500
_OPEN: Final = {"redriven_at": None}
_PROGRESS_FIELDS: Final = ("up_to", "start", "placed")


def redrive(
    on: RedriveContext,
    plan: RedriveRequest,
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
    now = on.clock.now()
    progress = _Progress.start(now, plan) if after is None else _Progress.decode(after, plan, now=now)
    return _RedriveRun(on, plan, progress, dry_run=dry_run).run(limit=limit, until=until, monotonic=monotonic)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Progress:
    """Progress of a redrive, as its cursor holds it."""

    after: Position | None
    up_to: datetime
    spread: RateSchedule

    @classmethod
    def start(cls, now: datetime, plan: RedriveRequest) -> _Progress:
        return cls(after=None, up_to=now, spread=RateSchedule(per_sec=plan.per_sec, start=now))

    @classmethod
    def decode(cls, cursor: str, plan: RedriveRequest, *, now: datetime) -> _Progress:
        state = decode_cursor(cursor, *POSITION_KEYS, *_PROGRESS_FIELDS)
        up_to, start, placed = (state.pop(name) for name in _PROGRESS_FIELDS)
        if not (isinstance(up_to, datetime) and isinstance(start, datetime) and isinstance(placed, int)):
            raise build_cursor_error()
        spread = RateSchedule(per_sec=plan.per_sec, start=start, placed=placed)
        if not spread.is_possible(now=now):
            raise build_cursor_error()
        return cls(after=state, up_to=up_to, spread=spread)

    def cursor(self) -> str | None:
        if self.after is None:
            return None
        rest: dict[str, Any] = {"up_to": self.up_to, "start": self.spread.start, "placed": self.spread.placed}
        return encode_cursor({**self.after, **rest})


class _RedriveRun:
    def __init__(self, on: RedriveContext, plan: RedriveRequest, progress: _Progress, *, dry_run: bool) -> None:
        self._on = on
        self._plan = plan
        self._progress = progress
        self._is_dry_run = dry_run
        self._around = LiveState(registered=on.registered())
        self._tally = RedriveCounts()

    def run(self, *, limit: int, until: float, monotonic: Callable[[], float]) -> RedriveResult:
        while self._tally.redriven < limit:
            self._redrive_page(limit - self._tally.redriven)
            if self._progress.after is None or monotonic() >= until:
                break
        return self._tally.result(cursor=self._progress.cursor())

    def _redrive_page(self, limit: int) -> None:
        walk = build_walk(
            self._plan.which,
            shown=redrive_writes.CANDIDATE_PROJECTION,
            after=self._progress.after,
            up_to=self._progress.up_to,
            only=_OPEN,
        )
        page = read_page(self._on.dead, walk, limit=min(limit, BATCH_SIZE))
        letters = [read_candidate(raw) for raw in page.found]
        batch = take_batch(letters)
        if batch:
            self._redrive_batch(batch)
        following = letters[len(batch) :]
        behind = read_position(following[0].raw, *POSITION_KEYS) if following else page.behind
        self._progress = replace(self._progress, after=behind)

    def _redrive_batch(self, letters: Sequence[Candidate]) -> None:
        on, tally, now = self._on, self._tally, self._on.clock.now()
        tally.examined += len(letters)
        tally.refuse(refuse_in_progress(letter.id) for letter in letters if letter.is_in_progress(now=now))
        checked = check_candidates(
            on,
            [letter for letter in letters if not letter.is_in_progress(now=now)],
            self._around,
            without=("expires_at",) if self._plan.drop_expiry else (),
            decide=lambda letter, body: self._decide(letter, body, now),
        )
        tally.refuse(refusal for _, refusal in checked.refused)
        if self._is_dry_run:
            tally.redriven += len(checked.back) + len(checked.ready)
            return
        closed = close_redriven(on, [(letter, letter.token) for letter in checked.back])
        carried = write_redrives(on, checked.ready)
        tally.redriven += closed.redriven + carried.redriven
        tally.refuse([*closed.refused, *carried.refused])

    def _decide(self, letter: Candidate, body: RawBSONDocument, now: datetime) -> Verdict:
        spread, drops_expiry = self._progress.spread, self._plan.drop_expiry
        due_at = None if spread.is_full else spread.due_at(now=now)
        verdict = check_candidate(letter, body, self._around, due_at=due_at, drops_expiry=drops_expiry, now=now)
        if not isinstance(verdict, Redrivable):
            return verdict
        if spread.is_full:
            return letter.refuse("too_far_ahead", "at this rate its turn would be more than a year away")
        self._progress = replace(self._progress, spread=spread.further(now=now))
        return verdict


def complete(
    on: RedriveStore, *, until: float, monotonic: Callable[[], float] = time.monotonic, task_retention: timedelta
) -> int:
    """Complete redrives that were interrupted more than a minute ago, until *until* (monotonic); return the task count.

    If the task exists, or failed again later, only the dead letter is closed. If something prevents the task, the marks
    are removed. This also applies to a redrive that started *task_retention* ago: its task may be done and removed.
    A dead letter that MongoDB refuses to change does not delay the others. Safe to stop anywhere, and to repeat.

    Raises:
        UnavailableError: The next run completes the rest.
    """
    back = 0
    batches = _find_interrupted(on)
    while monotonic() < until and (letters := next(batches, None)):
        back += _complete_batch(on, letters, task_retention=task_retention)
    return back


def _find_interrupted(on: RedriveStore) -> Iterator[Sequence[Candidate]]:
    """Yield dead letters that may be held in memory at once, with the same choice about expiry."""
    now = on.clock.now()
    for page in redrive_writes.find_interrupted(
        on.dead, before=now - INTERRUPTED_AFTER, after=now + INTERRUPTED_AFTER, limit=BATCH_SIZE
    ):
        letters = [read_candidate(raw) for raw in page]
        for drops_expiry in (False, True):
            rest: Sequence[Candidate] = [letter for letter in letters if letter.drops_expiry == drops_expiry]
            while rest:
                batch = take_batch(rest)
                yield batch
                rest = rest[len(batch) :]


def _complete_batch(on: RedriveStore, letters: Sequence[Candidate], *, task_retention: timedelta) -> int:
    now = on.clock.now()
    around = LiveState(registered=None)

    def decide(letter: Candidate, body: RawBSONDocument) -> Verdict:
        return check_candidate(
            letter, body, around, due_at=_find_due_at(letter, now), drops_expiry=letter.drops_expiry, now=now
        )

    without = ("expires_at",) if letters[0].drops_expiry else ()
    checked = check_candidates(on, letters, around, without=without, decide=decide)
    recent = [ready for ready in checked.ready if _has_started_within(task_retention, ready.letter, now)]
    unfit = [letter for letter, _ in checked.refused]
    unfit += [ready.letter for ready in checked.ready if not _has_started_within(task_retention, ready.letter, now)]
    closed = close_redriven(on, [(letter, letter.token) for letter in checked.back])
    redrive_writes.remove_marks(on.dead, [(letter.raw_id, letter.token) for letter in unfit])
    return closed.redriven + write_redrives(on, recent).redriven


def _find_due_at(letter: Candidate, now: datetime) -> datetime | None:
    return letter.due_at if letter.due_at is not None and letter.due_at > now else None


def _has_started_within(span: timedelta, letter: Candidate, now: datetime) -> bool:
    """Return whether the redrive started within *span* of *now*. The other clock may have been ahead by as much."""
    return letter.started_at is not None and abs(now - letter.started_at) <= span


INSERT_TIMEOUT: Final = timedelta(seconds=30)
"""Maximum time between mark and insert. It is well below the time after which another redrive takes over."""

_CHANGE_REFUSED: Final = "MongoDB refuses to change its letter"


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteResult:
    """Number of redriven tasks, and the dead letters that are as they were before."""

    redriven: int
    refused: tuple[Refused, ...]


def write_redrives(on: RedriveStore, ready: Sequence[Redrivable]) -> WriteResult:
    """Redrive the dead letters in *ready*. A dead letter that another redrive took first is not counted as refused.

    Raises:
        UnavailableError: Some, all or none of the tasks were inserted. The marks allow `complete` to find out.
    """
    if not ready:
        return WriteResult(redriven=0, refused=())
    token = uuid.uuid4().hex
    marked_at = on.clock.now()
    marked = redrive_writes.mark(on.dead, [candidate.mark() for candidate in ready], token=token, now=marked_at)
    ours, late = list(ready), list[Refused]()
    if marked.changed < len(ready):
        ours, late = _split_by_token(on, ready, token, is_any_refused=marked.refused > 0)
    left = INSERT_TIMEOUT - (on.clock.now() - marked_at)
    if left <= timedelta(0):
        return WriteResult(
            redriven=0, refused=(*late, *(refuse_in_progress(candidate.letter.id) for candidate in ours))
        )
    refused = _insert_tasks(on, ours, left)
    redrive_writes.remove_marks(on.dead, [(ours[index].letter.raw_id, token) for index in refused])
    inserted = [candidate.letter for index, candidate in enumerate(ours) if index not in refused]
    closed = close_redriven(on, [(letter, token) for letter in inserted])
    return WriteResult(redriven=closed.redriven, refused=(*late, *refused.values(), *closed.refused))


def close_redriven(on: RedriveStore, letters: Sequence[tuple[Candidate, object]]) -> WriteResult:
    """Close dead letters whose tasks exist again, each given with its token.

    Dead letters that MongoDB refuses to change stay open.
    """
    changed = redrive_writes.close(on.dead, [(letter.raw_id, token) for letter, token in letters], now=on.clock.now())
    if changed == len(letters):
        return WriteResult(redriven=changed, refused=())
    tokens = redrive_writes.find_open_tokens(on.dead, [letter.raw_id for letter, _ in letters])
    rest = [letter for letter, token in letters if letter.key in tokens and tokens[letter.key] == token]
    message = f"its task is back, but {_CHANGE_REFUSED}"
    return WriteResult(redriven=changed, refused=tuple(letter.refuse("write_rejected", message) for letter in rest))


def _split_by_token(
    on: RedriveStore, ready: Sequence[Redrivable], token: str, *, is_any_refused: bool
) -> tuple[list[Redrivable], list[Refused]]:
    """Return the dead letters that bear our *token*, and refusals of the other open ones."""
    tokens = redrive_writes.find_open_tokens(on.dead, [candidate.letter.raw_id for candidate in ready])
    ours = [candidate for candidate in ready if tokens.get(candidate.letter.key) == token]
    letters = [candidate.letter for candidate in ready]
    not_ours = [letter for letter in letters if letter.key in tokens and tokens[letter.key] != token]
    return ours, [
        letter.refuse("write_rejected", _CHANGE_REFUSED)
        if is_any_refused and tokens[letter.key] == letter.token
        else refuse_in_progress(letter.id)
        for letter in not_ours
    ]


def _insert_tasks(on: RedriveStore, ours: Sequence[Redrivable], left: timedelta) -> Mapping[int, Refused]:
    """Insert the tasks. Return the refusals, by index."""
    if not ours:
        return {}
    usual = on.tasks.database.client.options.timeout
    seconds = left.total_seconds()
    with limit_time(seconds if usual is None else min(seconds, usual)):
        codes = redrive_writes.insert(on.tasks, [candidate.document for candidate in ours])
    taken = {index: ours[index] for index, code in codes.items() if code == DUPLICATE_KEY_CODE}
    refused = {
        index: ours[index].letter.refuse("malformed", f"MongoDB refuses its task (code {code})")
        for index, code in codes.items()
        if index not in taken
    }
    return refused | _check_conflicts(on, taken)


def _check_conflicts(on: RedriveStore, taken: Mapping[int, Redrivable]) -> dict[int, Refused]:
    """Return the refusals of candidates whose id or key another task has; without tasks that we inserted ourselves."""
    if not taken:
        return {}
    around = LiveState(registered=None)
    candidates = taken.values()
    around.look(on, [candidate.letter for candidate in candidates], [candidate.document for candidate in candidates])
    return {
        index: candidate.letter.refuse("conflict", _describe_conflict(candidate, around))
        for index, candidate in taken.items()
        if not around.is_there(candidate.task, of=candidate.letter)
    }


def _describe_conflict(candidate: Redrivable, around: LiveState) -> str:
    return around.conflict(candidate.task, of=candidate.letter) or "another task took its id or key"


MAX_SCHEDULE_SEC: Final = MAX_DELAY_SEC
"""Maximum delay of a task after the start of a redrive; the same as for a new task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RateSchedule:
    """Schedule of due times: *per_sec* tasks each second from *start* on, *placed* of them so far."""

    per_sec: float | None
    start: datetime
    placed: int = 0

    @property
    def is_full(self) -> bool:
        """``True`` if the next task would be due more than `MAX_SCHEDULE_SEC` after the start."""
        return self.per_sec is not None and self.placed > self.per_sec * MAX_SCHEDULE_SEC

    def is_possible(self, *, now: datetime) -> bool:
        """Return whether the schedule can exist at *now*."""
        return self.placed >= 0 and abs(now - self.start) <= timedelta(seconds=MAX_DELAY_SEC)

    def due_at(self, *, now: datetime) -> datetime | None:
        """Return the due time of the next task; ``None`` means at once."""
        return at if (at := self._at()) > now else None

    def further(self, *, now: datetime) -> RateSchedule:
        """Return the schedule with one more task. A late schedule starts again at *now*, to avoid a burst of tasks."""
        return replace(self, placed=self.placed + 1) if self._at() >= now else replace(self, start=now, placed=1)

    def _at(self) -> datetime:
        after = timedelta(0) if self.per_sec is None else timedelta(seconds=self.placed / self.per_sec)
        return truncate_to_ms(self.start + after)


@dataclass(slots=True, kw_only=True)
class RedriveCounts:
    """Counts of a redrive so far."""

    examined: int = 0
    redriven: int = 0
    refused: Counter[RefusalCode] = field(default_factory=Counter)
    unregistered: Counter[str] = field(default_factory=Counter)
    examples: list[Refused] = field(default_factory=list)

    def refuse(self, refusals: Iterable[Refused]) -> None:
        """Count dead letters that stay as they are."""
        for refusal in refusals:
            self.refused[refusal.code] += 1
            if refusal.name is not None:
                self.unregistered[refusal.name] += 1
            if len(self.examples) < MAX_EXAMPLES:
                self.examples.append(refusal)

    def result(self, *, cursor: str | None) -> RedriveResult:
        """Return the counts, with the *cursor* of the next call."""
        return RedriveResult(
            examined=self.examined,
            redriven=self.redriven,
            refused=dict(self.refused),
            unregistered=dict(self.unregistered),
            examples=tuple(self.examples),
            next=cursor,
        )
