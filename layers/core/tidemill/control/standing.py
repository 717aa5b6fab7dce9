"""How executors stand: which are alive, when one last came, and who holds what is bounded. One read tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from pymongo.database import Database

from tidemill.control import seats
from tidemill.control.reading import forgiving
from tidemill.control.workers import WORKERS
from tidemill.documents import CONTROL
from tidemill.store import translated

_BY_ID: Final = "_id_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What one owner holds of something that is bounded."""

    owner: str
    n: int
    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The executors as they serve one queue and lane.

    Attributes:
        seated: Invocations at work, each on a seat.
        seats: How many seats there are, as far as the last one that came knew.
        came_at: When an invocation last asked for a seat.
        workers: Processes of ``tidemill work`` that serve the queue and the lane.
        retries: Who holds permits for retries of the queue.
    """

    seated: tuple[Held, ...] = ()
    seats: int | None = None
    came_at: datetime | None = None
    workers: tuple[str, ...] = ()
    retries: tuple[Held, ...] = ()


def standing(db: Database[Any], *, queue: str, lane: str, now: datetime) -> Standing:
    """Return how executors stand. One command.

    Raises:
        UnavailableError: MongoDB did not answer.
    """
    retries = f"retries:{queue}"
    with translated(CONTROL):
        found = forgiving(db)[CONTROL].find({"_id": {"$in": [seats.NAME, WORKERS, retries]}}, hint=_BY_ID)
        documents = {one["_id"]: one for one in found}
    seat = documents.get(seats.NAME, {})
    limit, came_at = seat.get("limit"), seat.get("came_at")
    return Standing(
        seated=_held(seat, now=now),
        seats=limit if isinstance(limit, int) else None,
        came_at=came_at if isinstance(came_at, datetime) else None,
        workers=tuple(
            str(one.get("owner")) for one in _live(documents.get(WORKERS, {}), now=now) if _serves(one, queue, lane)
        ),
        retries=_held(documents.get(retries, {}), now=now),
    )


def _live(document: Mapping[str, Any], *, now: datetime) -> list[Mapping[str, Any]]:
    """Return the holds that are not over, and make sense."""
    holds = document.get("holds")
    found = [one for one in holds if isinstance(one, Mapping)] if isinstance(holds, list) else []
    return [one for one in found if isinstance(one.get("until"), datetime) and one["until"] > now]


def _held(document: Mapping[str, Any], *, now: datetime) -> tuple[Held, ...]:
    return tuple(
        Held(owner=str(one.get("owner")), n=one["n"], until=one["until"])
        for one in _live(document, now=now)
        if isinstance(one.get("n"), int) and not isinstance(one["n"], bool) and one["n"] > 0
    )


def _serves(worker: Mapping[str, Any], queue: str, lane: str) -> bool:
    queues, lanes = worker.get("queues"), worker.get("lanes")
    is_asked = not isinstance(queues, list) or not queues or queue in queues
    return is_asked and (not isinstance(lanes, list) or lane in lanes)
