"""The play: enqueue, let AWS tick, watch until every accepted task has ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from pymongo.database import Database

from demo.aws import Aws
from demo.feed import Feed
from demo.front import SAMPLES, Front
from demo.ledger import Account, Place, account, places
from demo.scenario import BEHAVIOURS, Request
from tidemill.model import TaskId

DEADLINE_SEC = 55.0
REFRESH_SEC = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Tasks that behave alike, and how many of them are where."""

    behaviour: str
    ends: str
    tasks: int
    where: Counter[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What a screen shows."""

    rows: Sequence[Row]
    aws: Aws
    attempts: Sequence[str]


Show: TypeAlias = Callable[[View], None]


class Play:
    """One run of the demo on an empty database."""

    def __init__(self, db: Database[Any], *, front: Front, aws: Aws, show: Show) -> None:
        self._db = db
        self._front = front
        self._aws = aws
        self._show = show
        self._feed = Feed(db)
        self._shown_at = -REFRESH_SEC

    def run(self, requests: Sequence[Request]) -> Account:
        """Play it, for `DEADLINE_SEC` at most, and return where the tasks are then.

        Raises:
            RefusedError: A task was not accepted that has to be.
        """
        try:
            self._aws.deploy()
            self._front.send_samples()
            for request in requests:
                self._front.send(request)
                self._go_on(wait_sec=0.0)
            while self._account().lost and self._aws.elapsed < DEADLINE_SEC:
                self._go_on(wait_sec=REFRESH_SEC)
            self._aws.drain(until_sec=DEADLINE_SEC)
        finally:
            self._aws.stop()
        self._show(self._view())
        return self._account()

    def _go_on(self, *, wait_sec: float) -> None:
        self._aws.step(wait_sec=wait_sec)
        if self._aws.elapsed - self._shown_at >= REFRESH_SEC:
            self._shown_at = self._aws.elapsed
            self._show(self._view())

    def _account(self) -> Account:
        return account({task_id: one.ends for task_id, one in self._front.accepted.items()}, places(self._db))

    def _view(self) -> View:
        found = places(self._db)
        self._feed.read(self._front.accepted, at=self._aws.elapsed)
        names = [SAMPLES, *dict.fromkeys(one.name for one in BEHAVIOURS)]
        return View(rows=[self._row(name, found) for name in names], aws=self._aws, attempts=self._feed.lines)

    def _row(self, behaviour: str, found: Mapping[TaskId, Sequence[Place]]) -> Row:
        tasks = {task_id: one.ends for task_id, one in self._front.accepted.items() if one.behaviour == behaviour}
        # While it is being moved a task is in two places: the dead letter, which comes last, is the one to show.
        where = Counter(found[task_id][-1].where for task_id in tasks if found.get(task_id))
        return Row(behaviour=behaviour, ends=", ".join(dict.fromkeys(tasks.values())), tasks=len(tasks), where=where)
