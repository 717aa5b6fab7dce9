"""Seats: so many executors work at once, exactly, and who is turned away leaves word for whoever gets up.

They are holds (`tidemill.control.holds`) of the document ``seats``; the word is its field ``knocked_at``.

Without that word a task could wait for the next tick: an executor has looked for the last time and still sits; a task
comes in; the executor it wakes finds every seat taken; the first one leaves, and nobody is left to look. So whoever is
turned away knocks, in the same update, and whoever leaves is told of it by the update that frees the seat.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from pymongo import ReturnDocument
from pymongo.database import Database

from tidemill.control.holds import Holder, change, changed, held_by
from tidemill.control.reading import forgiving
from tidemill.control.service import Service
from tidemill.documents import CONTROL
from tidemill.store import translated

NAME: Final = "seats"
ANY: Final = Service()


class Seats:
    """The *limit* seats of one database. Each operation is one command.

    All of them raise `UnavailableError` where nothing is known of the effect. A seat ends at its time, so those of
    the dead are free again; `let_go` frees those of an owner who is known to be dead.
    """

    def __init__(self, db: Database[Any], *, limit: int) -> None:
        self._db = db
        self._limit = limit

    def take(self, holder: Holder, *, until: datetime, now: datetime, service: Service = ANY) -> bool:
        """Take a seat that ends at *until*; false, and a knock, where all are taken.

        *service*, what the holder serves, is for people who ask why a task is not running.
        """
        note = service.document()
        stages = change(holder, held=0, wanted=1, limit=self._limit, until=until, now=now, note=note)
        is_seated = {"$in": [{"$literal": holder.execution}, "$holds.execution"]}
        knock = {"knocked_at": {"$cond": [is_seated, "$knocked_at", now]}}
        trace = {"came_at": now, "limit": self._limit, "came": {"$literal": note}}  # for the same people
        return held_by(holder, after=changed(self._db, NAME, [*stages, {"$set": knock | trace}])) > 0

    def leave(self, holder: Holder, *, now: datetime) -> bool:
        """Give the seat back; true where somebody has knocked since the last one left, who is now to be let in."""
        stages = change(holder, held=0, wanted=0, limit=self._limit, until=now, now=now)
        return self._answered({"_id": NAME}, [*stages, {"$unset": "knocked_at"}])

    def answer_knock(self) -> bool:
        """Tell, without a seat, whether somebody has knocked since the last one left, who is now to be let in."""
        return self._answered({"_id": NAME, "knocked_at": {"$exists": True}}, [{"$unset": "knocked_at"}])

    def free(self, *, now: datetime) -> int:
        """Return how many seats are free."""
        with translated(CONTROL):
            found = forgiving(self._db)[CONTROL].find_one({"_id": NAME}) or {}
        holds = found.get("holds")
        taken = sum(_taken(one, now=now) for one in holds) if isinstance(holds, list) else 0
        return max(self._limit - taken, 0)

    def _answered(self, where: dict[str, Any], stages: list[dict[str, Any]]) -> bool:
        with translated(CONTROL):
            before: Mapping[str, Any] | None = forgiving(self._db)[CONTROL].find_one_and_update(
                where, stages, return_document=ReturnDocument.BEFORE
            )
        return before is not None and before.get("knocked_at") is not None


def _taken(hold: object, *, now: datetime) -> int:
    """Return how many seats a hold takes, by the rule that updates have."""
    if not isinstance(hold, Mapping):
        return 0
    until, count = hold.get("until"), hold.get("n")
    if not isinstance(until, datetime) or until <= now or not isinstance(count, int) or isinstance(count, bool):
        return 0
    return max(count, 0)
