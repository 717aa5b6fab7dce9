"""A dead letter as a redrive looks at it first: without the task that is in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import accumulate, takewhile
from typing import Any, Final

import bson
from bson.raw_bson import RawBSONDocument
from bson.regex import Regex

from tidemill.dead_letters import portions
from tidemill.dead_letters.redriving import life_of
from tidemill.dead_letters.values import MAX_REDRIVES, LetterId, date_in, id_bytes, id_of
from tidemill.documents import decode, opened
from tidemill.model import TaskId

UNDER_WAY: Final = timedelta(seconds=60)
"""Nobody is at a redrive any more that was begun longer ago, or that is to begin later: it was cut short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What is to be known of a letter before the rest of it is read.

    Attributes:
        raw_id: Its id with the bytes that it has.
        task: The id of its task with the bytes that it has.
        life: Which life of its task ended there; no other is this one come back.
        is_begun: Whether a redrive of it was begun.
        started_at: When that was, as far as it says so, and by which *token*.
        due_at: When the task is to be due then.
        drops_expiry: Whether it was to have no ``expires_at`` then.
        size: Bytes of the whole letter.
    """

    raw: RawBSONDocument
    raw_id: Any
    id: LetterId
    task: TaskId
    life: bytes
    is_begun: bool
    started_at: datetime | None
    token: object
    due_at: datetime | None
    drops_expiry: bool
    size: int

    @property
    def key(self) -> bytes:
        """What the letter is looked up by."""
        return id_bytes(self.raw_id)

    @property
    def task_key(self) -> bytes:
        """What its task is looked up by."""
        return id_bytes(self.task)

    def is_under_way(self, *, now: datetime) -> bool:
        """Tell whether somebody may be about to redrive it."""
        return self.started_at is not None and abs(now - self.started_at) < UNDER_WAY

    def can_go_back(self) -> bool:
        """Tell whether a task can have this id, to the byte, and come back once more."""
        if isinstance(self.task, Regex | list) or not 0 <= self.id.redrives < MAX_REDRIVES:
            return False
        return self.task is self.raw_id or bson.encode({"task": self.task})[4:-1] in bytes(self.raw_id.raw)


def seen(raw: RawBSONDocument) -> Seen:
    """Return what *raw* tells, which was read as `redriving.SHOWN`."""
    fields, letter = opened(raw), decode(raw)
    raw_id, letter_id = fields["_id"], id_of(letter["_id"])
    is_ours = letter_id.task is not letter["_id"]
    return Seen(
        raw=raw,
        raw_id=raw_id,
        id=letter_id,
        task=opened(raw_id)["task"] if is_ours else raw_id,
        life=life_of(raw),
        is_begun=letter.get("redrive_started_at") is not None,
        started_at=date_in(letter.get("redrive_started_at")),
        token=letter.get("redrive_token"),
        due_at=date_in(letter.get("redrive_due_at")),
        drops_expiry=letter.get("redrive_drops_expiry") is True,
        size=int(letter["size"]),
    )


def portion(letters: Sequence[Seen]) -> Sequence[Seen]:
    """Return the first of *letters*, as many as may be held at once."""
    sizes = accumulate(one.size for one in letters)
    fitting = sum(1 for _ in takewhile(lambda size: size <= portions.MAX_BYTES, sizes))
    return letters[: max(fitting, 1)]
