"""Many small guarded updates at once, of which one that is refused keeps none of the others back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pymongo import UpdateOne
from pymongo.errors import BulkWriteError

from tidemill.store.collections import Tasks, translated


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """How many updates took effect, and how many the server refuses; the others found nothing to change."""

    changed: int = 0
    refused: int = 0


def refused_in(error: BulkWriteError) -> list[dict[str, Any]]:
    """Return what the server says of the writes that it refuses, each with its ``index`` and ``code``.

    Raises:
        BulkWriteError: *error* itself: no write is refused, or no majority has confirmed the others, which may be
            rolled back.
    """
    details = error.details or {}
    refused: list[dict[str, Any]] = details.get("writeErrors", [])
    if not refused or details.get("writeConcernErrors"):
        raise error
    return refused


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
            return Written(refused=len(refused_in(error)), changed=error.details["nMatched"])
