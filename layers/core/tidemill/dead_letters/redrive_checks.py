"""Checks of a redrive: which dead letters may be redriven, when their tasks are due, and what prevents the others.

Everything here is pure: the live state is read once a page by `redrive_writes`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import accumulate, takewhile
from typing import Any, Final, Literal, TypeAlias, assert_never

from bson.raw_bson import RawBSONDocument
from bson.regex import Regex

from tidemill.clock import truncate_to_ms
from tidemill.dead_letters.documents import (
    MAX_DOCUMENT_BYTES,
    MAX_REDRIVES,
    DeadLetterId,
    decode_id,
    read_date,
    replace_id,
)
from tidemill.documents import decode, decode_shallow, encode_fields, id_key, read_task, schedule
from tidemill.model import Malformed, Task, TaskId
from tidemill.policy.failures import truncate_text
from tidemill.requests.tasks import MAX_DELAY_SEC
from tidemill.store.paging import MAX_BATCH_BYTES
from tidemill.store.tasks import format_id

INTERRUPTED_AFTER: Final = timedelta(seconds=60)
"""Time after which a redrive counts as interrupted. It applies to starts in the past and in the future."""

MAX_NAME_LENGTH: Final = 100
MAX_SCHEDULE_SEC: Final = MAX_DELAY_SEC
"""Maximum delay of a task after the start of a redrive; the same as for a new task."""

RefusalCode: TypeAlias = Literal[
    "unregistered", "malformed", "expired", "in_progress", "conflict", "too_far_ahead", "write_rejected"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Dead letter before its body is read.

    Attributes:
        raw_id: Its id, with the original bytes; ``key`` is the lookup key.
        task_id: The id of its task, with the original bytes; ``task_key`` is the lookup key.
        life: The life of the task that ended, as `read_life` returns it.
        is_started: A redrive of it was started.
        started_at: The time of that start, if it is a time.
        token: The token of that redrive.
        due_at: The due time that the redrive chose for the task.
        drops_expiry: That redrive removes ``expires_at``.
        size: Bytes of the whole dead letter.
    """

    raw: RawBSONDocument
    raw_id: Any
    key: bytes
    id: DeadLetterId
    task_id: TaskId
    task_key: bytes
    life: bytes
    is_started: bool
    started_at: datetime | None
    token: object
    due_at: datetime | None
    drops_expiry: bool
    size: int

    def refuse(self, code: RefusalCode, message: str, *, name: str | None = None) -> Refused:
        """Return the refusal of this dead letter."""
        return Refused(letter=self, code=code, message=message, name=name)

    def refuse_in_progress(self) -> Refused:
        """Return the refusal of this dead letter while another redrive of it may be in progress."""
        message = "its redrive is under way, or was cut short a moment ago: then the archive completes it"
        return self.refuse("in_progress", message)

    def is_in_progress(self, *, now: datetime) -> bool:
        """Return whether another redrive of it may be in progress."""
        return self.started_at is not None and abs(now - self.started_at) < INTERRUPTED_AFTER

    def has_started_within(self, span: timedelta, *, now: datetime) -> bool:
        """Return whether the redrive started within *span* of *now*. The other clock may have been ahead by as much."""
        return self.started_at is not None and abs(now - self.started_at) <= span

    def can_be_redriven(self) -> bool:
        """Return whether a task can have this id, to the byte, and be redriven once more."""
        if isinstance(self.task_id, Regex | list) or not 0 <= self.id.redrives < MAX_REDRIVES:
            return False
        return self.id.is_bare or encode_fields({"task": self.task_id}) in bytes(self.raw_id.raw)


def read_candidate(raw: RawBSONDocument) -> Candidate:
    """Return the dead letter that *raw* holds, which was read with `redrive_writes.CANDIDATE_PROJECTION`."""
    raw_id, letter = decode_shallow(raw)["_id"], decode(raw)
    letter_id = decode_id(letter["_id"])
    task_id = raw_id if letter_id.is_bare else decode_shallow(raw_id)["task"]
    return Candidate(
        raw=raw,
        raw_id=raw_id,
        key=id_key(raw_id),
        id=letter_id,
        task_id=task_id,
        task_key=id_key(task_id),
        life=read_life(raw),
        is_started=letter.get("redrive_started_at") is not None,
        started_at=read_date(letter.get("redrive_started_at")),
        token=letter.get("redrive_token"),
        due_at=read_date(letter.get("redrive_due_at")),
        drops_expiry=letter.get("redrive_drops_expiry") is True,
        size=int(letter["size"]),
    )


