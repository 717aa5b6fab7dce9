"""Whether retries starve fresh tasks: what the runs of a scenario show, interval by interval."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from tidemill.model import Retried, Succeeded
from tidemill.simulation.engine import EPOCH, SimulatedRun
from tidemill.simulation.scenario import Scenario, play

if TYPE_CHECKING:
    from random import Random


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """What happened from *starts* to *ends*, counted from the beginning.

    Attributes:
        starts: Its first moment.
        ends: The moment after it.
        wave: Tasks of waves that came in.
        retries_due: Retries that are due and wait for a slot, at the end.
        retries_in_backoff: Retries that are not due yet, at the end.
        retry_slots: The part of the slots that retries held, on average.
        fresh_per_sec: First runs that ended per second, in failure too.
        failed_per_sec: Those of them that failed.
        fresh_waiting: Fresh tasks that are due and wait for a slot, at the end.
        fresh_always_waited: There was such a task at every moment, and for the length of a run before: as long
            as it takes until slots that were given away in a lull come back.
    """

    starts: timedelta
    ends: timedelta
    wave: int
    retries_due: int
    retries_in_backoff: int
    retry_slots: float
    fresh_per_sec: float
    failed_per_sec: float
    fresh_waiting: int
    fresh_always_waited: bool

    @property
    def retry_pool(self) -> int:
        """All tasks that wait to be tried again."""
        return self.retries_due + self.retries_in_backoff


@dataclass(frozen=True, slots=True, kw_only=True)
class Starvation:
    """The course of a scenario, and what it comes to.

    Attributes:
        scenario: What was played.
        intervals: Its course, without gaps. Work that is left at its end is done after the last of them.
        retries: Runs that were retries.
        largest_pool: The most tasks that ever waited to be tried again, due or not.
        pool_empty_after: When the last of them got its slot.
        least_fresh_per_sec: The lowest ``fresh_per_sec`` of the intervals in which fresh tasks always waited; None
            where there is no such interval.
    """

    scenario: Scenario
    intervals: tuple[Interval, ...]
    retries: int
    largest_pool: int
    pool_empty_after: timedelta
    least_fresh_per_sec: float | None


def starvation(scenario: Scenario | None = None, *, rng: Random) -> Starvation:
    """Play *scenario*, the default one where it is None, with the draws of *rng*."""
    scenario = scenario or Scenario()
    return measured(play(scenario, rng=rng), scenario)


def measured(runs: Sequence[SimulatedRun], scenario: Scenario) -> Starvation:
    """Return what *runs* show."""
    log = _Log(runs)
    count = scenario.duration // scenario.interval
    intervals = tuple(_interval(log, scenario, starts=scenario.interval * number) for number in range(count))
    return Starvation(
        scenario=scenario,
        intervals=intervals,
        retries=len(log.retries),
        largest_pool=max((log.pool(at) for at in log.put_off), default=0),
        pool_empty_after=max((at - EPOCH for at in log.retry_started), default=timedelta(0)),
        least_fresh_per_sec=min((one.fresh_per_sec for one in intervals if one.fresh_always_waited), default=None),
    )


class _Log:
    """The runs by what is asked of them; all lists of times are sorted."""

    def __init__(self, runs: Sequence[SimulatedRun]) -> None:
        fresh = [run for run in runs if run.task.lane == "fresh"]
        self.retries = [run for run in runs if run.task.lane == "retry"]
        self.put_off = sorted(run.ended_at for run in runs if isinstance(run.outcome, Retried))
        self.retry_due = sorted(run.task.due_at for run in self.retries)
        self.retry_started = sorted(run.started_at for run in self.retries)
        self.fresh_due = sorted(run.task.due_at for run in fresh)
        self.fresh_started = sorted(run.started_at for run in fresh)
        self.fresh_ended = sorted(run.ended_at for run in fresh)
        self.fresh_failed = sorted(run.ended_at for run in fresh if not isinstance(run.outcome, Succeeded))
        self.fresh_waits = _joined((run.task.due_at, run.started_at) for run in fresh)

    def pool(self, at: datetime) -> int:
        """Return how many tasks wait to be tried again once everything has happened that happens *at* that time."""
        return bisect_right(self.put_off, at) - bisect_right(self.retry_started, at)


def _interval(log: _Log, scenario: Scenario, *, starts: timedelta) -> Interval:
    ends = starts + scenario.interval
    since, until = EPOCH + starts, EPOCH + ends
    seconds = scenario.interval.total_seconds()
    return Interval(
        starts=starts,
        ends=ends,
        wave=sum(wave.tasks for wave in scenario.waves if starts <= wave.at < ends),
        retries_due=bisect_left(log.retry_due, until) - bisect_left(log.retry_started, until),
        retries_in_backoff=bisect_left(log.put_off, until) - bisect_left(log.retry_due, until),
        retry_slots=_held(log.retries, since, until) / (scenario.slots * scenario.interval),
        fresh_per_sec=_within(log.fresh_ended, since, until) / seconds,
        failed_per_sec=_within(log.fresh_failed, since, until) / seconds,
        fresh_waiting=bisect_left(log.fresh_due, until) - bisect_left(log.fresh_started, until),
        fresh_always_waited=any(
            first <= since - scenario.run_time and until <= last for first, last in log.fresh_waits
        ),
    )


def _held(runs: Iterable[SimulatedRun], since: datetime, until: datetime) -> timedelta:
    nothing = timedelta(0)
    held = (min(run.ended_at, until) - max(run.started_at, since) for run in runs)
    return sum((max(span, nothing) for span in held), nothing)


def _within(times: Sequence[datetime], since: datetime, until: datetime) -> int:
    return bisect_left(times, until) - bisect_left(times, since)


def _joined(spans: Iterable[tuple[datetime, datetime]]) -> list[tuple[datetime, datetime]]:
    """Return the moments that *spans* cover, as spans that do not touch."""
    joined: list[tuple[datetime, datetime]] = []
    for first, last in sorted(spans):
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], last))
        elif first < last:
            joined.append((first, last))
    return joined
