"""How fast pieces are enqueued: first as fast as they are executed, which says how fast that is; then at a share."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from tools.chaos.load.front import Front
from tools.chaos.load.speed import Calibration
from tools.chaos.load.work import Piece

SHARE: Final = 0.4
"""Of what the machine sustains: what others do on it meanwhile makes no backlog."""

WAITING: Final = 300
"""So many due tasks keep every executor busy."""

CHUNK: Final = 60
MOST: Final = 100
"""So many tasks at once HTTP takes."""

PACE_SEC: Final = 0.05


def calibrate(front: Front, pieces: Iterator[Piece], *, waiting: Callable[[], int], seconds: float) -> Calibration:
    """Enqueue for *seconds* as much as gets done; return how many tasks a second were done.

    *waiting* counts those that are due. The first fifth of the time is to get going.
    """
    began = time.monotonic()
    since, count, backlog = began, 0, 0
    is_counting = False
    while (at := time.monotonic()) < began + seconds:
        due = waiting()
        if not is_counting and at > began + seconds / 5:
            is_counting, since, count, backlog = True, at, 0, due
        if due < WAITING:
            front.send(list(itertools.islice(pieces, CHUNK)))
            count += CHUNK
        else:
            time.sleep(0.01)
    done = max(count - (waiting() - backlog), 1)
    ended = time.monotonic()
    return Calibration(rate=done / (ended - since), began_at=since, ended_at=ended)


def at_rate(front: Front, pieces: Iterator[Piece], rate: float, *, seconds: float, over: threading.Event) -> None:
    """Enqueue *rate* tasks a second for *seconds*, or until it is *over*."""
    began, sent = time.monotonic(), 0
    while (passed := time.monotonic() - began) < seconds and not over.is_set():
        count = min(int(rate * passed) - sent, MOST)
        if count > 0:
            front.send(list(itertools.islice(pieces, count)))
            sent += count
        over.wait(PACE_SEC)
