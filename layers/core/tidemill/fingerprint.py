"""What failures have in common: a short name for the reason, pure and stable across releases."""

from __future__ import annotations

import hashlib
import re
from typing import Final

VERSION: Final = "1"
MAX_FOLDED: Final = 500

_FOLDS: Final = tuple(
    (re.compile(pattern, re.ASCII), mark)
    for pattern, mark in (
        (r"[a-zA-Z][a-zA-Z0-9+.-]{1,20}://[^\s'\"<>]+", "<url>"),
        (r"'[^'\n]{0,300}'|\"[^\"\n]{0,300}\"|`[^`\n]{0,300}`", "<text>"),
        (r"\b[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+\b", "<address>"),
        (r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b", "<id>"),
        (r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d{1,5})?\b", "<address>"),
        (r"\b(?=[0-9a-fA-F]*\d)[0-9a-fA-F]{8,}\b|\b0x[0-9a-fA-F]+\b", "<id>"),
        (r"\d+(?:\.\d+)?", "<n>"),
        (r"\s+", " "),
    )
)


def fingerprint(*, name: str, code: str, message: str) -> str:
    """Return 16 hexadecimal digits that failures of task *name* for the same reason share.

    What differs from case to case is folded out of *message*: URLs, quoted text, addresses, ids, numbers and
    the amount of white space.
    """
    told = "\x1f".join((VERSION, name, code, folded(message)))
    return hashlib.sha256(told.encode("utf-8", "backslashreplace")).hexdigest()[:16]


def folded(message: str) -> str:
    """Return *message* without what differs from case to case."""
    text = message[: MAX_FOLDED * 4]
    for pattern, mark in _FOLDS:
        text = pattern.sub(mark, text)
    return text.strip()[:MAX_FOLDED]
