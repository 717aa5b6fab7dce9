"""Whether a dead letter may go back, and as what: decided before anything is written."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeAlias

from bson.raw_bson import RawBSONDocument

from tidemill.classify import bounded
from tidemill.dead_letters.grafting import grafted
from tidemill.dead_letters.letters import MAX_DOCUMENT
from tidemill.dead_letters.redriving import Mark
from tidemill.documents import read, schedule
from tidemill.model import Malformed, Task
from tidemill.redrive.around import Around
from tidemill.redrive.seen import Seen
from tidemill.redrive.values import Code, Refused

MAX_NAME: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A letter that may go back as *task*, which *document* holds."""

    letter: Seen
    task: Task
    document: RawBSONDocument
    drops_expiry: bool

    def mark(self) -> Mark:
        """Return what is to be noted on the letter before the task is inserted."""
        letter, due_at = self.letter, self.task.due_at
        return Mark(id=letter.raw_id, due_at=due_at, drops_expiry=self.drops_expiry, former=letter.token)

    def refused(self, code: Code, message: str) -> Refused:
        """Return that it may not, after all."""
        return Refused(id=self.letter.id, code=code, message=message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Back:
    """A letter whose task came back in a redrive that was cut short after that."""

    letter: Seen


Verdict: TypeAlias = Ready | Back | Refused


def judge(
    letter: Seen,
    body: RawBSONDocument,
    around: Around,
    *,
    due_at: datetime | None,
    drops_expiry: bool,
    now: datetime,
) -> Verdict:
    """Decide about *letter*, whose *body* is what its task keeps; ``None`` for *due_at* is at once."""
    if around.has_come_back(letter):
        return Back(letter=letter)
    document = _document(letter, body, due_at=due_at, drops_expiry=drops_expiry, now=now)
    if isinstance(document, str):
        return _refused(letter, "malformed", f"it could not run: {document}")
    task = read(document)
    if isinstance(task, Malformed):
        return _refused(letter, "malformed", f"it could not run: {task.problem}")
    return _refusal(letter, task, around) or Ready(
        letter=letter, task=task, document=document, drops_expiry=drops_expiry
    )


def _refusal(letter: Seen, task: Task, around: Around) -> Refused | None:
    if around.registered is not None and task.name not in around.registered:
        name = bounded(task.name, MAX_NAME)
        return Refused(id=letter.id, code="unregistered", message=f"no function is registered as {name!r}", name=name)
    if task.expires_at is not None and task.expires_at <= task.due_at:
        return _refused(letter, "expired", "its expires_at is not after its start")
    conflict = around.conflict(task, of=letter)
    return None if conflict is None else _refused(letter, "conflict", conflict)


def _document(
    letter: Seen, body: RawBSONDocument, *, due_at: datetime | None, drops_expiry: bool, now: datetime
) -> RawBSONDocument | str:
    """Return the task as it is to be inserted, or what keeps it from being one."""
    if not letter.can_go_back():
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
        document = grafted(ours, bytes(body.raw), their_id={"_id": letter.raw_id})
    except ValueError:
        return "its id is none that can be written"
    return RawBSONDocument(document) if len(document) <= MAX_DOCUMENT else "there is no room in it"


def _refused(letter: Seen, code: Code, message: str) -> Refused:
    return Refused(id=letter.id, code=code, message=message)
