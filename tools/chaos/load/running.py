"""One load from its first container to its last task."""

from __future__ import annotations

import os
import random
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from bson import ObjectId
from pymongo import MongoClient
from pymongo.database import Database

from tests.databases import make
from tidemill import TidemillError, indexes
from tidemill.clock import ServerClock
from tidemill.documents import TASKS
from tidemill.executor.lifetime import TIMING
from tidemill.indexes import Retention
from tidemill.store import counts
from tidemill.store.connection import open_tasks
from tools.chaos import invariants
from tools.chaos.found import Found
from tools.chaos.load.container import Container, DiedError, Reading, RefusedError, container
from tools.chaos.load.enqueueing import SHARE, at_rate, calibrate
from tools.chaos.load.front import Front
from tools.chaos.load.growth import Values
from tools.chaos.load.judging import Evidence, growths, notes, told
from tools.chaos.load.machinery import MAX_TASK_SEC, Course, Machinery
from tools.chaos.load.plan import Plan
from tools.chaos.load.samples import Look, Sample
from tools.chaos.load.speed import (
    MEASURE_EVERY_SEC,
    Calibration,
    compute_speed,
    estimate_catch_up_sec,
    read_cpu_times,
    relate_speeds,
)
from tools.chaos.load.threads import Start, threads
from tools.chaos.load.traces import read
from tools.chaos.load.verdict import Left, verdict
from tools.chaos.load.work import KINDS, QUEUES, pieces

RETENTION: Final = Retention(tasks=timedelta(seconds=3))
"""So short that what is done is removed while others are enqueued."""

LOOKS: Final = 90
READINGS: Final = 15
"""Of each container."""

LOOK_SEC: Final = 0.1
BACKLOG_SEC: Final = 8.0
MAX_CATCH_UP_SEC: Final = 200.0
"""Beside the time for calming: the section is ended before long, see `tools.chaos.alone`."""

RECLAIM_SEC: Final = 0.5
ARCHIVE_SEC: Final = 1.0
DEATHS_WITHIN: Final = 0.8
"""Of the load: what the last of the dead held is taken back before the end."""

SETTINGS: Final[Mapping[str, str]] = {
    "TASK_PACKAGE": "mixed_tasks",
    "TASK_TIMEOUT_SEC": str(MAX_TASK_SEC),
    "MAX_TASK_TIMEOUT_SEC": str(MAX_TASK_SEC),
    "MAX_EXECUTORS": "8",
    "LINGER_SEC": "0",
}


def run(uri: str, plan: Plan, *, seed: int) -> Found:
    """Return what became of all tasks, and what has grown."""
    with (
        tempfile.TemporaryDirectory() as folder,
        MongoClient[dict[str, Any]](uri, tz_aware=True) as client,
    ):
        traces = Path(folder, "traces")
        traces.touch()
        return _Load(make(client), plan, traces, seed=seed).found(uri)


