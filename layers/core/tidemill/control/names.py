"""Which queues there are, and which may be meant."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pymongo.database import Database

from tidemill.control.directory import DEFAULT_QUEUE
from tidemill.control.reading import by_name, forgiving
from tidemill.documents import QUEUES, is_text
from tidemill.store import claims, gauges, open_tasks, translated
from tidemill.wording import guess


def listed_queues(db: Database[Any]) -> list[str]:
    """Return the names of the queues that are declared, or have chosen something."""
    with translated(QUEUES):
        return sorted(by_name(forgiving(db)[QUEUES]))


def known_queues(
    db: Database[Any], *, listed: Iterable[str] | None = None, leased: Iterable[str] | None = None
) -> list[str]:
    """Return the names of all queues that are listed or have pending or leased tasks, in order.

    *listed* and *leased* are those of which that is known already.
    """
    tasks = open_tasks(db)
    pending = [name for name in claims.queues(tasks) if is_text(name)]
    listed = listed_queues(db) if listed is None else listed
    leased = gauges.leased(tasks).by_queue if leased is None else leased
    return sorted({DEFAULT_QUEUE, *listed, *pending, *leased})


def no_queue(queue: str, known: Iterable[str]) -> str:
    """Return the sentence that says that *queue* is none of the *known* ones, and which may be meant."""
    meant = guess(queue, known) or ": none is declared, and no task of one is pending or processing"
    return f"there is no queue {queue}{meant}"
