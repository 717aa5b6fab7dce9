"""What is stored, read whole after each step, against what the model says: document by document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import bson
from bson.raw_bson import RawBSONDocument

from tidemill.documents import DEAD_LETTERS, decode, decode_shallow
from tidemill.store.connection import Tasks
from tools.chaos.model.world import Document, World

_FINAL: Final = frozenset({"done", "cancelled", "failed"})
_MANY: Final = 1_000


class BrokenError(AssertionError):
    """What is stored is not what has to be."""


class Eyes:
    """Reads both collections, and decodes what changed since it last did.

    ``payloads`` are those of tasks as they were enqueued, byte for byte.
    """

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._decoded: dict[bytes, Document] = {}
        self.payloads: dict[Any, bytes] = {}

    def compared(self, before: World, worlds: Sequence[World], *, is_by_hand: bool = False) -> World:
        """Return what is stored, where each document is as one of *worlds* has it; *before* is what was stored.

        Raises:
            BrokenError: One is as none of them has it, has left a final state, or has another payload than was
                enqueued.
        """
        stored = self._look()
        _compare("task", stored.tasks, [one.tasks for one in worlds])
        _compare("dead letter", stored.letters, [one.letters for one in worlds])
        if not is_by_hand:
            _stay_ended(before.tasks, stored.tasks)
        return stored

    def _look(self) -> World:
        """Return all that is stored; what bears the same bytes as before is the same object."""
        found = self._tasks.aggregate([{"$unionWith": DEAD_LETTERS}], batchSize=_MANY)
        raws = {bytes(raw.raw): raw for raw in found}
        seen, self._decoded = self._decoded, {}
        for own, raw in raws.items():
            self._decoded[own] = seen[own] if own in seen else self._read(raw)
        stored = self._decoded.values()
        return World(
            tasks={one["_id"]: one for one in stored if not isinstance(one["_id"], dict)},
            letters={
                (one["_id"]["task"], one["_id"]["redrives"]): one for one in stored if isinstance(one["_id"], dict)
            },
        )

    def _read(self, raw: RawBSONDocument) -> Document:
        document = decode(raw)
        own = document["_id"]
        self._keeps_its_payload(own["task"] if isinstance(own, dict) else own, raw)
        return document

    def _keeps_its_payload(self, task_id: Any, raw: RawBSONDocument) -> None:
        if task_id in self.payloads and bytes(decode_shallow(raw)["payload"].raw) != self.payloads[task_id]:
            raise BrokenError(f"the payload of {task_id} is not byte for byte what was enqueued")


def _compare(kind: str, stored: Mapping[Any, Document], believed: Sequence[Mapping[Any, Document]]) -> None:
    for key in {*stored, *(one for some in believed for one in some)}:
        own = stored.get(key)
        if not any(some.get(key) is own or some.get(key) == own for some in believed):
            raise BrokenError(f"the {kind} {key} {difference(believed[-1].get(key), own)}")


def difference(wanted: Document | None, stored: Document | None) -> str:
    """Say how *stored* differs from what was *wanted*."""
    if wanted is None or stored is None:
        return "is there" if wanted is None else f"is not there: {wanted}"
    names = {name for name in {*wanted, *stored} if wanted.get(name, ...) != stored.get(name, ...)}
    told = (f"{name} is {stored.get(name, '-')!r} and not {wanted.get(name, '-')!r}" for name in sorted(names))
    return f"({stored.get('status')}): {', '.join(told)}"


def _stay_ended(before: Mapping[Any, Document], after: Mapping[Any, Document]) -> None:
    for key, was in before.items():
        now = after.get(key)
        if now is None or now is was or was.get("status") not in _FINAL or now.get("redrives") != was.get("redrives"):
            continue
        if now.get("status") != was["status"]:
            raise BrokenError(f"the task {key} was {was['status']}, and is {now.get('status')} without a redrive")


def payload_bytes(payload: Mapping[str, Any]) -> bytes:
    """Return a payload as it is stored."""
    return bson.encode(payload)
