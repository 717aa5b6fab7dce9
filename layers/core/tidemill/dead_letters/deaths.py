"""Telling the death of a task from another death of a task with the same id: people choose ids of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from bson.raw_bson import RawBSONDocument

from tidemill.dead_letters.lookups import of_task
from tidemill.documents import DEAD_LETTERS, opened
from tidemill.store import Tasks, translated

_LIFE: Final = ("created_at", "finished_at")


def other_deaths(dead: Tasks, letters: Mapping[int, RawBSONDocument]) -> dict[int, int]:
    """Return those of *letters*, whose ids are all taken, that tell of a death not kept yet.

    Each with the number of redrives under which it can be kept.
    """
    if not letters:
        return {}
    stored = _stored(dead, list(letters.values()))
    others = {index: one for index, one in letters.items() if not _is_among(one, stored.get(_id_bytes(one), ()))}
    found = {index: _of_its_task(dead, one) for index, one in others.items()}
    return {
        index: max(_redrives(one) for one in found[index]) + 1
        for index, letter in others.items()
        if found[index] and not _is_among(letter, found[index])
    }


def _stored(dead: Tasks, letters: Sequence[RawBSONDocument]) -> dict[bytes, tuple[RawBSONDocument]]:
    same_ids = [{"_id": {"$eq": opened(one)["_id"]}} for one in letters]
    with translated(DEAD_LETTERS):
        return {_id_bytes(raw): (raw,) for raw in dead.find({"$or": same_ids}, dict.fromkeys(_LIFE, 1))}


def _of_its_task(dead: Tasks, letter: RawBSONDocument) -> list[RawBSONDocument]:
    with translated(DEAD_LETTERS):
        return list(dead.find({"_id": of_task(opened(letter)["_id"]["task"])}, dict.fromkeys(_LIFE, 1)))


def _is_among(letter: RawBSONDocument, others: Sequence[RawBSONDocument]) -> bool:
    return _life(letter) in [_life(one) for one in others]


def _life(letter: RawBSONDocument) -> list[object]:
    fields = opened(letter)
    return [fields.get(name) for name in _LIFE]


def _id_bytes(letter: RawBSONDocument) -> bytes:
    return bytes(opened(letter)["_id"].raw)


def _redrives(letter: RawBSONDocument) -> int:
    value = opened(letter)["_id"]["redrives"]
    return value if isinstance(value, int) else 0
