"""The way back from the dead letters, whole, cut short and completed, by DESIGN 9: pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from unittest.mock import ANY

from tools.chaos.model.dying import REDRIVE_MARKS, closed
from tools.chaos.model.living import holder
from tools.chaos.model.world import Document, LetterKey, World, changed, scheduled, wrong

UNDER_WAY: Final = timedelta(seconds=60)
"""Before and after that, nobody is at a redrive any more."""

FORGOTTEN_AFTER: Final = timedelta(days=7)

_GONE: Final = (
    "dead_lettered_at", "fingerprint", "archived_at", "export_attempts", "export_error", "export_retry_at",
    *REDRIVE_MARKS, "redriven_at", "retain_from", "reason", "lease", "settled_by", "cancel_requested_at",
    "released_key", "archive_attempts", "archive_error", "archive_retry_at",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Fates:
    """What becomes of letters that are to go back: their tasks are to be inserted, are there, or cannot be."""

    ready: Mapping[LetterKey, Document]
    back: Sequence[LetterKey]
    unfit: Sequence[LetterKey]


def redrives(
    world: World, keys: Sequence[LetterKey], *, names: frozenset[str], drop_expiry: bool, limit: int, now: datetime
) -> Iterator[World]:
    """Yield the world as it is between the steps of a redrive of letters, in order, up to *limit*; and at the end."""
    drops = dict.fromkeys(keys, drop_expiry)
    fates = judged(world, keys, names=names, drops=drops, due={}, now=now, limit=limit)
    yield from _carried(world, fates, drops=drops, now=now)


def completions(world: World, *, now: datetime) -> Iterator[World]:
    """Yield the world between the steps of the completion of all redrives that were cut short, and at the end."""
    begun = sorted(
        (key for key, one in world.letters.items() if _is_cut_short(one, now=now)),
        key=lambda key: (world.letters[key]["redrive_drops_expiry"], world.letters[key]["redrive_started_at"]),
    )
    due = {key: world.letters[key]["redrive_due_at"] for key in begun}
    drops = {key: world.letters[key]["redrive_drops_expiry"] for key in begun}
    fates = judged(world, begun, names=None, drops=drops, due=due, now=now)
    late = [key for key in fates.ready if abs(now - world.letters[key]["redrive_started_at"]) > FORGOTTEN_AFTER]
    for key in (*fates.unfit, *late):
        world = world.with_letter(key, changed(world.letters[key], gone=REDRIVE_MARKS))
    yield world
    ready = {key: one for key, one in fates.ready.items() if key not in late}
    yield from _carried(world, Fates(ready=ready, back=fates.back, unfit=()), drops=drops, now=now)


def is_under_way(letter: Document, *, now: datetime) -> bool:
    """Tell whether somebody may be at its redrive."""
    started = letter.get("redrive_started_at")
    return started is not None and abs(now - started) < UNDER_WAY


def _is_cut_short(letter: Document, *, now: datetime) -> bool:
    is_begun = "redriven_at" not in letter and letter.get("redrive_started_at") is not None
    return is_begun and not is_under_way(letter, now=now)


def judged(
    world: World,
    keys: Sequence[LetterKey],
    *,
    names: frozenset[str] | None,
    drops: Mapping[LetterKey, bool],
    due: Mapping[LetterKey, datetime],
    now: datetime,
    limit: int = 1_000,
) -> Fates:
    """Decide about letters one after the other; those before count as back, also for the ids and keys they take."""
    ready: dict[LetterKey, Document] = {}
    back: list[LetterKey] = []
    unfit: list[LetterKey] = []
    expected = world
    for key in keys:
        if len(ready) + len(back) == limit:
            break
        letter = world.letters[key]
        if "redrive_started_at" in letter and _has_come_back(expected, key):
            back.append(key)
            continue
        at = due[key] if key in due and due[key] > now else None
        task = _revived(letter, key, at=at, drop_expiry=drops[key], now=now)
        if _may_go(expected, task, names=names):
            ready[key] = task
            expected = expected.with_task(key[0], task)
        else:
            unfit.append(key)
    return Fates(ready=ready, back=back, unfit=unfit)


def _has_come_back(world: World, key: LetterKey) -> bool:
    born = world.letters[key].get("created_at")
    task = world.tasks.get(key[0])
    is_alive = task is not None and task.get("created_at") == born and (task.get("redrives") or 0) > key[1]
    later = [one for other, one in world.letters.items() if other[0] == key[0] and other[1] > key[1]]
    return is_alive or any(one.get("created_at") == born for one in later)


def _revived(letter: Document, key: LetterKey, *, at: datetime | None, drop_expiry: bool, now: datetime) -> Document:
    anew = {
        "_id": key[0], "status": "pending", "lane": "fresh", **scheduled(at, now=now), "attempts": 0,
        "updated_at": now, "finished_at": None, "error": None, "attempt_log": [], "redrives": key[1] + 1,
        "result": None,
    }  # fmt: skip
    return changed(letter, gone=_GONE, **anew, **({"expires_at": None} if drop_expiry else {}))


def _may_go(world: World, task: Document, *, names: frozenset[str] | None) -> bool:
    if wrong(task) is not None or (names is not None and task["name"] not in names):
        return False
    until = task.get("expires_at")
    if isinstance(until, datetime) and until <= task["due_at"]:
        return False
    idempotency_key = task.get("idempotency_key")
    is_key_taken = idempotency_key is not None and holder(world, idempotency_key) is not None
    return task["_id"] not in world.tasks and not is_key_taken


def _carried(world: World, fates: Fates, *, drops: Mapping[LetterKey, bool], now: datetime) -> Iterator[World]:
    for key in fates.back:
        world = world.with_letter(key, closed(world.letters[key], now=now))
    yield world
    for key, task in fates.ready.items():
        marks: dict[str, Any] = {"redrive_started_at": now, "redrive_due_at": task["due_at"], "redrive_token": ANY}
        world = world.with_letter(key, changed(world.letters[key], **marks, redrive_drops_expiry=drops[key]))
    yield world
    for key, task in fates.ready.items():
        world = world.with_task(key[0], task)
    yield world
    for key in fates.ready:
        world = world.with_letter(key, closed(world.letters[key], now=now))
    yield world
