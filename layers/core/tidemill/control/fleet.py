"""Executor slots, the heartbeats of workers, and the fleet status for operators.

Executor slots are permits (`tidemill.control.semaphores`) of the document ``executor_slots``. An invocation that finds
no free slot is recorded as refused in the same update: its mark is the field ``waiting_since``. The update that
releases a slot reads the mark and clears it, and the executor that exits starts a replacement.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Final, cast

from pymongo import ReturnDocument
from pymongo.database import Database

from tidemill import indexes
from tidemill.control.semaphores import (
    PermitOwner,
    build_update,
    count_permits,
    list_permits,
    list_unexpired,
    update_semaphore,
)
from tidemill.documents import CONTROL, is_text
from tidemill.model import LANES, SELECTIONS, Selection
from tidemill.policy.scheduling import DEFAULT_RETRY_SHARE, Lanes
from tidemill.store.connection import translate_errors, with_lenient_decoding, with_majority

MAX_STORED_QUEUES: Final = 100
"""Number of queues that are stored, as many as an event may name. A longer list is stored as all queues."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """Queues and lanes that an executor serves, and their order. Without *queues* it serves all of them.

    Attributes:
        asked: The selection for all queues; it overrides their own.
        selection, retry_share: The deployment's defaults, for queues without their own.
    """

    queues: tuple[str, ...] = ()
    lanes: Lanes = LANES
    asked: Selection | None = None
    selection: Selection = "weighted"
    retry_share: float = DEFAULT_RETRY_SHARE

    def covers(self, queue: str, lane: str) -> bool:
        """Return whether tasks of *queue* and *lane* are served."""
        return lane in self.lanes and (not self.queues or queue in self.queues)

    def document(self) -> dict[str, Any]:
        """Return the stored form, which has a bounded size."""
        queues = list(self.queues) if len(self.queues) <= MAX_STORED_QUEUES else []
        return asdict(self) | {"queues": queues, "lanes": list(self.lanes)}


WORKERS_ID: Final = "workers"
"""Id of the document with the heartbeats of workers."""


def heartbeat(db: Database[Any], owner: str, subscription: Subscription, *, until: datetime, now: datetime) -> None:
    """Record that the worker *owner* is alive until a time, and the queues and lanes that it serves.

    Raises:
        UnavailableError: The effect is unknown; the next call corrects it.
    """
    stored = {"$cond": [{"$isArray": "$holds"}, "$holds", []]}
    is_other = {"$and": [{"$gt": ["$$worker.until", now]}, {"$ne": ["$$worker.owner", {"$literal": owner}]}]}
    other_workers = {"$filter": {"input": stored, "as": "worker", "cond": is_other}}
    mine = {"owner": owner, "until": until} | subscription.document()
    update_semaphore(db, WORKERS_ID, [{"$set": {"holds": {"$concatArrays": [other_workers, [{"$literal": mine}]]}}}])


def deregister(db: Database[Any], owner: str) -> None:
    """Remove the heartbeat of the worker *owner*."""
    with translate_errors(CONTROL):
        with_majority(db)[CONTROL].update_one(
            {"_id": WORKERS_ID, "holds": {"$type": "array"}}, {"$pull": {"holds": {"owner": owner}}}
        )


SLOTS_ID: Final = "executor_slots"
"""Id of the document with the executor slots."""

ALL_QUEUES: Final = Subscription()
"""Subscription to all queues and lanes."""


_ACQUIRE_SEQ: Final = 1
_RELEASE_SEQ: Final = 2
"""An execution acquires one slot and releases it, so that its updates have fixed numbers."""


class ExecutorSlots:
    """A counting semaphore with *limit* executor slots for one database. Each operation is one command.

    Every operation raises `UnavailableError` if its effect is unknown. A slot expires at its time, so the slots of
    dead executors become free. `tidemill.control.semaphores.release_all` releases them at once.
    """

    def __init__(self, db: Database[Any], *, limit: int) -> None:
        self._db = db
        self._limit = limit

    def acquire(
        self, owner: PermitOwner, *, until: datetime, now: datetime, subscription: Subscription = ALL_QUEUES
    ) -> bool:
        """Acquire a slot that expires at *until*. If none is free, record the refusal and return false.

        *subscription* is stored beside the slot, for the fleet status.
        """
        note = subscription.document()
        has_slot = {"$gt": ["$$mine", 0]}
        stages = build_update(
            owner,
            seq=_ACQUIRE_SEQ,
            held=0,
            wanted=1,
            limit=self._limit,
            until=until,
            now=now,
            zero_until=now,  # the first update follows none that could arrive late
            note=note,
            fields={
                "waiting_since": {"$cond": [has_slot, "$waiting_since", now]},
                "last_acquired_at": now,  # this and the rest: for the fleet status
                "limit": self._limit,
                "last_request": {"$literal": note},
            },
        )
        return count_permits(owner, after=update_semaphore(self._db, SLOTS_ID, stages), now=now) > 0

    def cancel_acquire(self, owner: PermitOwner, *, until: datetime, now: datetime) -> None:
        """Release the slot of an `acquire` without an answer, also if that is applied later, before *until*."""
        stages = build_update(owner, seq=_RELEASE_SEQ, held=0, wanted=0, limit=self._limit, until=until, now=now)
        update_semaphore(self._db, SLOTS_ID, stages)

    def release(self, owner: PermitOwner, *, now: datetime) -> bool:
        """Release the slot. Return whether an executor was refused since the last release, and clear the mark."""
        stages = build_update(
            owner,
            seq=_RELEASE_SEQ,
            held=0,
            wanted=0,
            limit=self._limit,
            until=now,
            now=now,
            fields={"waiting_since": None},
        )
        remove_null = {"waiting_since": {"$ifNull": ["$waiting_since", "$$REMOVE"]}}
        return self._clear_refusal({"_id": SLOTS_ID}, [*stages, {"$set": remove_null}])

    def clear_waiter(self) -> bool:
        """Return, without a slot, whether an executor was refused since the last release, and clear the mark."""
        return self._clear_refusal({"_id": SLOTS_ID, "waiting_since": {"$exists": True}}, [{"$unset": "waiting_since"}])

    def count_free(self, *, now: datetime) -> int:
        """Return the number of free slots."""
        with translate_errors(CONTROL):
            found = with_lenient_decoding(self._db)[CONTROL].find_one({"_id": SLOTS_ID}) or {}
        return max(self._limit - sum(permit.n for permit in _read_permits(found, now=now)), 0)

    def _clear_refusal(self, where: dict[str, Any], stages: list[dict[str, Any]]) -> bool:
        with translate_errors(CONTROL):
            before: Mapping[str, Any] | None = with_lenient_decoding(self._db)[CONTROL].find_one_and_update(
                where, stages, return_document=ReturnDocument.BEFORE
            )
        return before is not None and before.get("waiting_since") is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Permit:
    """Permits of one owner: executor slots or capped retries, and for an executor its subscription."""

    owner: str
    n: int
    until: datetime
    subscription: Subscription = field(default_factory=Subscription)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetStatus:
    """All executors of the database, and the retry permits of one queue.

    Attributes:
        slot_permits: Invocations at work, each with an executor slot.
        slot_count: Number of executor slots, as the last invocation that requested a slot was configured.
        last_acquired_at: Time at which an invocation last requested a slot.
        last_request: Subscription of that invocation.
        workers: Processes of ``tidemill work`` that are alive.
        retries: Permits for retries of the queue.
    """

    slot_permits: tuple[Permit, ...] = ()
    slot_count: int | None = None
    last_acquired_at: datetime | None = None
    last_request: Subscription = field(default_factory=Subscription)
    workers: tuple[Permit, ...] = ()
    retries: tuple[Permit, ...] = ()

    @property
    def at_work(self) -> tuple[Permit, ...]:
        """All executors that are at work."""
        return self.slot_permits + self.workers

    def serving(self, queue: str, lane: str) -> tuple[Permit, ...]:
        """Return the executors at work that serve *queue* and *lane*."""
        return tuple(executor for executor in self.at_work if executor.subscription.covers(queue, lane))


def load_fleet_status(db: Database[Any], *, queue: str, now: datetime) -> FleetStatus:
    """Return the status of all executors, with the retry permits of *queue*, in one command.

    Raises:
        UnavailableError: MongoDB did not answer.
    """
    retries = f"retries:{queue}"
    with translate_errors(CONTROL):
        found = with_lenient_decoding(db)[CONTROL].find(
            {"_id": {"$in": [SLOTS_ID, WORKERS_ID, retries]}}, hint=indexes.BY_ID
        )
        documents = {document["_id"]: document for document in found}
    slots = documents.get(SLOTS_ID, {})
    limit, last_acquired_at, last_request = slots.get("limit"), slots.get("last_acquired_at"), slots.get("last_request")
    return FleetStatus(
        slot_permits=_read_permits(slots, now=now),
        slot_count=limit if isinstance(limit, int) else None,
        last_acquired_at=last_acquired_at if isinstance(last_acquired_at, datetime) else None,
        last_request=read_subscription(last_request if isinstance(last_request, Mapping) else {}),
        workers=tuple(_read_permit(worker, n=1) for worker in list_unexpired(documents.get(WORKERS_ID, {}), now=now)),
        retries=_read_permits(documents.get(retries, {}), now=now),
    )


def _read_permits(document: Mapping[str, Any], *, now: datetime) -> tuple[Permit, ...]:
    return tuple(_read_permit(permit, n=permit["n"]) for permit in list_permits(document, now=now))


def _read_permit(permit: Mapping[str, Any], *, n: int) -> Permit:
    return Permit(owner=str(permit.get("owner")), n=n, until=permit["until"], subscription=read_subscription(permit))


def read_subscription(stored: Mapping[str, Any]) -> Subscription:
    """Read a stored subscription. A missing or invalid field has its default."""
    queues, lanes, share = stored.get("queues"), stored.get("lanes"), stored.get("retry_share")
    is_share = isinstance(share, int | float) and not isinstance(share, bool)
    return Subscription(
        queues=tuple(queue for queue in queues if is_text(queue)) if isinstance(queues, list) else (),
        lanes=tuple(lane for lane in LANES if lane in lanes) if isinstance(lanes, list) else LANES,
        asked=_read_selection(stored.get("asked")),
        selection=_read_selection(stored.get("selection")) or "weighted",
        retry_share=float(cast("float", share)) if is_share else DEFAULT_RETRY_SHARE,
    )


def _read_selection(word: object) -> Selection | None:
    return next((selection for selection in SELECTIONS if selection == word), None)
