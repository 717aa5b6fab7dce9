"""The play: enqueue through the handler, let AWS tick, watch until every accepted task has ended."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bson import ObjectId
from pymongo.database import Database

from demo import scenario
from demo.aws import Aws
from demo.functions import EVENTS, Context, Event, about, event, handler, post
from demo.ledger import FINAL, Account, Place, account, places
from tidemill import TidemillError
from tidemill.model import TaskId

DEADLINE_SEC = 55.0
REFRESH_SEC = 0.25
SAMPLES = "events/*.json"
HOST_IN_EVENTS = "https://example.com"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of the table: tasks that behave alike, and how many are where."""

    behaviour: str
    ends: str
    tasks: int
    where: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What a screen shows."""

    rows: tuple[Row, ...]
    aws: Aws


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """What the demo knows of a task it was given an id for."""

    behaviour: str
    ends: str


class DemoError(TidemillError):
    """The demo cannot go on."""


class Play:
    """One run of the demo against an empty database.

    Attributes:
        accepted: Every task that was answered 202.
        answers: The sample events that were sent, with the status of the answer.
    """

    def __init__(self, db: Database[Any], *, receiver: str, show: Callable[[View], None]) -> None:
        self.accepted: dict[TaskId, Accepted] = {}
        self.answers: list[tuple[str, int]] = []
        self.aws = Aws()
        self._db = db
        self._receiver = receiver
        self._show = show
        self._shown_at = -REFRESH_SEC
        self._enqueue = handler("enqueue")

    def run(self) -> Account:
        """Play it all; return where the tasks are in the end.

        Raises:
            DemoError: A task that has to be accepted was not.
        """
        try:
            self.aws.deploy()
            self._send_samples()
            for request in scenario.requests(self._receiver):
                self._send_webhook(request)
                self._go_on(wait_sec=0.0)
            while not self._account().is_balanced and self.aws.elapsed < DEADLINE_SEC:
                self._go_on(wait_sec=REFRESH_SEC)
        finally:
            self.aws.stop()
        self._show(self._view())
        return self._account()

    def _send_samples(self) -> None:
        for path in sorted(EVENTS.glob("enqueue_*.json")):
            ends = "cancelled" if path.stem == "enqueue_to_cancel" else "done"
            accepted = self._send(path.stem, event(path.stem, filled_in={HOST_IN_EVENTS: f"{self._receiver}/ok?"}))
            if "id" in accepted:
                self.accepted[ObjectId(accepted["id"])] = Accepted(behaviour=SAMPLES, ends=ends)
            if ends == "cancelled":
                self._send("cancel_task", about("cancel_task", accepted["id"]))
                self._send("get_task", about("get_task", accepted["id"]))
        self._send("enqueue_keyed", event("enqueue_keyed"))

    def _send(self, name: str, request: Event) -> dict[str, Any]:
        answer = self._enqueue(request, Context(timeout_sec=10))
        self.answers.append((name, answer["statusCode"]))
        body: dict[str, Any] = json.loads(answer["body"])
        return body

    def _send_webhook(self, request: scenario.Request) -> None:
        answer = self._enqueue(post(request.body), Context(timeout_sec=10))
        if answer["statusCode"] != 202:
            raise DemoError(f"a task was not accepted: {answer['statusCode']} {answer['body']}")
        task_id = ObjectId(json.loads(answer["body"])["id"])
        self.accepted[task_id] = Accepted(behaviour=request.behaviour, ends=request.ends)

    def _go_on(self, *, wait_sec: float) -> None:
        self.aws.step(wait_sec=wait_sec)
        if self.aws.elapsed - self._shown_at >= REFRESH_SEC:
            self._shown_at = self.aws.elapsed
            self._show(self._view())

    def _account(self) -> Account:
        return account({task_id: one.ends for task_id, one in self.accepted.items()}, places(self._db))

    def _view(self) -> View:
        found = places(self._db)
        names = [SAMPLES, *dict.fromkeys(one.name for one in scenario.BEHAVIOURS)]
        return View(rows=tuple(self._row(name, found) for name in names), aws=self.aws)

    def _row(self, behaviour: str, found: Mapping[TaskId, list[Place]]) -> Row:
        tasks = {task_id: one.ends for task_id, one in self.accepted.items() if one.behaviour == behaviour}
        last = [found[task_id][-1].where for task_id in tasks if task_id in found]
        ends = " or ".join(dict.fromkeys(tasks.values()))
        return Row(behaviour=behaviour, ends=ends, tasks=len(tasks), where=Counter(last))


def ended(row: Row) -> int:
    """Return how many tasks of *row* are where nothing happens to them any more."""
    return sum(row.where[where] for where in FINAL)