class _Load:
    def __init__(self, db: Database[Any], plan: Plan, traces: Path, *, seed: int) -> None:
        self._db = db
        self._plan = plan
        self._traces = traces
        self._rng = random.Random(seed)
        self._pieces = pieces(random.Random(seed), run=str(seed))
        self._course = Course()
        self._clock = ServerClock(db)
        self._samples: list[Sample] = []
        self._readings: defaultdict[str, list[tuple[float, Reading]]] = defaultdict(list)
        self._measured: list[tuple[float, float]] = []
        self._calibration = Calibration(rate=0.0, began_at=0.0, ended_at=0.0)
        self._began = self._calmed = 0.0

    def found(self, uri: str) -> Found:
        """Go through all phases, and judge."""
        try:
            front = self._gone_through(uri)
        except (DiedError, RefusedError, TidemillError) as error:
            return Found(broken=[*self._course.broken, f"it was cut short by {type(error).__name__}: {error}"])
        return self._judged(front)

    def _gone_through(self, uri: str) -> Front:
        plan = self._plan
        where = {"MONGODB_URI": uri, "MONGODB_DATABASE": self._db.name, "LOAD_TRACES": str(self._traces)}
        variables = {**SETTINGS, **where}
        machinery = Machinery(self._db, self._course, variables)
        wanted = {**dict.fromkeys(plan.executors, ("execute",)), **plan.others}
        with ExitStack() as stack:
            made = {one: stack.enter_context(container(*wanted[one], variables=variables)) for one in wanted}
            serving = {function: made[name] for name, functions in plan.others.items() for function in functions}
            self._open(machinery, made[next(iter(plan.executors))], serving)
            front = Front(
                self._db, serving["enqueue"], rng=self._rng, keys_kept_sec=RETENTION.tasks.total_seconds() - 1
            )
            with threads(self._course) as start:
                for name, queues in plan.executors.items():
                    start(machinery.execute, made[name], queues, every=plan.tick_sec)
                start(machinery.keep, "reclaim", serving["reclaim"], every=RECLAIM_SEC)
                start(machinery.keep, "archive", serving["archive"], every=ARCHIVE_SEC)
                front.send_in_every_way(self._pieces)
                start(self._measure)
                self._calibration = calibrate(front, self._pieces, waiting=self._waiting, seconds=plan.calibrating)
                self._until(lambda: not self._waiting(), seconds=BACKLOG_SEC)
                self._began = time.monotonic()
                sending = start(at_rate, front, self._pieces, self._rate(), seconds=plan.loaded, over=self._course.calm)
                self._attack(start, machinery, serving)
                for name, one in made.items():
                    start(self._read, name, one, every=plan.loaded / READINGS)
                self._watch()
                sending.result()
                self._calm()
        return front

    def _open(self, machinery: Machinery, executor: Container, serving: Mapping[str, Container]) -> None:
        """Start cold: functions and queues are declared, and the retention is what no deployment may choose."""
        machinery.tick(executor, QUEUES)
        for queue in QUEUES:
            machinery.declare(serving["operate"], queue)
        machinery.look_after("reclaim", serving["reclaim"])
        indexes.create(self._db, retention=RETENTION)

    def _attack(self, start: Start, machinery: Machinery, serving: Mapping[str, Container]) -> None:
        """Pause a queue now and then, and kill an executor."""
        plan, began = self._plan, self._began
        start(machinery.pause, serving["operate"], times=plan.pauses, every=plan.cycle_sec, pause_sec=plan.pause_sec)
        if plan.mortal:
            span = plan.loaded * DEATHS_WITHIN / plan.mortal
            deaths = [began + (number + self._rng.random()) * span for number in range(plan.mortal)]
            start(machinery.execute_and_die, QUEUES, deaths, serving["reclaim"], every=plan.tick_sec)

    def _measure(self) -> None:
        """Measure the speed of this process, of its containers and of the server, from the calibration to the end."""
        pids = os.getpid(), self._db.client.admin.command("serverStatus")["pid"]
        before = read_cpu_times(*pids)
        for at in self._course.ticks(MEASURE_EVERY_SEC):
            after = read_cpu_times(*pids)
            if (speed := compute_speed(before, after)) is not None:
                self._measured.append((at, speed))
            before = after

    def _rate(self) -> float:
        return SHARE * self._calibration.rate

    def _speeds(self) -> Values:
        """Return the speeds measured under load, relative to the calibration."""
        speeds = relate_speeds(self._measured, self._calibration, began_at=self._began)
        return [(at, speed) for at, speed in speeds if at <= self._plan.loaded]

    def _watch(self) -> None:
        """Look at the server and at what Tidemill keeps in it while the load lasts."""
        look = Look(self._db, self._clock)
        while (passed := time.monotonic() - self._began) < self._plan.loaded and not self._course.over.is_set():
            self._samples.append(look.sample(at=passed))
            self._course.over.wait(self._plan.loaded / LOOKS)
        self._course.calm.set()

    def _read(self, name: str, one: Container, *, every: float) -> None:
        """Read a container while the load lasts; each reading waits for the end of an invocation."""
        for at in self._course.ticks(every):
            if self._course.calm.is_set():
                return
            reading = one.read()
            self._readings[name].append((at - self._began, reading))

    def _calm(self) -> None:
        """Let all tasks be done: first those that are due, then those that executors have postponed.

        There is more time on a machine that was too slow for the load. A task is postponed if its process does not
        start in time.
        """
        catch_up_sec = min(estimate_catch_up_sec(self._speeds(), needed=SHARE), MAX_CATCH_UP_SEC)
        is_left = {"status": {"$in": ["pending", "processing", "failed"]}}
        if self._until(lambda: not self._waiting(), seconds=self._plan.calming + catch_up_sec):
            self._until(
                lambda: not self._db[TASKS].find_one(is_left, {"_id": 1}),
                seconds=self._plan.calming + TIMING.longest_postpone_sec,
            )
        self._calmed = time.monotonic()

    def _until(self, happens: Callable[[], bool], *, seconds: float) -> bool:
        """Wait for what *happens*; return false if it does not within *seconds*, or all is over before."""
        until = time.monotonic() + seconds
        while not happens():
            if time.monotonic() >= until or self._course.over.wait(LOOK_SEC):
                return False
        return True

    def _waiting(self) -> int:
        tasks, now = open_tasks(self._db), self._clock.now()
        return sum(counts.count_due_anywhere(tasks, lane, now=now) for lane in ("fresh", "retry"))

    def _judged(self, front: Front) -> Found:
        left = self._left()
        with self._traces.open(encoding="ascii") as lines:
            traces = read(lines)
        found = verdict(front.accepted, traces, left, held=self._course.held)
        dead = [ObjectId(one) for one, piece in front.accepted.items() if KINDS[piece.kind].ends == "dead"]
        found.broken += invariants.broken(self._db, accepted=dead, now=self._clock.now(), at_rest=True)
        found.broken += [*front.broken, *self._course.broken]
        evidence = Evidence(
            plan=self._plan,
            course=self._course,
            samples=self._samples,
            readings=self._readings,
            speeds=self._speeds(),
            rate=self._rate(),
            seconds_to_calm=self._calmed - self._began - self._plan.loaded,
            runs=traces.began.total(),
        )
        grown = growths(evidence)
        found.broken += [f"grew: {one.told()}" for one in grown if not one.is_none]
        found.notes += [*notes(evidence), *told(grown)]
        found.faults.update(evidence.faults())
        return found

    def _left(self) -> Left:
        held = invariants.holdings(self._db)
        return Left(
            status={str(one): task["status"] for one, task in held.tasks.items()},
            letters={str(one): letters for one, letters in held.letters.items()},
        )
