"""Attacks one after the other, on a front in a process of its own; and what of others has changed by them."""

from __future__ import annotations

import hashlib
import json
import random
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, Final

from bson import ObjectId
from pymongo import MongoClient
from pymongo.database import Database

from tests.handlers.calls import Answer, answer, request
from tidemill import Queue, indexes
from tidemill.clock import ServerClock
from tidemill.documents import DEAD_LETTERS
from tidemill.store.connection import open_tasks
from tools.chaos.found import Found
from tools.chaos.invariants import broken, holdings, place_of
from tools.chaos.security.attacks import NOBODY, STRANGER, TAKEN, VICTIM, Attack, Victim, attacks
from tools.chaos.security.containers import Container, container

DATABASE: Final = "attacked"
KEY: Final = "order-7"
QUIET: Final = {"POWERTOOLS_DEV": "false", "POWERTOOLS_DEBUG": "false", "POWERTOOLS_LOG_LEVEL": "INFO"}
EVERY: Final = 50
"""Attacks, after which it is looked whether anything of others has changed."""

MOST: Final = 20
"""Sentences are enough."""

_WORD: Final = "forged"


def attack(client: MongoClient[Any], folder: Path, *, rng: random.Random, until: float) -> Found:
    """Attack until *until*, on the monotonic clock, and return what held and what did not."""
    db = client[DATABASE]
    host, port = client.address or ("127.0.0.1", 0)
    uri = f"mongodb://{host}:{port}/?directConnection=true"
    with container(folder / "front", {"MONGODB_URI": uri, "MONGODB_DATABASE": DATABASE, **QUIET}) as front:
        siege = _Siege(db, front)
        siege.hold_out(rng, until=until)
        siege.end()
        return siege.found


