"""What has to be so of every document at any moment, read from MongoDB itself: what is not is a sentence."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import bson
from bson.raw_bson import RawBSONDocument
from pymongo.database import Database

from tidemill.documents import DEAD_LETTERS, decode, is_text, read_task
from tidemill.model import LANES, LATEST, Malformed, Task, TaskId
from tidemill.store import recovery
from tidemill.store.connection import open_tasks
from tidemill.store.scan import Scan, find_due_keys, list_queues
from tidemill.store.settle import MAX_LOG_LINES

MANY: Final = 1_000_000
_UNCOUNTED: Final = "not counted"
"""What the log says of an attempt that was refunded since its worker vanished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """All tasks, and all dead letters by the task they are of, the latest last."""

    tasks: Mapping[TaskId, dict[str, Any]]
    letters: Mapping[TaskId, Sequence[dict[str, Any]]]


def holdings(db: Database[Any]) -> Holdings:
    """Read them. Tasks come first: one that `archive` moves meanwhile is seen twice, never missed."""
    tasks = {_known(one := decode(raw)): one for raw in open_tasks(db).find()}
    letters: dict[TaskId, list[dict[str, Any]]] = {}
    for raw in open_tasks(db, DEAD_LETTERS).find().sort("_id", 1):
        letter = decode(raw)
        letters.setdefault(_known({"_id": letter["_id"]["task"]}), []).append(letter)
    return Holdings(tasks=tasks, letters=letters)


def broken(
    db: Database[Any],
    *,
    accepted: Collection[TaskId] = (),
    now: datetime,
    at_rest: bool = False,
    edited: Collection[TaskId] = (),
) -> list[str]:
    """Return what is not as it has to be, a sentence each; nothing if all is well.

    Args:
        db: The database, at which nobody is at work meanwhile.
        accepted: Ids of tasks that were accepted and that nobody deleted: each has to be in exactly one place.
        now: The time of its clock.
        at_rest: The ticks have run until there was nothing to do: nothing may be left half-way.
        edited: Ids of tasks whose fields a person has set.
    """
    held = holdings(db)
    return [
        *_of_places(held, accepted=accepted, at_rest=at_rest),
        *(sentence for task in held.tasks.values() for sentence in _of_task(task, is_edited=task["_id"] in edited)),
        *(
            sentence
            for letters in held.letters.values()
            for letter in letters
            for sentence in _of_letter(letter, is_edited=letter["_id"]["task"] in edited)
        ),
        *_of_reach(db, held),
        *(_of_rest(db, held, now=now) if at_rest else ()),
    ]


def place_of(held: Holdings, task_id: TaskId) -> str:
    """Return the one place a task is in: its status or ``dead letter``; or else ``nowhere``, or both of them."""
    found = [task["status"]] if (task := held.tasks.get(_known({"_id": task_id}))) else []
    letters = held.letters.get(_known({"_id": task_id}), ())
    if letters and "redriven_at" not in letters[-1]:
        found.append("dead letter")
    return " and ".join(map(str, found)) or "nowhere"


def _of_places(held: Holdings, *, accepted: Collection[TaskId], at_rest: bool) -> Iterator[str]:
    for task_id in accepted:
        if place_of(held, task_id) == "nowhere":
            yield f"{task_id!r} was accepted and is nowhere"
    for task_id, letters in held.letters.items():
        task = held.tasks.get(task_id)
        open_ones = [one["_id"]["redrives"] for one in letters if "redriven_at" not in one]
        if len(open_ones) > 1:
            yield f"{task_id!r} is dead more than once: {open_ones}"
        if task is not None and open_ones and not _is_half_way(task, letters[-1], at_rest=at_rest):
            yield f"{task_id!r} is {task['status']} and a dead letter"


def _is_half_way(task: Mapping[str, Any], letter: Mapping[str, Any], *, at_rest: bool) -> bool:
    """Tell whether it is being moved there, or is on its way back."""
    moves = task["status"] == "failed" and task.get("redrives") == letter["_id"]["redrives"]
    return not at_rest and (moves or "redrive_started_at" in letter)


