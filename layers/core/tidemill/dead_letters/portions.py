"""Documents a few at a time: each may be as large as MongoDB allows, and a function has little memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from bson.raw_bson import RawBSONDocument

MAX_BYTES: Final = 16 * 1024 * 1024
"""Of the documents that are held at once; a single one may have as many."""


def portions(found: Iterable[RawBSONDocument], *, most: int) -> Iterator[list[RawBSONDocument]]:
    """Yield what was *found* in lists of *most* documents, or of fewer where they are large."""
    held: list[RawBSONDocument] = []
    size = 0
    for raw in found:
        held.append(raw)
        size += len(raw.raw)
        if len(held) == most or size >= MAX_BYTES:
            yield held
            held, size = [], 0
    if held:
        yield held
