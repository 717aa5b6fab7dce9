"""Speed that the machine gives to the processes of a load, and the work that it was too slow for."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from tools.chaos.load.growth import Values

MEASURE_EVERY_SEC: Final = 0.5

USABLE_SHARE: Final = 0.8
"""Part of the capacity that can be used before tasks wait for long."""

MAX_BACKLOG_SEC: Final = 0.2
"""Seconds of work; a load of `SHARE` brings as many in half a second."""

CpuTimes: TypeAlias = dict[Path, tuple[int, int]]
"""Nanoseconds that a thread has run, and has waited for a CPU, by its folder in ``/proc``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Rate that was sustained, in tasks a second, between two moments of the monotonic clock."""

    rate: float
    began_at: float
    ended_at: float


def read_cpu_times(*pids: int) -> CpuTimes:
    """Return the times of all threads of the processes *pids* and of their descendants; none but on Linux."""
    times: CpuTimes = {}
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").glob("*"):
            with suppress(OSError):  # it has ended
                ran, waited, _ = (thread / "schedstat").read_text(encoding="ascii").split()
                times[thread] = (int(ran), int(waited))
                times |= read_cpu_times(*map(int, (thread / "children").read_text(encoding="ascii").split()))
    return times


def compute_speed(before: CpuTimes, after: CpuTimes) -> float | None:
    """Return which part of the time threads ran in which they could run; ``None`` if none could.

    Threads hand work on to each other, so half of it means half as many tasks. During the calibration the product
    itself keeps every CPU busy: it does not get slower than that by using more CPU. A probe of ours would not do: each
    container has a session of its own, which the kernel may schedule as a group.
    """
    changes = [(times, before[thread]) for thread, times in after.items() if thread in before]
    ran = sum(times[0] - earlier[0] for times, earlier in changes)
    waited = sum(times[1] - earlier[1] for times, earlier in changes)
    return ran / (ran + waited) if ran + waited > 0 else None


def relate_speeds(measured: Values, calibration: Calibration, *, began_at: float) -> Values:
    """Return the speeds of the load that *began_at*, where 1 is the mean speed of *calibration*.

    The result is empty if nothing was measured during the calibration.
    """
    during = [speed for at, speed in measured if calibration.began_at <= at <= calibration.ended_at]
    if not during:
        return ()
    mean = statistics.fmean(during)
    return [(at - began_at, speed / mean) for at, speed in measured if at >= began_at]


def compute_backlogs(speeds: Values, *, needed: float, extra: float = 0.0, held_back_sec: float = 0.0) -> Values:
    """Return the backlog of a faultless queue at each moment, in seconds of the work of the calibrated machine.

    The load needs the share *needed* of what was sustained. After a pause it needs *extra* more, until the work that
    the pause held back is done. At half the speed half as many tasks get done. Each speed holds since the one before.
    """
    backlogs: list[tuple[float, float]] = []
    steady = backlog = previous_at = 0.0
    for at, speed in speeds:
        seconds, previous_at = at - previous_at, at
        steady = max(steady + (needed - USABLE_SHARE * speed) * seconds, 0.0)
        backlog = max(backlog + (needed + extra - USABLE_SHARE * speed) * seconds, 0.0)
        backlog = min(backlog, steady + held_back_sec)
        backlogs.append((at, backlog))
    return backlogs


def has_kept_pace(backlogs: Values, *, since: float, until: float) -> bool:
    """Tell whether the machine was measured and fast enough between two moments of the load."""
    if not backlogs:
        return False
    return all(backlog <= MAX_BACKLOG_SEC for at, backlog in backlogs if since <= at <= until)


def compute_slowdown(speeds: Values, backlogs: Values) -> float | None:
    """Return how many times slower than calibrated the machine was while it fell behind; ``None`` if it never did."""
    rising = [
        speed
        for (_, speed), (_, before), (_, backlog) in zip(speeds[1:], backlogs, backlogs[1:], strict=False)
        if before < backlog > MAX_BACKLOG_SEC
    ]
    return 1 / statistics.fmean(rising) if rising else None


def estimate_catch_up_sec(speeds: Values, *, needed: float) -> float:
    """Return the seconds that the backlog at the end takes on a machine as fast as lately."""
    if not speeds:
        return 0.0
    [*_, (_, backlog)] = compute_backlogs(speeds, needed=needed)
    lately = statistics.fmean(speed for _, speed in speeds[-len(speeds) // 3 :])
    return backlog / (USABLE_SHARE * lately)


def mean_by_third(speeds: Values, *, whole: float) -> Iterator[float]:
    """Yield the mean speed of each third of *whole* seconds that has any."""
    for third in range(3):
        during = [speed for at, speed in speeds if third <= 3 * at / whole < third + 1]
        if during:
            yield statistics.fmean(during)
