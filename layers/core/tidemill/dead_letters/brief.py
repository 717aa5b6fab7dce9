"""Dead letters as lists have them: without payloads, results and execution logs, each in a bounded size."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from bson.raw_bson import RawBSONDocument

from tidemill.dead_letters.values import MARKS, Letter, read_letter
from tidemill.store.lean import MAX_ERROR, brief, listed

_IS_LARGE: Final = {"$gt": [{"$bsonSize": {"of": "$error"}}, MAX_ERROR]}
_IS_DATED: Final = {"$eq": [{"$type": "$error.at"}, "date"]}
_TOO_LONG: Final = {
    "code": "too_long", "message": "the error is too long for a list: `tidemill dlq show` has it", "at": "$error.at",
}  # fmt: skip
"""Stands for an error that a list would leave out."""

BRIEF: Final[tuple[dict[str, Any], ...]] = (
    {"$set": {"error": {"$cond": [{"$and": [_IS_LARGE, _IS_DATED]}, _TOO_LONG, "$error"]}}},
    *listed(*MARKS),
)
"""The last stages of such a read."""


def brief_letter(raw: RawBSONDocument) -> Letter:
    """Return the letter that was read so."""
    letter = read_letter(raw)
    return replace(letter, task=brief(letter.task))
