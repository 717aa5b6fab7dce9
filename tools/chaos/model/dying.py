"""From the failed tasks to the dead letters, the bucket and nowhere, by DESIGN 4 and 9: pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any, Final
from unittest.mock import ANY

from tools.chaos.model.world import Document, LetterKey, World, changed, is_unadopted_failure

FIRST_WAIT: Final = timedelta(minutes=10)
LONGEST_WAIT: Final = timedelta(days=1)
"""When an object that was refused is tried again: each time twice as long after, up to a day."""

REDRIVE_MARKS: Final = ("redrive_started_at", "redrive_due_at", "redrive_token", "redrive_drops_expiry")
_TRIES: Final = ("export_attempts", "export_error", "export_retry_at")
_MARKS: Final = (
    "dead_lettered_at", "fingerprint", "archived_at", *_TRIES, *REDRIVE_MARKS, "redriven_at", "retain_from",
    "archive_attempts", "archive_error", "archive_retry_at",
)  # fmt: skip


def moves(world: World, *, now: datetime) -> Iterator[World]:
    """Yield the world as it is between the steps of a move of all that has failed, and at the end."""
    failed = [one for one in world.tasks.values() if one.get("status") == "failed" and not is_unadopted_failure(one)]
    keys = {one["_id"]: _key(world, one) for one in failed}
    for document in failed:
        world = _closed_earlier(world, document, now=now)
    yield world
    for document in failed:
        if keys[document["_id"]] not in world.letters:
            world = world.with_letter(keys[document["_id"]], letter(document, keys[document["_id"]], now=now))
    yield world
    for document in failed:
        world = world.without_task(document["_id"])
    yield world


def letter(document: Document, key: LetterKey, *, now: datetime) -> Document:
    """Return the dead letter of a failed task."""
    own = changed(document, gone=_MARKS)
    marks = {"_id": {"task": key[0], "redrives": key[1]}, "dead_lettered_at": now, "fingerprint": ANY}
    return {"reason": "not_retryable", **own, **marks}


def letters_of(world: World, task_id: Any) -> list[LetterKey]:
    """Return the letters of a task, the first death first."""
    return sorted(key for key in world.letters if key[0] == task_id)


def _key(world: World, document: Document) -> LetterKey:
    """Return the key of a failed task's letter: another one where that of its number is of another life."""
    key = document["_id"], _redrives(document)
    if key not in world.letters:
        return key
    others = letters_of(world, document["_id"])
    same = [one for one in others if _is_same(world.letters[one], document)]
    return same[0] if same else (document["_id"], others[-1][1] + 1)


def _is_same(letter: Document, document: Document) -> bool:
    """Tell whether *letter* is of the very death of *document*, not of one in the same instant before it came back."""
    is_open = "redriven_at" not in letter
    is_same_attempt = letter.get("settled_by") == document.get("settled_by")
    is_same_life = is_same_attempt and _life(letter) == _life(document)
    return is_same_life and (is_open or _redrives(letter) == _redrives(document))


def _redrives(document: Document) -> int:
    redrives = document.get("redrives")
    return redrives if isinstance(redrives, int) and redrives >= 0 else 0


def _life(document: Document) -> tuple[Any, ...]:
    times = document.get("created_at"), document.get("finished_at")
    return times if any(times) else (document.get("payload"),)


def _closed_earlier(world: World, document: Document, *, now: datetime) -> World:
    """Close the letter out of which a task had come back whose redrive was cut short."""
    key = document["_id"], _redrives(document) - 1
    earlier = world.letters.get(key, {})
    is_open = "redrive_started_at" in earlier and "redriven_at" not in earlier
    if not is_open or earlier.get("created_at") != document.get("created_at"):
        return world
    return world.with_letter(key, closed(earlier, now=now))


def closed(document: Document, *, now: datetime) -> Document:
    """Return a letter whose task is back."""
    return changed(document, gone=REDRIVE_MARKS, redriven_at=now)


def unexported(world: World, *, now: datetime) -> list[LetterKey]:
    """Return the letters that are to be exported now."""
    return [
        key
        for key, one in world.letters.items()
        if one.get("archived_at") is None and not (one.get("export_retry_at") or now) > now
    ]


def exported(world: World, keys: Iterable[LetterKey], *, now: datetime) -> World:
    """Return the world in which these letters are in the bucket."""
    for key in keys:
        archived = changed(world.letters[key], gone=_TRIES, archived_at=now, retain_from=now)
        world = world.with_letter(key, archived)
    return world


def refused(world: World, keys: Iterable[LetterKey], *, why: str, now: datetime) -> World:
    """Return the world in which the bucket did not take these letters."""
    for key in keys:
        before = world.letters[key].get("export_attempts", 0)
        wait = min(FIRST_WAIT * 2**before, LONGEST_WAIT)
        noted = {"export_attempts": before + 1, "export_error": why, "export_retry_at": now + wait}
        world = world.with_letter(key, changed(world.letters[key], **noted))
    return world


def purged(world: World, keys: Iterable[LetterKey]) -> World:
    """Return the world without these letters, but for those that are on their way back."""
    return world.without_letters(key for key in keys if "redrive_started_at" not in world.letters.get(key, {}))
