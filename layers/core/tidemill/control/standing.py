"""How executors stand: which are alive, when one last came, and who holds what is bounded. One read tells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pymongo.database import Database

from tidemill import indexes
from tidemill.control import seats
from tidemill.control.reading import forgiving
from tidemill.control.service import Service, service_of
from tidemill.control.workers import WORKERS
from tidemill.documents import CONTROL
from tidemill.store import translated


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What one owner holds of something that is bounded; of executors also what they serve."""

    owner: str
    n: int
    until: datetime
    service: Service = field(default_factory=Service)


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The executors, whatever they serve, and the permits of one queue.

    Attributes:
        seated: Invocations at work, each on a seat.
        seats: How many seats there are, as far as the last one that came knew.
        came_at: When an invocation last asked for a seat.
        came: What that one was to serve.
        workers: Processes of ``tidemill work`` that are alive.
        retries: Who holds permits for retries of the queue.
    """

    seated: tuple[Held, ...] = ()
    seats: int | None = None
    came_at: datetime | None = None
    came: Service = field(default_factory=Service)
    workers: tuple[Held, ...] = ()
    retries: tuple[Held, ...] = ()

    @property
    def at_work(self) -> tuple[Held, ...]:
        """All executors that are at work."""
        return self.seated + self.workers

    def serving(self, queue: str, lane: str) -> tuple[Held, ...]:
        """Return those at work that serve *queue* and *lane*."""
        return tuple(one for one in self.at_work if one.service.covers(queue, lane))


def standing(db: Database[Any], *, queue: str, now: datetime) -> Standing:
    """Return how executors stand, with the permits of *queue*. One command.

    Raises:
        UnavailableError: MongoDB did not answer.
    """
    retries = f"retries:{queue}"
    with translated(CONTROL):
        found = forgiving(db)[CONTROL].find({"_id": {"$in": [seats.NAME, WORKERS, retries]}}, hint=indexes.BY_ID)
        documents = {one["_id"]: one for one in found}
    seat = documents.get(seats.NAME, {})
    limit, came_at, came = seat.get("limit"), seat.get("came_at"), seat.get("came")
    return Standing(
        seated=_held(seat, now=now),
        seats=limit if isinstance(limit, int) else None,
        came_at=came_at if isinstance(came_at, datetime) else None,
        came=service_of(came if isinstance(came, Mapping) else {}),
        workers=tuple(_one_held(one, n=1) for one in _live(documents.get(WORKERS, {}), now=now)),
        retries=_held(documents.get(retries, {}), now=now),
    )


def _live(document: Mapping[str, Any], *, now: datetime) -> list[Mapping[str, Any]]:
    """Return the holds that are not over, and make sense."""
    holds = document.get("holds")
    found = [one for one in holds if isinstance(one, Mapping)] if isinstance(holds, list) else []
    return [one for one in found if isinstance(one.get("until"), datetime) and one["until"] > now]


def _held(document: Mapping[str, Any], *, now: datetime) -> tuple[Held, ...]:
    return tuple(
        _one_held(one, n=one["n"])
        for one in _live(document, now=now)
        if isinstance(one.get("n"), int) and not isinstance(one["n"], bool) and one["n"] > 0
    )


def _one_held(one: Mapping[str, Any], *, n: int) -> Held:
    return Held(owner=str(one.get("owner")), n=n, until=one["until"], service=service_of(one))
