"""Copy dead letters to S3: put the object first, mark the letter last, and run again after any stop."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from tidemill.clock import Clock
from tidemill.dead_letters import exporting
from tidemill.export.putting import Putter, Tried
from tidemill.export.values import Exported, Put
from tidemill.store import Tasks, gauges

CHUNK: Final = 500
PASS: Final = 5_000
"""So many letters are read by one cursor, which lives through no election and only so long; the next begins anew."""

THREADS: Final = 16


def export(
    dead: Tasks,
    put: Put,
    *,
    clock: Clock,
    until: float,
    monotonic: Callable[[], float] = time.monotonic,
    limit: int | None = None,
    threads: int = THREADS,
) -> Exported:
    """Export dead letters, in the order of `unexported`: all, or *limit*, as far as it gets until *until* (monotonic).

    Puts that are under way then are waited for. Stopped between put and mark, a letter is put once more by the next
    run: the same bytes under the same key. Two at once do the same work twice, and no harm.
    """
    done = Exported()
    with Putter(put, threads=threads, until=until, monotonic=monotonic).open() as putter:
        while not putter.is_over:
            room = PASS if limit is None else min(PASS, limit - done.exported - done.refused)
            passed = _pass(dead, putter, clock=clock, limit=room) if room > 0 else Exported()
            if not passed.exported + passed.refused:
                break
            done = _sum(done, passed)
    left = exporting.count_unexported(dead, limit=gauges.MANY)
    return replace(done, failed=putter.failed, left=left, trouble=putter.trouble if left else None)


def _pass(dead: Tasks, putter: Putter, *, clock: Clock, limit: int) -> Exported:
    """Export up to *limit* letters; what this changed nothing of is in no count."""
    done = Exported()
    putter.trouble = None  # what failed before is tried again, first of all
    for letters in exporting.unexported(dead, limit=limit, batch=CHUNK, now=clock.now()):
        done = _sum(done, _noted(dead, putter.all(letters), clock=clock))
        if putter.is_in_doubt and not putter.is_over:
            return _sum(done, _elsewhere(dead, putter, clock=clock, limit=limit - done.exported - done.refused))
        if putter.is_over:
            break
    return done


def _elsewhere(dead: Tasks, putter: Putter, *, clock: Clock, limit: int) -> Exported:
    """Try the newest letters, one for each thread, which takes no longer than a single put.

    Where one goes through, those that failed are to blame, and put off; else the bucket is, and given up. So it is at
    once where all of them failed in a way that no letter is to blame for.
    """
    failed = putter.take_failed()
    if all(error.blame == "bucket" for _, error in failed):
        putter.give_up(failed[-1][1].code)
        return Exported()
    few = min(putter.threads, limit)
    newest = exporting.unexported(dead, limit=few, batch=few, now=clock.now(), newest_first=True)
    tried = putter.all(next(newest, []))
    if tried.put:
        tried.refused.extend((letter, error.code) for letter, error in failed)
    else:
        putter.give_up(failed[-1][1].code)
    return _noted(dead, tried, clock=clock)


def _noted(dead: Tasks, tried: Tried, *, clock: Clock) -> Exported:
    marked = exporting.mark_exported(dead, tried.put, now=clock.now())
    put_off = exporting.put_off(dead, tried.refused, now=clock.now())
    return Exported(exported=marked.changed, refused=put_off.changed)


def _sum(one: Exported, other: Exported) -> Exported:
    return Exported(exported=one.exported + other.exported, refused=one.refused + other.refused)
