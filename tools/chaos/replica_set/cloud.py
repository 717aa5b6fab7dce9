"""What AWS does around the functions: schedules, failure records, events that are delivered twice."""

from __future__ import annotations

import queue
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, assert_never

from tests.handlers.calls import sample
from tools.chaos.replica_set.boxes import Answer, Box, Died, Place
from tools.chaos.replica_set.container import Raised, Returned

EXECUTORS: Final = 4
RECLAIM_EVERY_SEC: Final = 2.0
ARCHIVE_EVERY_SEC: Final = 3.0
LONGEST: Final = timedelta(seconds=40)
"""Of reclaim and archive; more than the margin that archive keeps."""

TWICE: Final = 0.15
"""How many of the ticks come twice at once,"""

SAME_ID: Final = 0.3
"""how many of those as one invocation: Lambda may deliver an event twice under one request id,"""

UNTOLD: Final = 0.15
"""and how many deaths nobody hears of, so that the lease has to tell."""


class Cloud:
    """Four executors that are invoked for ever, and reclaim and archive, each on its schedule.

    *life* is the timeout of an executor. From *tells_all_from* on (monotonic) reclaim hears of every death, again and
    again until it has taken note; what a dead one had stamped when it died may take effect later still, and then its
    lease has to tell. Once ``is_calm``, every tick comes once.
    """

    def __init__(self, place: Place, *, life: timedelta, tells_all_from: float, rng: random.Random) -> None:
        self._life = life
        self._tells_all_from = tells_all_from
        self._rng = rng
        self._over = threading.Event()
        self._twins: queue.Queue[tuple[Any, str]] = queue.Queue()
        self._deaths: queue.Queue[str] = queue.Queue()
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self.dead: set[str] = set()
        self.is_calm = False
        self.executors = [Box("execute", place) for _ in range(EXECUTORS)]
        self.reclaimer, self.archiver = Box("reclaim", place), Box("archive", place)
        work: list[Callable[[], None]] = [lambda box=box: self._execute(box) for box in self.executors]  # type: ignore[misc]
        self._threads = [threading.Thread(target=one) for one in (*work, self._reclaim, self._archive)]

    def start(self) -> None:
        """Start what runs until `stop`."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Return when nothing of it is left."""
        self._over.set()
        boxes = [*self.executors, self.reclaimer, self.archiver]
        while any(thread.is_alive() for thread in self._threads):
            for box in boxes:
                box.kill()
            time.sleep(0.05)
        for box in boxes:
            box.close()

    @property
    def counts(self) -> Counter[str]:
        """What invocations came to, and what they counted: ``execute.unknown``, ``reclaim.raised``..."""
        with self._lock:
            return Counter(self._counts)

    def tell(self, request_id: str) -> None:
        """Let reclaim hear, perhaps once more, that an executor has died."""
        self._deaths.put(request_id)

    def _execute(self, box: Box) -> None:
        while not self._over.is_set():
            event, request_id = self._tick()
            answer = box.invoke(event, request_id=request_id, within=self._life)
            self._note("execute", answer)
            if not isinstance(answer, Returned):
                self.dead.add(request_id)
                if self._tells_all() or self._rng.random() >= UNTOLD:
                    self.tell(request_id)
            self._over.wait(0.1 + 0.2 * self._rng.random())

    def _tick(self) -> tuple[Any, str]:
        try:
            return self._twins.get_nowait()
        except queue.Empty:
            tick = {"source": "tick"}, str(uuid.uuid4())
        if not self.is_calm and self._rng.random() < TWICE:
            is_same = self._rng.random() < SAME_ID
            self._twins.put(tick if is_same else (tick[0], str(uuid.uuid4())))
            self._count("ticks twice at once" + (" under one id" if is_same else ""))
        return tick

    def _reclaim(self) -> None:
        while not self._over.is_set():
            dead: str | None = None
            try:
                dead = self._deaths.get(timeout=RECLAIM_EVERY_SEC)
                event: Any = _failure(dead)
            except queue.Empty:
                event = {}
            answer = self.reclaimer.invoke(event, request_id=str(uuid.uuid4()), within=LONGEST)
            self._note("reclaim", answer)
            if dead is not None and self._tells_all() and not isinstance(answer, Returned):
                self.tell(dead)

    def _tells_all(self) -> bool:
        return time.monotonic() >= self._tells_all_from

    def _archive(self) -> None:
        while not self._over.wait(ARCHIVE_EVERY_SEC):
            life = timedelta(seconds=60)
            self._note("archive", self.archiver.invoke({}, request_id=str(uuid.uuid4()), within=life))

    def _note(self, function: str, answer: Answer) -> None:
        with self._lock:
            self._counts.update({f"{function}.{name}": count for name, count in _counted(answer).items()})
            self._counts[function] += 1

    def _count(self, name: str) -> None:
        with self._lock:
            self._counts[name] += 1


def _counted(answer: Answer) -> dict[str, int]:
    match answer:
        case Returned(answer=report):
            counts = {name: count for name, count in report.items() if isinstance(count, int)}
            return counts | ({"turned away": 1} if report.get("skipped") == "executor_slots" else {})
        case Raised(kind=kind):
            return {f"raised {kind}": 1}
        case Died(how=how):
            return {f"died ({how})": 1}
        case _:
            assert_never(answer)


def _failure(request_id: str) -> dict[str, Any]:
    event = sample("execute_failed")
    return event | {"requestContext": event["requestContext"] | {"requestId": request_id}}
