"""Rules of people with a shell: edits that are allowed, edits that spoil, documents of all kinds, and deletions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from bson import ObjectId

from tools.chaos.model.base import QUEUES, picked
from tools.chaos.model.disturbing import Disturbing
from tools.chaos.model.world import Document, changed, scheduled

_GONE: Final = "(taken away)"
"""Stands for a field that is not there any more."""

MINUTE: Final = timedelta(minutes=1)

SPOILT: Final[Mapping[str, tuple[Mapping[str, Any], ...]]] = {
    "pending": (
        {"lane": _GONE}, {"lane": "fast"}, {"due_at": "soon"}, {"due_at": None}, {"queue": 5}, {"attempts": "three"},
        {"priority": "high"}, {"payload": "text"}, {"name": 5}, {"status": "processing"}, {"crashes": None},
        {"attempt_log": None}, {"priority": _GONE}, {"status": "failed"}, {"queue": _GONE},
    ),
    "processing": (
        {"lease": _GONE}, {"status": "pending"}, {"lease": {"token": 5, "owner": "A"}}, {"crashes": None},
        {"status": "failed"}, {"status": "cancelled"}, {"lane": "fast"}, {"payload": "text"}, {"due_at": _GONE},
        {"attempt_log": "none"}, {"lease.expires_at": "never"}, {"attempts": "three"}, {"attempts": 0},
    ),
    "done": ({"status": "pending"}, {"status": "failed"}),
    "failed": ({"redrives": "many"}, {"reason": _GONE}, {"error": "broken"}, {"status": "pending"}),
    "cancelled": ({"status": "pending"},),
}  # fmt: skip
"""What people do to tasks, by their status."""


class Meddling(Disturbing):
    """What no program does."""

    def edit(self, a: int, b: int) -> None:
        """Change a pending task as operators may."""
        task_id = picked([one for one, it in self.world.tasks.items() if it.get("status") == "pending"], a)
        if task_id is None:
            return
        at = self.clock.now() + (b % 3) * MINUTE
        edits: tuple[dict[str, Any], ...] = (
            {"priority": b}, {"max_retries": b % 3}, dict(scheduled(at, now=at)), {"queue": QUEUES[b % 2]},
            {"lane": ("fresh", "retry")[b % 2]}, {"expires_at": at}, {"name": "told"},
        )  # fmt: skip
        self._change(task_id, edits[b % len(edits)])
        self.count("edited")

    def spoil(self, a: int, b: int) -> None:
        """Change a task so that it may be none."""
        task_id = picked(self.world.tasks, a)
        if task_id is None:
            return
        document = self.world.tasks[task_id]
        change = picked(SPOILT.get(str(document.get("status")), ()), b)
        is_possible = "lease.expires_at" not in (change or {}) or isinstance(document.get("lease"), dict)
        if change is not None and is_possible:
            self._change(task_id, change)
            self.count("spoilt")

    def insert(self, a: int, b: int) -> None:
        """Insert a document of any kind."""
        known = [key[0] for key in self.world.letters if key[0] not in self.world.tasks]
        task_id = known[b % len(known)] if known and b % 3 == 0 else ObjectId()
        document = {"_id": task_id, **_of_any_kind(self.clock.now())[a % 12]}
        self.tell(f"insert {document}")
        self.tasks.insert_one(document)
        self._by_hand(task_id)
        self.reused |= {task_id} & set(known)
        self.count("inserted again" if task_id in known else "inserted")
        self.now_is(self.world.with_task(task_id, document), is_by_hand=True)

    def delete(self, a: int) -> None:
        """Delete a task."""
        task_id = picked(self.world.tasks, a)
        if task_id is None:
            return
        self.tell(f"delete {task_id}")
        self.tasks.delete_one({"_id": task_id})
        self.removed.add(task_id)
        self.count("deleted")
        self.now_is(self.world.without_task(task_id), is_by_hand=True)

    def _change(self, task_id: Any, change: Mapping[str, Any]) -> None:
        self.tell(f"change {task_id}: {change}")
        fields = {name: value for name, value in change.items() if value is not _GONE}
        gone = [name for name, value in change.items() if value is _GONE]
        update = {"$set": fields} if fields else {"$unset": dict.fromkeys(gone, "")}
        self.tasks.update_one({"_id": task_id}, update)
        document = self.world.tasks[task_id]
        if "lease.expires_at" in fields:
            fields = {"lease": {**document["lease"], "expires_at": fields["lease.expires_at"]}}
        self._by_hand(task_id)
        self.now_is(self.world.with_task(task_id, changed(document, gone=gone, **fields)), is_by_hand=True)

    def _by_hand(self, task_id: Any) -> None:
        self.edited.add(task_id)
        self.eyes.payloads.pop(task_id, None)


def _of_any_kind(now: datetime) -> tuple[Document, ...]:
    bare: Callable[..., dict[str, Any]] = lambda **fields: {"payload": {"n": 1}, "status": "pending"} | fields  # noqa: E731
    usual = bare(name="noop", queue="default", lane="fresh", due_at=now, attempts=0, created_at=now)
    return (
        bare(attempts=0, next_retry_at=None),
        bare(attempts=2, next_retry_at=now + MINUTE),
        bare(),
        bare(payload=None, attempts=0),
        bare(status="processing", attempts=0),
        bare(status="processing", attempts=1, lease="A", name="noop", queue="eu", lane="fresh", due_at=now),
        {"status": "failed"},
        {"status": "paused", "payload": {}},
        usual,
        usual | {"attempts": "three"},
        usual | {"priority": "high", "payload": []},
        usual | {"status": "failed", "finished_at": now, "error": {"code": "x", "message": "y", "at": now}},
    )
