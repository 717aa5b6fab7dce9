"""What a run of reclaim makes of a world, by DESIGN 5 and 9: pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from unittest.mock import ANY

from tidemill.model import Cancelled, Failed, Failure, Outcome, Retried, Snoozed
from tools.chaos.model.ending import Ending, ended
from tools.chaos.model.living import ADOPT_AS, FIRST_WAIT, RETRIES, WAIT, is_stray, quarantined
from tools.chaos.model.world import (
    Document,
    StartsWith,
    World,
    changed,
    error,
    is_count,
    is_foreign,
    is_unadopted_failure,
    wrong,
)

ADOPTION_LEASE: Final = timedelta(minutes=10)
_ANY_TIME: Final = datetime(2031, 7, 1, tzinfo=UTC)
RECLAIMER: Final = StartsWith("reclaim-")
"""Who settles: never the token, by which a late worker would believe that it did."""


def reclaims(world: World, *, dead_owner: str | None, now: datetime) -> Iterator[World]:
    """Yield the world between the steps of one run of reclaim that was told of *dead_owner*, and at its end."""
    begun = [
        task_id
        for task_id, document in world.tasks.items()
        if document.get("status") == "processing" and _is_lost(document, dead_owner=dead_owner, now=now)
    ]
    foreign = [task_id for task_id in begun if can_be_adopted(world.tasks[task_id])]
    lost = [task_id for task_id in begun if task_id not in foreign]
    yield world.each_task(lost, lambda one: one if _has_lease(one) else changed(one, gone=["lease"]))
    world = world.each_task(lost, lambda one: taken_back(one, now=now))
    world = world.each_task(foreign, lambda one: adopted_as_begun(one, now=now))
    yield world
    yield swept(world, now=now)


def swept(world: World, *, now: datetime) -> World:
    """Return the world after the sweep: what is past its expiry has failed, strays are tasks or have failed."""
    for task_id, document in world.tasks.items():
        after = expired(document, now=now)
        after = adopted(after, now=now) if is_stray(after) else after
        world = world.with_task(task_id, adopted_as_ended(after, now=now))
    return world


def _is_lost(document: Document, *, dead_owner: str | None, now: datetime) -> bool:
    lease = document.get("lease")
    held: Mapping[str, Any] = lease if isinstance(lease, Mapping) else {}
    if dead_owner is not None and held.get("owner") == dead_owner:
        return True
    until = held.get("expires_at")
    return not isinstance(until, datetime) or until < now


def _has_lease(document: Document) -> bool:
    lease = document.get("lease")
    kinds = {"token": str, "owner": str, "expires_at": datetime}
    return isinstance(lease, Mapping) and all(isinstance(lease.get(name), kind) for name, kind in kinds.items())


def taken_back(document: Document, *, now: datetime) -> Document:
    """Return a processing *document* whose worker vanished."""
    problem = wrong(document)
    if problem is not None:
        failure = Failure(message=problem, code="malformed", by_function=False)
        quarantine = Ending(outcome=Failed(failure=failure, reason="malformed"), read=None)
        return ended(document, quarantine, by=RECLAIMER, now=now)
    loss = Ending(outcome=_after_loss(document, now=now), read=document, status="lost", lost=True)
    return ended(document, loss, by=RECLAIMER, now=now)


def _after_loss(document: Document, *, now: datetime) -> Outcome:
    if document.get("cancel_requested_at") is not None:
        return Cancelled()
    if not document.get("crashes"):
        return Snoozed(until=now + FIRST_WAIT)
    failure = Failure(message="", code="lease_expired", by_function=False)
    retries = document.get("max_retries")
    if document["attempts"] > (RETRIES if retries is None else retries):
        return Failed(failure=failure, reason="worker_lost")
    return Retried(failure=failure, next_retry_at=now + WAIT)


def expired(document: Document, *, now: datetime) -> Document:
    """Return *document* failed, where it had to be started by now and was not; else as it is."""
    until = document.get("expires_at")
    is_unstarted = document.get("attempts") == 0 and not document.get("crashes")
    if document.get("status") != "pending" or not is_unstarted or not isinstance(until, datetime) or until > now:
        return document
    fields = {"status": "failed", "reason": "expired", "settled_by": "sweep", "next_retry_at": None}
    return {**document, **fields, "error": error("expired", now=now), "finished_at": now, "updated_at": now}


def adopted(document: Document, *, now: datetime) -> Document:
    """Return a stray *document* with all that it lacks, or failed where it cannot be a task."""
    if _is_unseen(document):
        return document
    whole = _completed(document, now=now)
    return quarantined(document, now=now) if wrong(whole) is not None else whole


def can_be_adopted(document: Document) -> bool:
    """Tell whether another program wrote *document*, has begun it, and left it without a lease."""
    is_task = wrong(_completed(document, now=_ANY_TIME)) is None
    return is_foreign(document) and document.get("lease") is None and is_task


def adopted_as_begun(document: Document, *, now: datetime) -> Document:
    """Return a *document* that another program may still run: under a lease, after which it is taken back."""
    lease = {"token": ANY, "owner": "sweep", "expires_at": now + ADOPTION_LEASE}
    return {**_completed(document, now=now), "lease": lease}


def adopted_as_ended(document: Document, *, now: datetime) -> Document:
    """Return a *document* that another program has ended as the task it is then; else as it is."""
    status, whole = document.get("status"), _completed(document, now=now)
    own = {name: value for name, value in document.items() if value is not None}
    if is_unadopted_failure(document):
        if wrong(whole) is not None:
            return quarantined(document, now=now)
        retries = whole.get("max_retries")
        reason = "exhausted" if whole["attempts"] > (RETRIES if retries is None else retries) else "not_retryable"
        failure = {"reason": reason, "settled_by": "sweep", "error": error(reason, now=now), "finished_at": now}
        return whole | {name: value for name, value in failure.items() if name not in own}
    is_ended = status in {"done", "cancelled"} and document.get("retain_from") is None
    if is_ended and is_foreign(document) and wrong(whole) is None:
        return whole | {name: now for name in ("retain_from", "finished_at") if name not in own}
    return document


def _completed(document: Document, *, now: datetime) -> dict[str, Any]:
    """Return *document* with the defaults of the fields that it lacks."""
    own = {name: value for name, value in document.items() if value is not None}
    has_failed = is_count(own.get("attempts")) and own["attempts"] > 0
    at = document.get("next_retry_at")
    defaults: dict[str, Any] = {
        "name": ADOPT_AS, "queue": "default", "lane": "retry" if has_failed else "fresh", "priority": 0,
        "due_at": at or now, "created_at": now, "updated_at": now, "crashes": 0, "redrives": 0, "attempt_log": [],
    }  # fmt: skip
    return {**document, **{name: value for name, value in defaults.items() if name not in own}}


def _is_unseen(document: Document) -> bool:
    """Tell whether only a claim will find what is wrong with it: all but the count of its attempts is right."""
    return wrong({**document, "name": "", "payload": {}, "priority": 0}) == "attempts"
