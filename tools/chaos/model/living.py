"""What becomes of living tasks, by DESIGN 4 and 5: pure, and written apart from the code that it is compared with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from unittest.mock import ANY

from tidemill.model import Lease
from tidemill.store.settle import Settlement
from tools.chaos.model.ending import ended, ending_of, refunded
from tools.chaos.model.world import Document, World, changed, error, is_in_sight, scheduled

FIRST_WAIT: Final = timedelta(seconds=2.5)
"""The wait after a first loss where the draw is one half."""

WAIT: Final = timedelta(seconds=10)
RETRIES: Final = 2
"""The policy of the deployment: a fixed wait without jitter."""

ADOPT_AS: Final = "noop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A task as it is enqueued. ``delay`` and ``lives_for`` count from then."""

    payload: Mapping[str, Any]
    name: str = "noop"
    queue: str = "default"
    priority: int = 0
    delay: timedelta | None = None
    lives_for: timedelta | None = None
    max_retries: int | None = None
    key: str | None = None


def enqueued(world: World, task_id: Any, wanted: Wanted, *, now: datetime) -> World:
    """Return the world with a new task."""
    keyed = {} if wanted.key is None else {"idempotency_key": wanted.key, "request_hash": ANY}
    starts_at = None if wanted.delay is None else now + wanted.delay
    fields = {
        "_id": task_id, "name": wanted.name, "queue": wanted.queue, "payload": wanted.payload, "status": "pending",
        "lane": "fresh", "priority": wanted.priority, **scheduled(starts_at, now=now),
        "attempts": 0, "max_retries": wanted.max_retries, "backoff_policy": None, "timeout_sec": None,
        "expires_at": wanted.lives_for and now + wanted.lives_for, "created_at": now, "updated_at": now,
        "finished_at": None, "error": None, "attempt_log": [], "crashes": 0, "redrives": 0, "result": None, **keyed,
        "trace": {},
    }  # fmt: skip
    return world.with_task(task_id, fields)


def holder(world: World, key: str) -> Document | None:
    """Return the task that holds an idempotency *key*."""
    return next((one for one in world.tasks.values() if one.get("idempotency_key") == key), None)


def claimed(world: World, ids: Iterable[Any], lease: Lease, *, now: datetime) -> World:
    """Return the world in which these tasks are under *lease*."""
    stored = {"token": lease.token, "owner": lease.owner, "expires_at": lease.expires_at}

    def stamp(one: Document) -> Document:
        return changed(one, status="processing", lease=stored, updated_at=now, attempts=one["attempts"] + 1)

    return world.each_task(ids, stamp)


def token_of(document: Document | None) -> str | None:
    """Return the token that proves the one claim on a task, while it is one."""
    held = document or {}
    lease = held.get("lease")
    return lease.get("token") if held.get("status") == "processing" and isinstance(lease, Mapping) else None


def is_held(world: World, settlement: Settlement) -> bool:
    """Tell whether the claim that is to be settled still is one."""
    lease = settlement.task.lease
    return lease is not None and token_of(world.tasks.get(settlement.task.id)) == lease.token


def is_known(world: World, settlement: Settlement) -> bool:
    """Tell whether it has been settled so before, and nothing since."""
    settled_by = world.tasks.get(settlement.task.id, {}).get("settled_by")
    return settlement.task.lease is not None and settled_by == settlement.task.lease.token


def settled(world: World, settlements: Sequence[Settlement], *, now: datetime) -> World:
    """Return the world in which attempts have ended, one after the other; those are ignored whose claim was lost."""
    for one in settlements:
        if is_held(world, one):
            document = world.tasks[one.task.id]
            world = world.with_task(one.task.id, ended(document, ending_of(one), by=token_of(document), now=now))
    return world


def released(world: World, claims: Iterable[tuple[Any, str]], *, now: datetime) -> World:
    """Return the world in which these claims, each an id and a token, were given back as far as they still are."""
    for task_id, token in claims:
        document = world.tasks.get(task_id)
        if document is not None and token_of(document) == token:
            left = refunded(document["attempts"])
            free = changed(document, gone=["lease"], status="pending", updated_at=now, attempts=left)
            world = world.with_task(task_id, free)
    return world


def extended(world: World, claims: Iterable[tuple[Any, str]], *, until: datetime) -> World:
    """Return the world in which the leases of these claims last longer."""
    for task_id, token in claims:
        document = world.tasks.get(task_id)
        if document is not None and token_of(document) == token:
            world = world.with_task(task_id, changed(document, lease={**document["lease"], "expires_at": until}))
    return world


def cancelled(world: World, task_id: Any, *, force: bool, now: datetime) -> World:
    """Return the world in which somebody wanted the task stopped."""
    document = world.tasks.get(task_id, {})
    if document.get("status") not in {"pending", "processing"}:
        return world
    asked = document.get("cancel_requested_at") or now
    if document["status"] == "processing" and not force:
        left = ["retain_from", "released_key"]  # of a former end, by somebody who set the status back
        return world.with_task(task_id, changed(document, gone=left, cancel_requested_at=asked))
    fields: dict[str, Any] = {"status": "cancelled", "finished_at": now, "retain_from": now, "next_retry_at": None}
    if document.get("idempotency_key") is not None:
        fields["released_key"] = document["idempotency_key"]
    rest = changed(document, gone=["lease", "idempotency_key", "released_key"])
    return world.with_task(task_id, changed(rest, updated_at=now, cancel_requested_at=asked, **fields))


def hurried(world: World, task_id: Any, *, now: datetime) -> World:
    """Return the world in which a delayed task is due."""
    document = world.tasks.get(task_id, {})
    is_delayed = document.get("status") == "pending" and isinstance(document.get("due_at"), datetime)
    if not is_delayed or document["due_at"] <= now:
        return world
    return world.with_task(task_id, {**document, **scheduled(None, now=now), "updated_at": now})


def quarantined(document: Document, *, now: datetime) -> Document:
    """Return a pending *document* that no claim can take, as the sweep fails it."""
    fields = {"status": "failed", "reason": "malformed", "error": error("malformed", now=now), "settled_by": "sweep"}
    return changed(document, **fields, finished_at=now, updated_at=now)


def is_stray(document: Document) -> bool:
    """Tell whether *document* waits where no claim will see it."""
    return document.get("status") == "pending" and not is_in_sight(document)
