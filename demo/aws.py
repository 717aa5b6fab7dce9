"""What AWS does in a deployment: schedules, a limit on executors, and the report of a death."""

from __future__ import annotations

import time
from collections import Counter, deque
from typing import Any

from demo.executors import Ended, Executor, wait_for_any
from demo.functions import Context, death_of, event, handler

TICK_SEC = 1.0
MAX_EXECUTORS = 3
PATIENCE_SEC = 20.0
NEWS = 6


class Aws:
    """Invokes `execute`, `reclaim` and `archive` each second instead of each minute or five.

    Attributes:
        counts: ``started`` executors, by how they ended, and what `reclaim` and `archive` report.
        news: The latest happenings, oldest first.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.news: deque[str] = deque(maxlen=NEWS)
        self._started = time.monotonic()
        self._next_tick = self._started + TICK_SEC
        self._executors: list[Executor] = []
        self._reclaim = handler("reclaim")
        self._archive = handler("archive")

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started

    @property
    def running(self) -> int:
        """How many executors are at work."""
        return len(self._executors)

    def deploy(self) -> None:
        """Do what has to come before the first enqueue: `reclaim` makes the indexes, `execute` declares its tasks."""
        self.reclaim(event("reclaim"))
        self.execute()
        self.drain(until_sec=PATIENCE_SEC)

    def drain(self, *, until_sec: float) -> None:
        """Start nothing more, and wait until what runs has ended or *until_sec* have elapsed."""
        while self._executors and self.elapsed < until_sec:
            self._watch(wait_sec=until_sec - self.elapsed)

    def step(self, *, wait_sec: float) -> None:
        """Do what is due now; wait for at most *wait_sec* for something to happen."""
        if time.monotonic() >= self._next_tick:
            self._next_tick = time.monotonic() + TICK_SEC
            self.execute()
            self.reclaim(event("reclaim"))
            self.archive()
        self._watch(wait_sec=min(wait_sec, self._next_tick - time.monotonic()))

    def execute(self) -> None:
        """Start an executor, unless as many are at work as there may be."""
        if len(self._executors) < MAX_EXECUTORS:
            self._executors.append(Executor(event("tick")))
            self.counts["started"] += 1

    def reclaim(self, cause: dict[str, Any]) -> int:
        """Invoke `reclaim`; return how many tasks it took back."""
        report = self._reclaim(cause, Context(timeout_sec=50))
        taken_back = int(report["reclaimed"] + report["failed"])
        self.counts["reclaimed"] += taken_back
        return taken_back

    def archive(self) -> None:
        """Invoke `archive`."""
        self.counts["moved"] += self._archive(event("archive"), Context(timeout_sec=240))["moved"]

    def stop(self) -> None:
        """Kill what still runs."""
        for executor in self._executors:
            executor.kill()
        self._executors.clear()

    def _watch(self, *, wait_sec: float) -> None:
        wait_for_any(self._executors, timeout_sec=wait_sec)
        for executor in list(self._executors):
            ended = executor.ended()
            if ended is not None:
                self._executors.remove(executor)
                self._see_off(ended)

    def _see_off(self, ended: Ended) -> None:
        self.counts[ended.how] += 1
        if ended.how == "returned":
            return
        taken_back = self.reclaim(death_of(ended.request_id))
        what = {
            "killed": f"was killed ({ended.detail})",
            "recycled": "ended itself (a function would not stop)",
            "raised": f"failed with {ended.detail}",
        }[ended.how]
        tasks = "1 task" if taken_back == 1 else f"{taken_back} tasks"
        self.news.append(f"{self.elapsed:5.1f} s  executor {ended.request_id[:8]} {what}; reclaim took back {tasks}")
