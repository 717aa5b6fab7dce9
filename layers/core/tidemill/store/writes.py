"""Many small guarded updates at once, of which one that is refused keeps none of the others back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pymongo import UpdateOne
from pymongo.errors import BulkWriteError

from tidemill.store.collections import Tasks, translated


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """How many updates took effect, and how many the server refuses; the others found nothing to change."""

    changed: int = 0
    refused: int = 0


def write_each(tasks: Tasks, updates: Sequence[UpdateOne]) -> Written:
    """Write all *updates* in one bulk.

    Raises:
        UnavailableError: Some, all or none were written.
    """
    if not updates:
        return Written()
    with translated():
        try:
            return Written(changed=tasks.bulk_write(updates, ordered=False).matched_count)
        except BulkWriteError as error:
            refused = len(error.details["writeErrors"])
            if not refused:
                raise
            return Written(changed=error.details["nMatched"], refused=refused)
