"""What one invocation did, in numbers."""

from __future__ import annotations

from collections import Counter
from typing import Final

from tidemill.model import OUTCOME_NAMES, Outcome

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
    """Counts by the names above; `as_dict` has them all, zeros included."""

    def settled(self, outcome: Outcome) -> None:
        """Count an outcome that is written."""
        self[OUTCOME_NAMES[type(outcome)]] += 1

    def as_dict(self) -> dict[str, int]:
        """Return every count by its name."""
        return {name: self[name] for name in NAMES}
