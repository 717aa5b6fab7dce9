"""How long an executor that ran dry goes on looking, before it leaves: pure, in readings of the monotonic clock."""

from __future__ import annotations

from typing import Final

AFTER_WORK_SEC: Final = 2.0
"""Work tends to come together."""

SUMMONED_SEC: Final = 1.5
"""Longer than whoever wakes executors keeps quiet after a wake: what was enqueued meanwhile relies on this one."""

POLL_SEC: Final = 0.25
"""How often it looks meanwhile."""


def lingers_until(
    *, started: float, worked_at: float | None, summoned: bool, next_due: float | None, longest: float
) -> float:
    """Return until when an executor looks for work, in vain since it ran dry.

    *worked_at* is when it last had a task in hand, *next_due* when the next delayed task will be due, as far as known;
    one that is further away than *longest* seconds from the moment it ran dry is not waited for, and nothing else is
    waited for longer. *longest* of 0 is not to linger at all. A tick that found nothing leaves at once.
    """
    ran_dry = started if worked_at is None else worked_at
    until = started
    if worked_at is not None:
        until = max(until, worked_at + min(AFTER_WORK_SEC, longest))
    if summoned:
        until = max(until, started + min(SUMMONED_SEC, longest))
    if next_due is not None and next_due - ran_dry <= longest:
        until = max(until, next_due)
    return until