class _Siege:
    """A database with tasks of somebody else, and the answers that a stranger gets."""

    def __init__(self, db: Database[Any], front: Container) -> None:
        self.found = Found()
        self._db = db
        self._front = front
        self._accepted: set[ObjectId] = set()
        indexes.create(db)
        self._tick()  # makes the functions known
        self._victim = self._settled()
        self._missing = {method: self._asked(method, NOBODY).text for method in ("GET", "DELETE")}

    def hold_out(self, rng: random.Random, *, until: float) -> None:
        """Take attacks until the time is over, each kind at least once."""
        before = self._of_others()
        for number, one in zip(count(1), attacks(rng, self._victim), strict=False):
            self._take(one)
            if number % EVERY == 0 and (time.monotonic() > until or len(self.found.broken) > MOST):
                break
            if number % EVERY == 0 and self._of_others() != before:
                self._break(f"after {one.kind}, something of others has changed")
                break
        if self._of_others() != before:
            self._break("something of others has changed")

    def end(self) -> None:
        """Run what was accepted, and count where all of it is."""
        self._db.tasks.update_many({"status": "pending"}, [{"$set": {"due_at": "$created_at", "next_retry_at": None}}])
        while self._tick():
            pass
        held, now = holdings(self._db), ServerClock(self._db).now()
        self.found.broken += broken(self._db, accepted=self._accepted, now=now, at_rest=True)
        places = [place_of(held, one) for one in self._accepted]
        self.found.accepted = len(places)
        self.found.done = places.count("done")
        self.found.cancelled = places.count("cancelled")
        self.found.dead = places.count("dead letter")
        self.found.lost = len(places) - self.found.done - self.found.cancelled - self.found.dead
        self.found.broken += _of_the_log(self._front.log)

    def _settled(self) -> Victim:
        """Have a task of others in every state."""
        later = {"name": "noop", "payload": {"card": 4111}, "delay_sec": 9000}
        bodies: list[dict[str, Any]] = [
            *(later, later, {"name": "tell.result", "payload": {"say": 1}}),
            *({"name": "tell.failure", "payload": {"say": "no"}}, {"name": "noop", "payload": {}}),
        ]
        ids = [self._as_victim(request(body=json.dumps(one))).id for one in bodies]
        ids.append(self._as_victim(request(body=json.dumps(later), headers={"Idempotency-Key": KEY})).id)
        self._as_victim(request("DELETE", f"/tasks/{ids[1]}"))
        self._tick()
        ids.append(str(Queue(self._db).enqueue("noop", {}, idempotency_key=f"{STRANGER}-{KEY}", priority=-1)))
        self._accepted |= set(map(ObjectId, ids))
        return Victim(ids=tuple(ids), key=KEY)

    def _as_victim(self, event: dict[str, Any]) -> Answer:
        event["requestContext"]["identity"]["apiKeyId"] = VICTIM
        return answer(self._front.call("enqueue", event)["returned"])

    def _asked(self, method: str, task_id: str) -> Answer:
        event = request(method, f"/tasks/{task_id}", caller=STRANGER)
        return answer(self._front.call("enqueue", event)["returned"])

    def _take(self, one: Attack) -> None:
        self.found.faults[one.kind] += 1
        said = self._front.call(one.function, one.event)
        if not one.may_be:
            if "raised" not in said and "error" not in said["returned"]:
                self._break(f"{one.kind}: {one.event} was carried out")
            elif said.get("raised", "InvalidRequestError") != "InvalidRequestError":
                self._break(f"{one.kind}: {one.event} raised {said['raised']}")
            return
        found = answer(said["returned"])
        if found.status not in one.may_be:
            self._break(f"{one.kind}: {str(one.event)[:500]} was answered {found.status}")
        if one.is_found_nowhere and found.text != self._missing[one.event["httpMethod"]]:
            self._break(f"{one.kind}: {one.event['path']} is told from an id that there never was: {found.text}")
        if found.status in TAKEN and one.event["httpMethod"] == "POST":
            self._own(one, found)

    def _own(self, one: Attack, found: Answer) -> None:
        """Look whether what was taken is the stranger's."""
        if found.id in self._victim.ids:
            self._break(f"{one.kind}: the stranger was given the task {found.id} of somebody else")
        self._accepted.add(ObjectId(found.id))
        stored = self._db.tasks.find_one({"_id": ObjectId(found.id)}) or {}
        if stored.get("trace", {}).get("source") != STRANGER:
            self._break(f"{one.kind}: {found.id} is a task of {stored.get('trace')}")
        if not str(stored.get("idempotency_key", f"{STRANGER}:")).startswith(f"{STRANGER}:"):
            self._break(f"{one.kind}: {found.id} has a key of somebody else")

    def _tick(self) -> int:
        """Run everything once; return how many were claimed or moved."""
        executed = self._front.call("execute", {})["returned"]
        self._front.call("reclaim", None)
        moved = self._front.call("archive", None)["returned"]
        return int(executed["claimed"]) + int(moved["moved"])

    def _of_others(self) -> str:
        """Return what tells whether anything has changed but the stranger's own tasks."""
        digest = hashlib.sha256()
        for name in ("tasks", DEAD_LETTERS, "queues", "task_types"):
            for raw in open_tasks(self._db, name).find({"trace.source": {"$ne": STRANGER}}).sort("_id", 1):
                digest.update(raw.raw)
        return digest.hexdigest()

    def _break(self, sentence: str) -> None:
        self.found.broken.append(sentence)


def _of_the_log(text: str) -> Iterator[str]:
    """Yield which lines are none of the product's own, one JSON object each."""
    for line in filter(None, text.splitlines()):
        try:
            said = json.loads(line)
        except ValueError:
            yield f"a line of the log is no JSON: {line[:200]}"
            continue
        is_error = (
            said.get("level") not in {"INFO", "WARNING", None} and said.get("error_type") != "InvalidRequestError"
        )
        if is_error or _WORD in str(said.get("message")):
            yield f"a line of the log was forged or is an error: {line[:300]}"
        if "_aws" in said and _WORD in line:
            yield f"a metric says what somebody sent: {line[:300]}"
