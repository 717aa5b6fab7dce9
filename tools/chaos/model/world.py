"""The collections as a value: what is believed to be stored, document by document, without MongoDB."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, TypeAlias
from unittest.mock import ANY

from tidemill.model import LANES, Lane

Document: TypeAlias = Mapping[str, Any]
LetterKey: TypeAlias = tuple[Any, int]
"""The id of a task, and how often it had been redriven when it died."""

LOG_LINES: Final = 20
LARGEST_COUNT: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class StartsWith:
    """Equals any text that starts so."""

    beginning: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and other.startswith(self.beginning)

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """All tasks by id, and all dead letters. What cannot be known is ``ANY``."""

    tasks: Mapping[Any, Document] = field(default_factory=dict)
    letters: Mapping[LetterKey, Document] = field(default_factory=dict)

    def with_task(self, task_id: Any, document: Document) -> World:
        """Return the world with *document* in the place of the task, or as a new one."""
        return replace(self, tasks={**self.tasks, task_id: document})

    def without_task(self, task_id: Any) -> World:
        """Return the world in which there is no such task."""
        return replace(self, tasks={one: it for one, it in self.tasks.items() if one != task_id})

    def with_letter(self, key: LetterKey, document: Document) -> World:
        """Return the world with *document* in the place of the letter, or as a new one."""
        return replace(self, letters={**self.letters, key: document})

    def without_letters(self, keys: Iterable[LetterKey]) -> World:
        """Return the world in which there are no such letters."""
        gone = set(keys)
        return replace(self, letters={one: it for one, it in self.letters.items() if one not in gone})

    def each_task(self, ids: Iterable[Any], change: Callable[[Document], Document]) -> World:
        """Return the world in which these tasks have changed."""
        return replace(self, tasks={**self.tasks, **{one: change(self.tasks[one]) for one in ids}})


def changed(document: Document, *, gone: Iterable[str] = (), **fields: Any) -> Document:
    """Return *document* with other *fields*, and without those that are *gone*."""
    left_out = set(gone)
    return {name: value for name, value in {**document, **fields}.items() if name not in left_out}


def scheduled(at: datetime | None, *, now: datetime) -> dict[str, datetime | None]:
    """Return the two fields that say when a pending task is due, in the whole milliseconds that are stored."""
    if at is not None:
        at = at.replace(microsecond=at.microsecond // 1000 * 1000)
    return {"due_at": at or now, "next_retry_at": at}


def error(code: str, *, now: datetime, message: Any = ANY) -> dict[str, Any]:
    """Return what is stored of a failure; of its words nothing is known, unless they are given."""
    return {"message": message, "code": code, "at": now}


def logged(document: Document, status: str, *, note: Any = ANY) -> list[Any]:
    """Return the execution log with one more line: the first and the newest are kept."""
    line = (
        {"attempt": max(document["attempts"], 1), "status": status}
        | dict.fromkeys(("started_at", "duration_ms"), ANY)
        | {"note": note}
    )
    before = document.get("attempt_log")
    lines = [*(before if isinstance(before, list) else []), line]
    return [*lines[:1], *lines[1:][-(LOG_LINES - 1) :]]


def wrong(document: Document) -> str | None:
    """Return the field that keeps *document* from being a task, of those that people here spoil."""
    is_right: dict[str, Callable[[Any], bool]] = {
        "due_at": lambda one: isinstance(one, datetime),
        "name": lambda one: isinstance(one, str),
        "queue": lambda one: isinstance(one, str),
        "payload": lambda one: isinstance(one, Mapping),
        "lane": lambda one: one in LANES,
        "priority": lambda one: one is None or isinstance(one, int),
        "attempts": is_count,
        "redrives": lambda one: one is None or is_count(one),
    }
    return next((name for name, right in is_right.items() if not right(document.get(name))), None)


def is_count(value: Any) -> bool:
    """Tell whether one more can be counted."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < LARGEST_COUNT


def is_foreign(document: Document) -> bool:
    """Tell whether another program wrote *document*: it has no lane and no due time, but a payload and attempts."""
    has_place = document.get("lane") is not None or document.get("due_at") is not None
    attempts = document.get("attempts")
    is_number = isinstance(attempts, int | float) and not isinstance(attempts, bool)
    return not has_place and isinstance(document.get("payload"), Mapping) and is_number


def is_unadopted_failure(document: Document) -> bool:
    """Tell whether another program failed *document*, and the sweep has not adopted it."""
    is_open = document.get("finished_at") is None and document.get("reason") is None
    return document.get("status") == "failed" and is_open and is_foreign(document)


def is_in_sight(document: Document) -> bool:
    """Tell whether a claim could find and stamp *document* once it is due."""
    has_place = isinstance(document.get("queue"), str) and document.get("lane") in LANES
    return has_place and isinstance(document.get("due_at"), datetime) and is_count(document.get("attempts"))


def due(world: World, *, queue: str, lanes: Iterable[Lane], now: datetime) -> list[Document]:
    """Return what is due in *lanes* of *queue* in the order of claims, whether or not it can be stamped."""
    served = set(lanes)
    found = [
        one
        for one in world.tasks.values()
        if one.get("status") == "pending"
        and (one.get("queue"), one.get("lane") in served) == (queue, True)
        and isinstance(one.get("due_at"), datetime)
        and one["due_at"] <= now
    ]
    return sorted(found, key=order)


def queues_of(world: World) -> set[str]:
    """Return the queues that hold a task."""
    return {one["queue"] for one in world.tasks.values() if isinstance(one.get("queue"), str)}


def order(document: Document) -> tuple[Any, ...]:
    """Return what claims go by: priority, then due time, then id; text counts for more than any number."""
    priority = document.get("priority")
    rank = (0, 0) if isinstance(priority, str) else (2, 0) if priority is None else (1, -priority)
    return (*rank, document["due_at"], document["_id"])
