"""What has become of everything, in values that are the same however often it had to be tried."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from bson.raw_bson import RawBSONDocument

from tidemill.dead_letters.export_format import read_object_key
from tidemill.documents import OCCURRENCES, QUEUE_STATS, QUEUES, TASK_TYPES, decode
from tidemill.indexes import COLLECTIONS
from tools.chaos.crash_points.world import World

_KEPT: Final = (
    "name", "queue", "status", "reason", "priority", "attempts", "max_retries", "timeout_sec", "redrives", "result",
    "idempotency_key", "released_key", "request_hash",
)  # fmt: skip
"""Of a task; not times, tokens and what a loss leaves in the log."""

_TIMES: Final = frozenset({"updated_at", "declared_at", "created_at", "retired_at"})

Facts = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """The end: each task by what it was enqueued as, each letter, what queues and types say, orders and objects."""

    tasks: Facts
    letters: Facts
    others: Facts
    objects: frozenset[str]

    def differs_from(self, other: End) -> str:
        """Return what is different, for people."""
        told = [
            f"{kind} {name}: {_difference(mine.get(name), theirs.get(name))}"
            for kind, mine, theirs in (
                ("task", self.tasks, other.tasks),
                ("letter", self.letters, other.letters),
                ("", self.others, other.others),
            )
            for name in sorted(mine.keys() | theirs.keys())
            if mine.get(name) != theirs.get(name)
        ]
        if self.objects != other.objects:
            told.append(f"objects {sorted(self.objects)}, not {sorted(other.objects)}")
        return "; ".join(told)


def end_of(world: World) -> End:
    """Read it."""
    db = world.db
    tasks = [_facts(raw) for raw in world.tasks.find()]
    found = list(world.dead.find())
    letters = [_facts(raw) | _marks(raw) for raw in found]
    labels = {read_object_key(raw): _label(decode(raw)) for raw in found}
    others = {
        f"{name} {one['_id']}": {field: value for field, value in one.items() if field not in _TIMES}
        for name in (QUEUES, TASK_TYPES, OCCURRENCES, "orders")
        for one in db[name].find()
    }
    if world.uses_bare:
        others |= {f"indexes of {name}": dict(world.bare[name].index_information()) for name in COLLECTIONS}
    return End(
        tasks=_by_label(tasks),
        letters=_by_label(letters),
        others=others,
        objects=frozenset(labels.get(key, key) for key in world.cloud.objects),
    )


def counted(world: World, name: str) -> int:
    """Return what statistics say of all tasks."""
    return sum(int(one.get(name, 0)) for one in world.db[QUEUE_STATS].find())


def places(end: End) -> dict[str, int]:
    """Return how many tasks there are by the place they ended in: their status, or ``dead``."""
    found: dict[str, int] = {}
    for facts in end.tasks.values():
        found[facts["status"]] = found.get(facts["status"], 0) + 1
    found["dead"] = sum(not one["redriven"] for one in end.letters.values())
    return found


def _by_label(found: list[Facts]) -> Facts:
    """Return them by what they are called; of those that are called alike, there are several."""
    named: Facts = {}
    for one in sorted(found, key=repr):
        label = one.pop("label")
        while label in named:
            label = f"{label} once more"
        named[label] = one
    return named


def _facts(raw: RawBSONDocument) -> Facts:
    document = decode(raw)
    payload = raw.get("payload")
    error = document.get("error")
    facts = {name: document.get(name) for name in _KEPT} | {
        "payload": bytes(payload.raw) if isinstance(payload, RawBSONDocument) else payload,
        "error": error.get("code") if isinstance(error, Mapping) else error,
        "is_delayed": document.get("status") == "pending" and document.get("next_retry_at") is not None,
        "is_asked_to_stop": document.get("cancel_requested_at") is not None,
    }
    return {"label": _label(document)} | facts


def _label(document: Mapping[str, Any]) -> str:
    own = document["_id"]
    payload = document.get("payload")
    of = payload["n"] if isinstance(payload, Mapping) and "n" in payload else own
    if isinstance(own, Mapping) and "task" in own:
        return f"{of if of is not own else own['task']}-{own.get('redrives')}"
    return str(of)


def _marks(raw: RawBSONDocument) -> Facts:
    names = ("archived_at", "redrive_started_at", "redriven_at", "retain_from")
    return {"redriven": raw.get("redriven_at") is not None, "marks": [name for name in names if raw.get(name)]}


def _difference(mine: Facts | None, theirs: Facts | None) -> str:
    if mine is None or theirs is None:
        return "is not there" if mine is None else "is there"
    names = [name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name)]
    return ", ".join(f"{name} {mine.get(name)!r}, not {theirs.get(name)!r}" for name in sorted(names))
