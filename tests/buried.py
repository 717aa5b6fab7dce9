"""Failed tasks and dead letters as tests want them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

import bson
from bson.raw_bson import RawBSONDocument

from tests.builders import document
from tidemill.dead_letters.documents import DeadLetterId, build_dead_letter, decode_id
from tidemill.documents import decode, decode_shallow
from tidemill.store.connection import Tasks

FINGERPRINT = "00000000000000aa"


def failed(now: datetime, **fields: Any) -> dict[str, Any]:
    """A task that failed for good at *now*, but for *fields*."""
    error = {"message": "the receiver answered 503", "code": "http_503", "at": now}
    line = {"attempt": 3, "status": "failed", "started_at": now, "duration_ms": 5, "note": "503"}
    ending = {"status": "failed", "reason": "exhausted", "finished_at": now, "error": error, "settled_by": "t"}
    return document(now, **ending | {"attempts": 3, "max_retries": 2, "attempt_log": [line]} | fields)


def letter(died_at: datetime, *, redrives: int = 0, **fields: Any) -> dict[str, Any]:
    """A dead letter of a task that failed, but for *fields*; its task's id is ``_id``."""
    marks = {"dead_lettered_at": died_at, "fingerprint": FINGERPRINT}
    made = failed(died_at, redrives=redrives) | marks | fields
    return made | {"_id": {"task": made["_id"], "redrives": redrives}}


def letters(died_at: datetime, ids: Iterable[Any], **fields: Any) -> list[dict[str, Any]]:
    """Dead letters of the tasks with these *ids*, of which each died a second after the one before."""
    return [letter(died_at + timedelta(seconds=n), _id=one, **fields) for n, one in enumerate(ids)]


def bury(dead: Tasks, letters: Iterable[dict[str, Any]]) -> list[Any]:
    """Insert *letters* as they are and return the ids of their tasks."""
    inserted = list(letters)
    dead.insert_many(inserted)
    return [one["_id"]["task"] for one in inserted]


def bury_tasks(dead: Tasks, tasks: Iterable[Mapping[str, Any]], *, at: datetime) -> list[DeadLetterId]:
    """Make dead letters of failed *tasks*, as the archive does, and return their ids."""
    made = [build_dead_letter(RawBSONDocument(bson.encode(one)), now=at) for one in tasks]
    dead.insert_many(made)
    return [decode_id(decode(one)["_id"]) for one in made]


def letter_bytes(dead: Tasks) -> dict[bytes, bytes]:
    """The bytes of every letter, by the bytes of its id."""
    return {bson.encode({"": decode_shallow(raw)["_id"]}): bytes(raw.raw) for raw in dead.find({})}