def read_life(raw: RawBSONDocument) -> bytes:
    """Return the value that tells a life of a task from others under the same id.

    It is ``created_at``, which a redrive keeps.
    """
    return encode_fields({"created_at": decode_shallow(raw).get("created_at")})


def take_batch(letters: Sequence[Candidate]) -> Sequence[Candidate]:
    """Return the first of *letters*, as many as may be held in memory at once."""
    sizes = accumulate(letter.size for letter in letters)
    fitting = sum(1 for _ in takewhile(lambda size: size <= MAX_BATCH_BYTES, sizes))
    return letters[: max(fitting, 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Redrivable:
    """Dead letter that may be redriven as *task*; *document* is the task's document."""

    letter: Candidate
    task: Task
    document: RawBSONDocument
    drops_expiry: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AlreadyRedriven:
    """Dead letter whose task was inserted by a redrive that was interrupted afterwards."""

    letter: Candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Dead letter that stays as it is, and the reason. *name* is the bounded name of an unregistered task."""

    letter: Candidate
    code: RefusalCode
    message: str
    name: str | None = None

    @property
    def id(self) -> DeadLetterId:
        """Id of the dead letter."""
        return self.letter.id

    @property
    def redrives(self) -> int:
        """Number of redrives before the failure."""
        return self.letter.id.redrives


@dataclass(frozen=True, slots=True, kw_only=True)
class ExistingTask:
    """Task that exists in ``tasks``; *life* is the value of `read_life`."""

    id: TaskId
    life: bytes
    redrives: int
    status: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveState:
    """Tasks, keys and later failures that may prevent a redrive, at the time of the last read.

    Attributes:
        registered: Names of the functions; ``None`` if names are not checked.
        tasks: Existing tasks, by id.
        key_owners: Tasks that have idempotency keys, by key.
        later_failures: Ids and lives of tasks that failed again after their redrive was interrupted.
    """

    registered: frozenset[str] | None = None
    tasks: Mapping[bytes, ExistingTask] = field(default_factory=dict)
    key_owners: Mapping[str, TaskId] = field(default_factory=dict)
    later_failures: frozenset[tuple[bytes, bytes]] = frozenset()

    def with_inserted(self, redrivable: Redrivable) -> LiveState:
        """Return the state for the checks of later dead letters, in which the task of *redrivable* exists."""
        letter, task = redrivable.letter, redrivable.task
        inserted = ExistingTask(id=task.id, life=letter.life, redrives=task.redrives, status=task.status)
        owners = {task.idempotency_key: task.id} if task.idempotency_key else {}
        return replace(self, tasks={**self.tasks, letter.task_key: inserted}, key_owners={**self.key_owners, **owners})

    def has_later_life(self, letter: Candidate) -> bool:
        """Return whether the task of *letter* exists with more redrives, or failed again with more."""
        task = self.tasks.get(letter.task_key)
        is_alive = task is not None and task.life == letter.life and task.redrives > letter.id.redrives
        return is_alive or (letter.task_key, letter.life) in self.later_failures

    def has_task(self, redrivable: Redrivable) -> bool:
        """Return whether the task of *redrivable* exists."""
        existing = self.tasks.get(redrivable.letter.task_key)
        wanted = (redrivable.letter.life, redrivable.task.redrives)
        return existing is not None and (existing.life, existing.redrives) == wanted

    def describe_conflict(self, letter: Candidate, task: Task) -> str | None:
        """Return the reason that prevents the insert of *task*, which comes from *letter*, or ``None``."""
        existing = self.tasks.get(letter.task_key)
        if existing is not None:
            return f"task {format_id(existing.id)} is there: it is {existing.status}"
        if task.idempotency_key and task.idempotency_key in self.key_owners:
            return f"its idempotency key is held by task {format_id(self.key_owners[task.idempotency_key])}"
        return None


def check(
    letter: Candidate,
    body: RawBSONDocument,
    live: LiveState,
    *,
    due_at: datetime | None,
    drops_expiry: bool,
    now: datetime,
) -> Redrivable | AlreadyRedriven | Refused:
    """Decide whether *letter* may be redriven.

    *body* is the part that its task keeps. The task is due at *due_at*; ``None`` means at once.
    """
    if letter.is_started and live.has_later_life(letter):
        return AlreadyRedriven(letter=letter)
    document = _build_document(letter, body, due_at=due_at, drops_expiry=drops_expiry, now=now)
    if isinstance(document, str):
        return letter.refuse("malformed", f"it could not run: {document}")
    task = read_task(document)
    if isinstance(task, Malformed):
        return letter.refuse("malformed", f"it could not run: {task.problem}")
    if live.registered is not None and task.name not in live.registered:
        name = truncate_text(task.name, MAX_NAME_LENGTH)
        return letter.refuse("unregistered", f"no function is registered as {name!r}", name=name)
    if task.expires_at is not None and task.expires_at <= task.due_at:
        return letter.refuse("expired", "its expires_at is not after its start")
    if (conflict := live.describe_conflict(letter, task)) is not None:
        return letter.refuse("conflict", conflict)
    return Redrivable(letter=letter, task=task, document=document, drops_expiry=drops_expiry)


def _build_document(
    letter: Candidate, body: RawBSONDocument, *, due_at: datetime | None, drops_expiry: bool, now: datetime
) -> RawBSONDocument | str:
    """Return the document of the task to insert, or the reason that prevents it."""
    if not letter.can_be_redriven():
        return "no task can have its id"
    ours = {
        "_id": letter.task_id,
        "status": "pending",
        "lane": "fresh",
        **schedule(due_at, now=now),
        "attempts": 0,
        "updated_at": now,
        "finished_at": None,
        "error": None,
        "attempt_log": [],
        "redrives": letter.id.redrives + 1,
        "result": None,
    } | ({"expires_at": None} if drops_expiry else {})
    try:
        document = replace_id(ours, body)
    except ValueError:
        return "its id cannot be written"
    return document if len(document.raw) <= MAX_DOCUMENT_BYTES else "its document would be too large"


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
        return at if not self.is_full and (at := self._at()) > now else None

    def further(self, *, now: datetime) -> RateSchedule:
        """Return the schedule with one more task. A late schedule starts again at *now*, to avoid a burst of tasks."""
        return replace(self, placed=self.placed + 1) if self._at() >= now else replace(self, start=now, placed=1)

    def _at(self) -> datetime:
        after = timedelta(0) if self.per_sec is None else timedelta(seconds=self.placed / self.per_sec)
        return truncate_to_ms(self.start + after)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """Dead letters that may be redriven, that are redriven already, and that are refused.

    *live* and *schedule* hold after the tasks of all redrivable ones are inserted.
    """

    redrivable: Sequence[Redrivable]
    already_redriven: Sequence[Candidate]
    refused: Sequence[Refused]
    live: LiveState
    schedule: RateSchedule | None


def check_letters(
    letters: Sequence[Candidate],
    bodies: Mapping[bytes, RawBSONDocument],
    live: LiveState,
    *,
    schedule: RateSchedule | None,
    drops_expiry: bool,
    now: datetime,
) -> CheckResult:
    """Check *letters*, each with its body by its key, in order.

    Without *schedule* a task is due when the interrupted redrive of its dead letter chose, if that is after *now*.
    """
    redrivable, already_redriven, refused = list[Redrivable](), list[Candidate](), list[Refused]()
    for letter in letters:
        chosen = schedule.due_at(now=now) if schedule else letter.due_at
        due_at = chosen if chosen is not None and chosen > now else None
        match check(letter, bodies[letter.key], live, due_at=due_at, drops_expiry=drops_expiry, now=now):
            case Redrivable() if schedule is not None and schedule.is_full:
                refused.append(letter.refuse("too_far_ahead", "at this rate its turn would be more than a year away"))
            case Redrivable() as ready:
                redrivable.append(ready)
                live = live.with_inserted(ready)
                schedule = schedule and schedule.further(now=now)
            case AlreadyRedriven():
                already_redriven.append(letter)
            case Refused() as refusal:
                refused.append(refusal)
            case verdict:
                assert_never(verdict)
    return CheckResult(
        redrivable=redrivable, already_redriven=already_redriven, refused=refused, live=live, schedule=schedule
    )
