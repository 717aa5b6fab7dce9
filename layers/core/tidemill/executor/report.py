"""What one invocation did, in numbers."""

from __future__ import annotations

from collections import Counter
from typing import Final, Literal, TypeAlias

from tidemill.model import OUTCOME_NAMES, Outcome

Skipped: TypeAlias = Literal["seats", "time"]

NAMES: Final = (
    "claimed",  # taken under a lease
    "done",
    "retried",
    "failed",
    "snoozed",
    "cancelled",
    "released",  # given back unstarted
    "timed_out",  # attempts that ran too long; also counted as retried or failed
    "lost",  # settled too late: the lease was taken away
    "unknown",  # run, but MongoDB did not confirm the outcome; the lease will tell
    "stuck",  # MongoDB refuses the outcome
    "quarantined",  # documents no claim could take
    "missed",  # ids that another claimer was quicker with
    "errors",  # operations that failed
    "leftovers",  # abandoned functions that still ran at the end
)


class Report(Counter[str]):
    """Counts by the names above; `as_dict` has them all, zeros included.

    Attributes:
        skipped: Why nothing was even looked for: ``seats`` (all taken), ``time`` (not enough of it left).
        backlog: It stopped for lack of time while there was work.
        spent: Its process has no threads left, so that another one has to go on.
        not_started: Why the first of the functions that had nowhere to run did not start; ``None`` with none.
    """

    def __init__(self, *, skipped: Skipped | None = None) -> None:
        super().__init__()
        self.skipped = skipped
        self.backlog = False
        self.spent = False
        self.not_started: str | None = None

    def settled(self, outcome: Outcome) -> None:
        """Count an outcome that is written."""
        self[OUTCOME_NAMES[type(outcome)]] += 1

    def as_dict(self) -> dict[str, int | str]:
        """Return every count by its name, and ``skipped`` where that is what happened."""
        counts: dict[str, int | str] = {name: self[name] for name in NAMES}
        return counts if self.skipped is None else {"skipped": self.skipped, **counts}