def _of_task(raw: Mapping[str, Any], *, is_edited: bool) -> Iterator[str]:
    task = read_task(_as_raw(raw))
    if isinstance(task, Malformed):
        if raw.get("status") in {"done", "cancelled"} and not is_edited:
            yield f"{task.id!r} is {raw['status']}, though {task.problem}"
        return
    for condition, sentence in _conditions(task, raw):
        if not condition:
            yield f"{task.id!r} is {task.status}, {sentence}"
    is_whole = not is_edited and task.redrives == 0 and len(task.attempt_log) < MAX_LOG_LINES
    if is_whole and task.attempts - _counted(task) not in _unlogged(task):
        yield f"{task.id!r} is {task.status} with {task.attempts} attempts, where its log tells of {_counted(task)}"


def _conditions(task: Task, raw: Mapping[str, Any]) -> Iterator[tuple[bool, str]]:
    is_final = task.status in {"done", "cancelled"}
    yield "lease" not in raw or task.status == "processing", "and there is a lease"
    yield (task.finished_at is not None) == (is_final or task.status == "failed"), f"finished at {task.finished_at}"
    yield is_final == isinstance(raw.get("retain_from"), datetime), f"and retained from {raw.get('retain_from')}"
    yield task.status != "failed" or task.reason is not None, "for no reason"
    yield task.status != "pending" or raw.get("next_retry_at") in {None, raw["due_at"]}, "due at two times"
    yield task.lane in LANES, f"in lane {task.lane}"
    yield len(task.attempt_log) <= MAX_LOG_LINES, f"with a log of {len(task.attempt_log)} lines"


def _counted(task: Task) -> int:
    """Return how many claims were not given back."""
    settled = sum(_UNCOUNTED not in line.note for line in task.attempt_log)
    return settled + (task.status == "processing")


def _unlogged(task: Task) -> Collection[int]:
    """Return of how many claims the log may be silent: of the one that was taken away by a forced cancellation."""
    return {0, 1} if task.status == "cancelled" else {0}


def _of_letter(letter: Mapping[str, Any], *, is_edited: bool) -> Iterator[str]:
    name = letter["_id"]
    if letter.get("status") != "failed" or not (is_edited or isinstance(letter.get("reason"), str)):
        yield f"the dead letter {name} is {letter.get('status')} for the reason {letter.get('reason')!r}"
    if not isinstance(letter.get("dead_lettered_at"), datetime) or not isinstance(letter.get("fingerprint"), str):
        yield f"the dead letter {name} tells neither when nor of what"
    if "lease" in letter:
        yield f"the dead letter {name} is leased"
    if "redriven_at" in letter and "redrive_started_at" in letter:
        yield f"the redrive of {name} has ended and has not"


def _of_reach(db: Database[Any], held: Holdings) -> Iterator[str]:
    """Yield what waits and is seen neither by a claim, were it late enough, nor by the sweep."""
    waiting = {one for one, task in held.tasks.items() if task.get("status") == "pending"}
    if not waiting:
        return
    tasks = open_tasks(db)
    seen: set[TaskId] = set()
    for queue in list_queues(tasks):
        if is_text(queue):
            keys = find_due_keys(tasks, Scan(queue=queue, lanes=LANES), limit=MANY, now=LATEST)
            seen |= {_known(key) for key in keys}
    if waiting - seen:
        seen |= {_known(decode(raw)) for raw in recovery.find_unclaimable(tasks, limit=MANY)}
    for task_id in waiting - seen:
        yield f"{task_id!r} is pending, and no claim and no sweep will ever see it"


def _of_rest(db: Database[Any], held: Holdings, *, now: datetime) -> Iterator[str]:
    paused = [one["_id"] for one in db["queues"].find({"paused": True}, {"_id": 1})]
    for task in held.tasks.values():
        if task.get("status") == "processing":
            yield f"{task['_id']!r} is still processing"
        if task.get("status") == "failed" and "archive_error" not in task:
            yield f"{task['_id']!r} has failed and was not moved to the dead letters"
        is_due = isinstance(task.get("due_at"), datetime) and task["due_at"] <= now
        if task.get("status") == "pending" and is_due and task.get("queue") not in paused:
            yield f"{task['_id']!r} is still due"
    for letters in held.letters.values():
        for letter in letters:
            if "redrive_started_at" in letter:
                yield f"the redrive of {letter['_id']} was started and never ended"


def _known(document: Mapping[str, Any]) -> Any:
    """Return its id, as something that can be looked up."""
    own = document["_id"]
    try:
        hash(own)
    except TypeError:
        return repr(own)
    return own if own == own else repr(own)  # noqa: PLR0124 - not a number is not itself


def _as_raw(document: Mapping[str, Any]) -> RawBSONDocument:
    return RawBSONDocument(bson.encode(document))
