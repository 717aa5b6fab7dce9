"""Every fault from the field has a test that is marked with its number, or a sentence that says why it cannot occur."""

from __future__ import annotations

import re
from typing import Final

from tests.machine import ROOT

FAULTS: Final = frozenset(range(1, 98))
"""``F01`` to ``F97``, of queues, APIs and functions that others run; a mark is a comment behind a test or its table."""

CANNOT_OCCUR: Final = {
    35: (
        "Times of a recurring task are made by EventBridge Scheduler, which makes up for none that it missed: "
        "it only delivers one late, once each, and of one time one occurrence is enqueued (F32)."
    ),
    36: (
        "No tick says when it was due: schedules send a fixed input, an event with a time is refused by every "
        "function that a schedule starts (F66), and now is the database's clock (F28)."
    ),
}
_MARK: Final = re.compile(r"#.*?\bF\d\d\b.*")
_NUMBERS: Final = re.compile(r"\bF(\d\d)(?: to F(\d\d))?")


def marked() -> set[int]:
    """Return the numbers that comments of tests name, ranges such as ``F39 to F43`` included."""
    found: set[int] = set()
    for path in ROOT.glob("tests/**/test_*.py"):
        for comment in _MARK.findall(path.read_text(encoding="utf-8")):
            for first, last in _NUMBERS.findall(comment):
                found |= set(range(int(first), int(last or first) + 1))
    return found


def test_every_fault_has_a_test_or_a_sentence() -> None:
    assert marked() | CANNOT_OCCUR.keys() == FAULTS


def test_what_has_a_sentence_has_no_test() -> None:
    assert marked() & CANNOT_OCCUR.keys() == set()
