"""Checks of a redrive: which dead letters may be redriven, and what prevents the others.

Also the values of a redrive: its request, its context, its candidates and its result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import accumulate, takewhile
from typing import Any, Final, Literal, TypeAlias

from bson.raw_bson import RawBSONDocument
from bson.regex import Regex

from tidemill.clock import Clock
from tidemill.dead_letters import redrive_writes
from tidemill.dead_letters.documents import (
    MAX_DOCUMENT_BYTES,
    MAX_REDRIVES,
    DeadLetterId,
    decode_id,
    read_date,
    replace_id,
)
from tidemill.dead_letters.queries import DeadLetterFilter
from tidemill.dead_letters.redrive_writes import ExistingTask, Mark, read_life
from tidemill.documents import decode, decode_shallow, encode_fields, id_key, is_text, read_task, schedule
from tidemill.model import Malformed, Task, TaskId
from tidemill.policy.failures import truncate_text
from tidemill.store.connection import Tasks
from tidemill.store.paging import MAX_BATCH_BYTES
from tidemill.store.tasks import format_id

INTERRUPTED_AFTER: Final = timedelta(seconds=60)
"""Time after which a redrive counts as interrupted. It applies to starts in the past and in the future."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Dead letter before its body is read.

    Attributes:
        raw_id: Its id, with the original bytes.
        task: The id of its task, with the original bytes.
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
    id: DeadLetterId
    task: TaskId
    life: bytes
    is_started: bool
    started_at: datetime | None
    token: object
    due_at: datetime | None
    drops_expiry: bool
    size: int

    def refuse(self, code: RefusalCode, message: str) -> Refused:
        """Return the refusal of this dead letter."""
        return Refused(id=self.id, code=code, message=message)

    @property
    def key(self) -> bytes:
        """Lookup key of the dead letter."""
        return id_key(self.raw_id)

    @property
    def task_key(self) -> bytes:
        """Lookup key of its task."""
        return id_key(self.task)

    def is_in_progress(self, *, now: datetime) -> bool:
        """Return whether another redrive of it may be in progress."""
        return self.started_at is not None and abs(now - self.started_at) < INTERRUPTED_AFTER

    def can_be_redriven(self) -> bool:
        """Return whether a task can have this id, to the byte, and be redriven once more."""
        if isinstance(self.task, Regex | list) or not 0 <= self.id.redrives < MAX_REDRIVES:
            return False
        return self.id.is_bare or encode_fields({"task": self.task}) in bytes(self.raw_id.raw)


def read_candidate(raw: RawBSONDocument) -> Candidate:
    """Return the dead letter that *raw* holds, which was read with `redrive_writes.CANDIDATE_PROJECTION`."""
    fields, letter = decode_shallow(raw), decode(raw)
    raw_id, letter_id = fields["_id"], decode_id(letter["_id"])
    is_ours = not letter_id.is_bare
    return Candidate(
        raw=raw,
        raw_id=raw_id,
        id=letter_id,
        task=decode_shallow(raw_id)["task"] if is_ours else raw_id,
        life=read_life(raw),
        is_started=letter.get("redrive_started_at") is not None,
        started_at=read_date(letter.get("redrive_started_at")),
        token=letter.get("redrive_token"),
        due_at=read_date(letter.get("redrive_due_at")),
        drops_expiry=letter.get("redrive_drops_expiry") is True,
        size=int(letter["size"]),
    )


def take_batch(letters: Sequence[Candidate]) -> Sequence[Candidate]:
    """Return the first of *letters*, as many as may be held in memory at once."""
    sizes = accumulate(letter.size for letter in letters)
    fitting = sum(1 for _ in takewhile(lambda size: size <= MAX_BATCH_BYTES, sizes))
    return letters[: max(fitting, 1)]


MAX_EXAMPLES: Final = 20

