"""Dead letters as lists have them: without payloads, results and execution logs, each in a bounded size."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from bson.raw_bson import RawBSONDocument

from tidemill.dead_letters.values import MARKS, Letter, read_letter
from tidemill.store.lean import brief, listed

BRIEF: Final[tuple[dict[str, Any], ...]] = listed(*MARKS)
"""The last stages of such a read."""


def brief_letter(raw: RawBSONDocument) -> Letter:
    """Return the letter that was read so."""
    letter = read_letter(raw)
    return replace(letter, task=brief(letter.task))
