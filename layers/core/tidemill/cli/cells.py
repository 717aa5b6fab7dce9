"""Text by the cells that it takes on a terminal: some characters take two of them, and some none."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable


def width(text: str) -> int:
    """Return how many cells *text*, one line, takes."""
    return len(text) if text.isascii() else sum(map(_cells, text))


def shortened(text: str, limit: int) -> str:
    """Return *text* in *limit* cells at most: the middle goes, for the end often says why."""
    if width(text) <= limit:
        return text
    tail = limit // 4
    end = _fitting(reversed(text), tail)[::-1]
    return f"{_fitting(text, limit - tail - 5)} ... {end}"


def padded(text: str, cells: int) -> str:
    """Return *text* with as many blanks behind it as *cells* has room for."""
    return text + " " * (cells - width(text))


def wrapped(text: str, *, limit: int, first: str, rest: str) -> str:
    """Return *text* in lines of *limit* cells: behind *first*, those that follow behind *rest*."""
    lines, begun = [first], len(first)
    for whole in text.split():
        word = whole
        while word:
            gap = " " if len(lines[-1]) > begun else ""
            room = limit - width(lines[-1]) - len(gap)
            is_endless = width(word) > limit - width(rest)
            part = word if width(word) <= room else _fitting(word, room) if is_endless else ""
            if not part and not gap:
                part = word[0]  # there is no room at all
            lines[-1] += gap + part if part else ""
            word = word[len(part) :]
            if word:
                lines, begun = [*lines, rest], len(rest)
    return "\n".join(lines)


def _fitting(text: Iterable[str], limit: int) -> str:
    """Return the beginning of *text* that fits into *limit* cells."""
    kept, left = "", limit
    for char in text:
        left -= _cells(char)
        if left < 0:
            break
        kept += char
    return kept


def _cells(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1