RefusalCode: TypeAlias = Literal[
    "unregistered", "malformed", "expired", "in_progress", "conflict", "too_far_ahead", "write_rejected"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RedriveStore:
    """Collections and clock of a redrive."""

    tasks: Tasks
    dead: Tasks
    clock: Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class RedriveContext(RedriveStore):
    """Context of a redrive; ``registered`` returns the names of all registered functions."""

    registered: Callable[[], frozenset[str]]


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
class Refused:
    """Dead letter that stays as it is, and the reason. *name* is the bounded name of an unregistered task."""

    id: DeadLetterId
    code: RefusalCode
    message: str
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RedriveResult:
    """Result of a redrive, or of a dry run.

    Attributes:
        refused: Number of refused dead letters, by the code of the reason.
        unregistered: Number of refused dead letters, by the name that is not registered.
        examples: At most `MAX_EXAMPLES` of the refused dead letters.
        next: Cursor for the next call; ``None`` after the last dead letter.
    """

    examined: int
    redriven: int
    refused: dict[RefusalCode, int]
    unregistered: dict[str, int]
    examples: tuple[Refused, ...]
    next: str | None


def refuse_in_progress(letter_id: DeadLetterId) -> Refused:
    """Return the refusal of a dead letter that another redrive may have in progress."""
    message = "its redrive is under way, or was cut short a moment ago: then the archive completes it"
    return Refused(id=letter_id, code="in_progress", message=message)


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveState:
    """Live state: tasks, keys and later failures that may prevent a redrive, at the time of the last read.

    Attributes:
        registered: Names of the functions; ``None`` if names are not checked.
        alive: Existing tasks, by id.
        holders: Tasks that have idempotency keys, by key.
        died: Ids and lives of tasks that failed again after their redrive was interrupted.
    """

    registered: frozenset[str] | None
    alive: dict[bytes, ExistingTask] = field(default_factory=dict)
    holders: dict[str, TaskId] = field(default_factory=dict)
    died: set[tuple[bytes, bytes]] = field(default_factory=set)

    def look(self, on: RedriveStore, letters: Sequence[Candidate], bodies: Iterable[RawBSONDocument]) -> None:
        """Read the state that concerns *letters*."""
        usable = [letter for letter in letters if letter.can_be_redriven()]
        interrupted = [(letter.task, letter.id.redrives) for letter in usable if letter.is_started]
        keys = [key for key in (decode_shallow(body).get("idempotency_key") for body in bodies) if is_text(key) and key]
        self.alive.update(redrive_writes.find_existing(on.tasks, [letter.task for letter in usable]))
        self.holders.update(redrive_writes.find_key_owners(on.tasks, keys))
        self.died.update(redrive_writes.find_later_failures(on.dead, interrupted))

    def expect(self, task: Task, *, of: Candidate) -> None:
        """Treat *task*, which comes from the dead letter *of*, as already inserted when checking later dead letters."""
        self.alive[of.task_key] = ExistingTask(id=task.id, life=of.life, redrives=task.redrives, status=task.status)
        if task.idempotency_key:
            self.holders[task.idempotency_key] = task.id

    def has_been_inserted(self, letter: Candidate) -> bool:
        """Return whether an interrupted redrive of *letter* had inserted its task."""
        task = self.alive.get(letter.task_key)
        is_alive = task is not None and task.life == letter.life and task.redrives > letter.id.redrives
        return letter.is_started and (is_alive or (letter.task_key, letter.life) in self.died)

    def is_there(self, task: Task, *, of: Candidate) -> bool:
        """Return whether *task*, which comes from the dead letter *of*, exists."""
        existing = self.alive.get(of.task_key)
        return existing is not None and (existing.life, existing.redrives) == (of.life, task.redrives)

    def conflict(self, task: Task, *, of: Candidate) -> str | None:
        """Return the reason that prevents the insert of *task*, which comes from the dead letter *of*, or ``None``."""
        existing = self.alive.get(of.task_key)
        if existing is not None:
            return f"task {format_id(existing.id)} is there: it is {existing.status}"
        if task.idempotency_key and task.idempotency_key in self.holders:
            return f"its idempotency key is held by task {format_id(self.holders[task.idempotency_key])}"
        return None


MAX_NAME_LENGTH: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Redrivable:
    """Dead letter that may be redriven as *task*; *document* is the task's document."""

    letter: Candidate
    task: Task
    document: RawBSONDocument
    drops_expiry: bool

    def mark(self) -> Mark:
        """Return the mark to write on the dead letter before the task is inserted."""
        letter, due_at = self.letter, self.task.due_at
        return Mark(id=letter.raw_id, due_at=due_at, drops_expiry=self.drops_expiry, former=letter.token)


@dataclass(frozen=True, slots=True, kw_only=True)
class AlreadyRedriven:
    """Dead letter whose task was inserted by a redrive that was interrupted afterwards."""

    letter: Candidate


Verdict: TypeAlias = Redrivable | AlreadyRedriven | Refused


def check_candidate(
    letter: Candidate,
    body: RawBSONDocument,
    around: LiveState,
    *,
    due_at: datetime | None,
    drops_expiry: bool,
    now: datetime,
) -> Verdict:
    """Decide whether *letter* may be redriven.

    *body* is the part that its task keeps. The task is due at *due_at*; ``None`` means at once.
    """
    if around.has_been_inserted(letter):
        return AlreadyRedriven(letter=letter)
    document = _build_document(letter, body, due_at=due_at, drops_expiry=drops_expiry, now=now)
    if isinstance(document, str):
        return letter.refuse("malformed", f"it could not run: {document}")
    task = read_task(document)
    if isinstance(task, Malformed):
        return letter.refuse("malformed", f"it could not run: {task.problem}")
    return _check_task(letter, task, around) or Redrivable(
        letter=letter, task=task, document=document, drops_expiry=drops_expiry
    )


def _check_task(letter: Candidate, task: Task, around: LiveState) -> Refused | None:
    if around.registered is not None and task.name not in around.registered:
        name = truncate_text(task.name, MAX_NAME_LENGTH)
        return Refused(id=letter.id, code="unregistered", message=f"no function is registered as {name!r}", name=name)
    if task.expires_at is not None and task.expires_at <= task.due_at:
        return letter.refuse("expired", "its expires_at is not after its start")
    conflict = around.conflict(task, of=letter)
    return None if conflict is None else letter.refuse("conflict", conflict)


def _build_document(
    letter: Candidate, body: RawBSONDocument, *, due_at: datetime | None, drops_expiry: bool, now: datetime
) -> RawBSONDocument | str:
    """Return the document of the task to insert, or the reason that prevents it."""
    if not letter.can_be_redriven():
        return "no task can have its id"
    ours = {
        "_id": letter.task,
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


Decide: TypeAlias = Callable[[Candidate, RawBSONDocument], Verdict]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """Dead letters that may be redriven, whose tasks exist already, and that are refused."""

    ready: list[Redrivable]
    back: list[Candidate]
    refused: list[tuple[Candidate, Refused]]


def check_candidates(
    on: RedriveStore, letters: Sequence[Candidate], around: LiveState, *, without: Iterable[str], decide: Decide
) -> CheckResult:
    """Check each of *letters* with its body by *decide*, in order. Dead letters that have disappeared are left out.

    Args:
        on: The collections.
        letters: Dead letters whose bodies may be held in memory at once.
        around: Live state. It learns the existing tasks, and then each task that is ready.
        without: Fields to leave out of the tasks.
        decide: Called after the live state is read.
    """
    bodies = redrive_writes.read_bodies(on.dead, [letter.raw_id for letter in letters], without=without)
    existing = [letter for letter in letters if letter.key in bodies]
    around.look(on, existing, bodies.values())
    checked = CheckResult(ready=[], back=[], refused=[])
    for letter in existing:
        match decide(letter, bodies[letter.key]):
            case Redrivable() as ready:
                around.expect(ready.task, of=letter)
                checked.ready.append(ready)
            case AlreadyRedriven():
                checked.back.append(letter)
            case Refused() as refused:
                checked.refused.append((letter, refused))
    return checked
