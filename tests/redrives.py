"""Dead letters as tests want them, and redrives of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import bson
from bson.raw_bson import RawBSONDocument

from tests.builders import document
from tests.conftest import ManualClock
from tidemill.dead_letters.letters import dead_letter
from tidemill.dead_letters.values import LetterId, id_of
from tidemill.dead_letters.which import Which
from tidemill.documents import decode, opened
from tidemill.redrive import Plan, Redriven, Redriver, redrive
from tidemill.store import Tasks

EVER = 1e12


def failed(now: datetime, **fields: Any) -> dict[str, Any]:
    """A task that failed for good at *now*, but for *fields*."""
    error = {"message": "boom", "code": "ValueError", "at": now}
    log = [{"attempt": 0, "status": "failed", "started_at": now, "duration_ms": 5, "note": "boom"}]
    return document(
        now,
        **{"status": "failed", "reason": "exhausted", "attempts": 3, "error": error, "attempt_log": log}
        | {"finished_at": now, "settled_by": "t"}
        | fields,
    )


def bury(dead: Tasks, tasks: Iterable[Mapping[str, Any]], *, at: datetime) -> list[LetterId]:
    """Make dead letters of failed *tasks* and return their ids."""
    letters = [dead_letter(RawBSONDocument(bson.encode(one)), now=at) for one in tasks]
    dead.insert_many(letters)
    return [id_of(decode(one)["_id"]) for one in letters]


def all_of(collection: Tasks) -> list[dict[str, Any]]:
    """The documents in the order of their ids, decoded."""
    return [decode(raw) for raw in collection.find({}).sort("_id")]


def letter_bytes(dead: Tasks) -> dict[bytes, bytes]:
    """The bytes of every letter, by the bytes of its id."""
    return {bson.encode({"": opened(raw)["_id"]}): bytes(raw.raw) for raw in dead.find({})}


def redriver(tasks: Tasks, dead: Tasks, clock: ManualClock, *names: str) -> Redriver:
    """What redrives with these functions registered, or with ``noop``."""
    return Redriver(tasks=tasks, dead=dead, registered=lambda: frozenset(names or ("noop",)), clock=clock)


def redrive_all(on: Redriver, which: Which | None = None, *, limit: int = 10_000, **options: Any) -> Redriven:
    """A redrive of all that is meant, in one call; *options* are of the plan."""
    return redrive(on, Plan(which=which or Which(), **options), limit=limit, dry_run=False, until=EVER)
