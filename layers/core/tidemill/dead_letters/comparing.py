"""Telling the death of a task from another death of a task with the same id: people choose ids of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from bson.raw_bson import RawBSONDocument

from tidemill import indexes
from tidemill.dead_letters.letters import redrives_of
from tidemill.dead_letters.lookups import of_task
from tidemill.dead_letters.values import MAX_REDRIVES, id_bytes
from tidemill.documents import DEAD_LETTERS, opened
from tidemill.store import Tasks, translated

_LIFE: Final = ("created_at", "finished_at")
_SHOWN: Final = (*_LIFE, "redrives", "redriven_at")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What letters are, whose ids were taken a moment ago, by their place among them.

    One that is in neither is of a death that nothing is known of any more.

    Attributes:
        same: Are kept already: these very deaths.
        others: Are of other deaths, with the number of redrives under which each can be kept.
    """

    same: frozenset[int] = frozenset()
    others: Mapping[int, int] = field(default_factory=dict)


def compared(dead: Tasks, letters: Mapping[int, RawBSONDocument]) -> Compared:
    """Compare *letters* with those that are kept of their tasks."""
    if not letters:
        return Compared()
    stored = _stored(dead, [one for one in letters.values() if _is_dated(one)])
    same = {index for index, one in letters.items() if _is_among(one, stored.get(id_bytes(opened(one)["_id"]), ()))}
    others: dict[int, int] = {}
    for index, letter in letters.items():
        if index not in same:
            found = _of_its_task(dead, letter)
            if _is_among(letter, found):
                same.add(index)
            elif found:
                others[index] = max(map(_redrives, found)) + 1
    return Compared(same=frozenset(same), others=others)


def _stored(dead: Tasks, letters: Sequence[RawBSONDocument]) -> dict[bytes, tuple[RawBSONDocument]]:
    if not letters:
        return {}
    same_ids = [{"_id": {"$eq": opened(one)["_id"]}} for one in letters]
    with translated(DEAD_LETTERS):
        return {
            id_bytes(opened(raw)["_id"]): (raw,)
            for raw in dead.find({"$or": same_ids}, dict.fromkeys(_SHOWN, 1), hint=indexes.BY_ID)
        }


def _of_its_task(dead: Tasks, letter: RawBSONDocument) -> list[RawBSONDocument]:
    shown = dict.fromkeys(_SHOWN if _is_dated(letter) else (*_SHOWN, "payload"), 1)
    with translated(DEAD_LETTERS):
        return list(dead.find({"_id": of_task(opened(letter)["_id"]["task"])}, shown, hint=indexes.BY_ID))


def _is_dated(letter: RawBSONDocument) -> bool:
    fields = opened(letter)
    return any(fields.get(name) is not None for name in _LIFE)


def _is_among(letter: RawBSONDocument, others: Sequence[RawBSONDocument]) -> bool:
    return any(_is_same(letter, one) for one in others)


def _is_same(letter: RawBSONDocument, kept: RawBSONDocument) -> bool:
    """Tell whether *kept* is of the very death of *letter*.

    One that went back is so only where the task has not come back since: it may have died twice in a millisecond.
    """
    fields, others = opened(letter), opened(kept)
    is_open = others.get("redriven_at") is None
    return _life(letter) == _life(kept) and (is_open or redrives_of(fields) == redrives_of(others))


def _life(letter: RawBSONDocument) -> list[bytes]:
    """Return what tells this life from others: its times, or, of a document that people wrote without, its payload."""
    fields = opened(letter)
    return [id_bytes(fields.get(name)) for name in (_LIFE if _is_dated(letter) else ("payload",))]


def _redrives(letter: RawBSONDocument) -> int:
    """Return a letter's number; what is none, or too large to go on from, counts as none."""
    value = opened(letter)["_id"].get("redrives")
    is_number = isinstance(value, int | float) and 0 <= value < MAX_REDRIVES
    return int(value) if is_number else 0
