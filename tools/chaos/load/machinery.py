"""The loops of a load: executors that tick, housekeeping, a queue that is paused, and a death now and then."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from pymongo.database import Database

from tests.handlers.calls import sample
from tidemill.documents import TASKS
from tools.chaos.load.container import Container, DiedError, RefusedError, container
from tools.chaos.load.work import PAUSED

MAX_TASK_SEC: Final = 2.0
CLAIMS_FOR: Final = timedelta(seconds=1)
"""Time in which an invocation has to start what it claims, or else releases it; it ends earlier if nothing is due.

With 120 ms, executors on a busy machine released nearly everything they claimed: 300 of 320 tasks in four seconds.
"""
LIFE: Final = timedelta(seconds=MAX_TASK_SEC + 10) + CLAIMS_FOR
"""Of an executor's invocation: the longest task, its margin, and a moment for claiming."""

HOUSEKEEPING: Final = timedelta(seconds=60)
WORK_WITHIN_SEC: Final = 3.0
MAX_TOLD: Final = 20


@dataclass(slots=True)
class Course:
    """What happens in the course of a load, noted by all of its threads.

    Attributes:
        calm: Set when nothing more comes in, and nothing more is done to it.
        over: Set when the loops are to end.
        counts: What invocations reported, summed up, and what was done to them.
        held: Ids of tasks under a lease of an executor that was killed.
        broken: What was told that should not have been.
    """

    calm: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)
    counts: Counter[str] = field(default_factory=Counter)
    held: set[str] = field(default_factory=set)
    broken: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def ticks(self, every: float) -> Iterator[float]:
        """Yield the moment, every so many seconds, until it is over; what is missed is not made up for."""
        upcoming = time.monotonic()
        while not self.over.is_set():
            yield time.monotonic()
            upcoming = max(upcoming + every, time.monotonic())
            self.over.wait(upcoming - time.monotonic())

    def end(self) -> None:
        """Have all loops end."""
        self.calm.set()
        self.over.set()

    def count(self, **counts: int) -> None:
        """Add to the counts."""
        with self._lock:
            self.counts.update(counts)

    def complain(self, sentence: str) -> None:
        """Note what should not have been said; after the first few, only how often."""
        self.count(complaints=1)
        if len(self.broken) < MAX_TOLD:
            self.broken.append(sentence)


class Machinery:
    """Runs the containers of one database, each loop in a thread that its caller gives it."""

    def __init__(self, db: Database[Any], course: Course, variables: Mapping[str, str]) -> None:
        self._tasks = db[TASKS]
        self._course = course
        self._variables = variables

    def execute(self, one: Container, queues: tuple[str, ...], *, every: float) -> None:
        """Tick an executor that lives on."""
        for _ in self._course.ticks(every):
            self.tick(one, queues)

    def tick(self, one: Container, queues: tuple[str, ...], *, request_id: str | None = None) -> None:
        """Invoke an executor once."""
        event = {"source": "tick", "queues": list(queues)}
        try:
            report = one.invoke("execute", event, remaining=LIFE, request_id=request_id)
        except RefusedError as error:
            self._course.complain(f"an executor raised {error}")
            return
        numbers = {name: count for name, count in report.items() if isinstance(count, int)}
        self._course.count(invocations=1, turned_away="skipped" in report, **numbers)

    def execute_and_die(
        self, queues: tuple[str, ...], deaths: list[float], reclaim_context: Container, *, every: float
    ) -> None:
        """Tick an executor that is killed at the moments *deaths*, and start another; every other death is reported."""
        for number, death in enumerate([*deaths, None]):
            with container("execute", variables=self._variables) as one:
                if death is not None:
                    threading.Thread(target=self._kill_at_work, args=(one, death), daemon=True).start()
                request_id = self._until_death(one, queues, every=every)
            if request_id is None:
                return
            self._buried(request_id, reclaim_context, is_reported=number % 2 == 0)

    def keep(self, function: str, one: Container, *, every: float) -> None:
        """Tick reclaim, or archive."""
        for _ in self._course.ticks(every):
            self.look_after(function, one)

    def look_after(self, function: str, one: Container) -> None:
        """Invoke reclaim, or archive, once."""
        report = self._asked(one, function, {})
        self._course.count(**{f"{function} {name}": count for name, count in report.items() if isinstance(count, int)})

    def pause(self, one: Container, *, times: int, every: float, pause_sec: float) -> None:
        """Pause a queue for *pause_sec*, so many *times*; once all is calm, it is resumed."""
        for _ in range(times):
            self._asked(one, "operate", {"op": "queue.pause", "queue": PAUSED})
            self._course.count(pauses=1)
            self._course.calm.wait(pause_sec)
            self._asked(one, "operate", {"op": "queue.resume", "queue": PAUSED})
            self._course.calm.wait(every - pause_sec)

    def declare(self, one: Container, queue: str) -> None:
        """Open *queue* to HTTP."""
        self._asked(one, "operate", {"op": "queue.declare", "queue": queue})

    def _kill_at_work(self, one: Container, death: float) -> None:
        """Kill it once *death* has come and it holds a lease; it may hold none for a while."""
        owners = {"$gte": _owner(one.pid), "$lt": _owner(one.pid) + "~"}
        is_at_work = {"status": "processing", "lease.owner": owners}
        if self._course.over.wait(max(death - time.monotonic(), 0)):
            return
        until = time.monotonic() + WORK_WITHIN_SEC
        while not self._tasks.find_one(is_at_work, {"_id": 1}) and time.monotonic() < until:
            time.sleep(0.002)
        one.kill()

    def _until_death(self, one: Container, queues: tuple[str, ...], *, every: float) -> str | None:
        """Return the invocation that the executor died in; ``None`` where it is all over before."""
        for number, moment in enumerate(self._course.ticks(every)):
            request_id = f"{_owner(one.pid)}{number}-{moment}"
            try:
                self.tick(one, queues, request_id=request_id)
            except DiedError:
                return request_id
        return None

    def _buried(self, owner: str, reclaim_context: Container, *, is_reported: bool) -> None:
        held = [str(one["_id"]) for one in self._tasks.find({"lease.owner": owner, "status": "processing"}, {"_id": 1})]
        self._course.held.update(held)
        self._course.count(deaths=1, held=len(held))
        if is_reported:
            death = sample("execute_failed")
            death["requestContext"]["requestId"] = owner
            self._course.count(reported=1)
            self._asked(reclaim_context, "reclaim", death)

    def _asked(self, one: Container, function: str, event: dict[str, Any]) -> dict[str, Any]:
        try:
            report = one.invoke(function, event, remaining=HOUSEKEEPING)
        except RefusedError as error:
            self._course.complain(f"{function} raised {error}")
            return {}
        self._course.count(**{f"{function} invocations": 1})
        return report


def _owner(pid: int) -> str:
    """Return what the ids of the invocations of a process begin with."""
    return f"mortal-{pid}-"
