"""The verdict on what happened, from what was asked for, answered, stored and run: pure."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bson import ObjectId

from tools.chaos.found import Found
from tools.chaos.replica_set import reruns
from tools.chaos.replica_set.ledger import DEADLY, Answered, Wanted
from tools.chaos.replica_set.traces import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All there is to judge by.

    Attributes:
        tasks, letters: The documents; a letter's id is that of its task.
        answers: What callers were answered, by the number of the task.
        business: The numbers that were written in the transactions of tasks.
        runs: The traces, the first one first.
        deaths: When containers died, on the clock of the traces.
        retryable: What callers may be told instead of an acknowledgement.
    """

    wanted: Sequence[Wanted]
    answers: Mapping[int, Answered]
    tasks: Sequence[Mapping[str, Any]]
    letters: Sequence[Mapping[str, Any]]
    runs: Sequence[Run]
    business: Collection[int] = ()
    deaths: Mapping[str, float]
    retryable: Collection[str] = ()


def judged(evidence: Evidence) -> Found:
    """Return what became of the tasks, and what does not hold."""
    places = _places(evidence)
    found = Found()
    for wanted in evidence.wanted:
        answered = evidence.answers.get(wanted.number, Answered())
        stored = places.pop(wanted.number, [])
        found.broken += _of_storing(wanted, answered, stored)
        found.broken += _of_answers(wanted, answered, evidence.retryable)
        if wanted.way == "transaction" and (wanted.number in evidence.business) != bool(stored):
            found.broken.append(f"task {wanted.number} and what was written with it were not committed together")
        if answered.ids:
            found.accepted += 1
            _count_end(found, stored)
    found.broken += [
        f"task {number} was stored {len(some)} times, and asked for by nobody" for number, some in places.items()
    ]
    by_task = {key: list(some) for key, some in itertools.groupby(sorted(evidence.runs, key=_by_task), key=_by_task)}
    for document in (*evidence.tasks, *evidence.letters):
        runs = by_task.get(document["_id"], [])
        found.broken += reruns.broken(document, runs, deaths=evidence.deaths)
        found.repeated += reruns.repeated(document, runs, deaths=evidence.deaths)
    return found


def _places(evidence: Evidence) -> dict[Any, list[tuple[str, Mapping[str, Any]]]]:
    places: dict[Any, list[tuple[str, Mapping[str, Any]]]] = {}
    for where, documents in (("tasks", evidence.tasks), ("dead letters", evidence.letters)):
        for one in documents:
            payload = one.get("payload")
            number = payload.get("number") if isinstance(payload, Mapping) else None
            places.setdefault(number, []).append((where, one))
    return places


def _of_storing(wanted: Wanted, answered: Answered, stored: Sequence[tuple[str, Mapping[str, Any]]]) -> Iterator[str]:
    name = f"task {wanted.number} ({wanted.way}, {wanted.kind})"
    ids = {str(one["_id"]) for _, one in stored}
    acknowledged = set(answered.ids)
    if acknowledged - ids:
        yield f"{name} was acknowledged as {sorted(acknowledged - ids)} and is nowhere"
    if len(stored) > 1:
        yield f"{name} is there {len(stored)} times: {[(where, str(one['_id'])) for where, one in stored]}"
    for where, one in stored:
        if one["payload"] != wanted.payload:
            yield f"{name} has another payload: {one['payload']}"
        ends = "dead letters" if wanted.kind in DEADLY else "done"
        if (one["status"] if where == "tasks" else where) != ends:
            yield f"{name} is {one['status']} in the {where} ({one.get('reason')}), and not {ends}: {one['_id']}"


def _of_answers(wanted: Wanted, answered: Answered, retryable: Collection[str]) -> Iterator[str]:
    for what in answered.refused:
        if what not in retryable:
            yield f"who enqueued task {wanted.number} ({wanted.way}) was told {what}"
    if not answered.ids and (wanted.is_repeated or not answered.refused):
        yield f"task {wanted.number} ({wanted.way}) was never acknowledged"


def _count_end(found: Found, stored: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    match stored:
        case [("dead letters", _)]:
            found.dead += 1
        case [("tasks", {"status": "done"})]:
            found.done += 1
        case _:
            found.lost += 1


def _by_task(run: Run) -> ObjectId:
    return run.task


def letters_by_task(letters: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return *letters* under the ids of their tasks."""
    return [{**one, "_id": one["_id"]["task"]} for one in letters]


def ids(answers: Mapping[int, Answered]) -> set[ObjectId]:
    """Return the ids of all tasks that were acknowledged."""
    return {ObjectId(one) for answered in answers.values() for one in answered.ids}
