"""Two simulations: the time that a retry saves by going first, and fresh tasks beside waves of tasks that fail."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

from tidemill.model import Backoff, Retried, RetryPolicy, Selection, Succeeded
from tidemill.policy.retry import DEFAULT
from tidemill.policy.scheduling import DEFAULT_RETRY_SHARE, time_saved
from tidemill.simulation.engine import EPOCH, Conditions, SimulatedRun, SimulatedTask, simulate

if TYPE_CHECKING:
    from random import Random

TASK_IDS: Final = ("A-q1", "A-q2", "A-q3", "B-q1", "B-q2", "B-q3")
FAILING_TASK: Final = "A-q1"
RUN_TIME: Final = timedelta(seconds=30)
POLICY: Final = RetryPolicy(backoff=Backoff(strategy="fixed", base_sec=2, jitter="none", max_sec=2))


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One run on the worker; times count from the start of the simulation."""

    task: str
    starts: timedelta
    ends: timedelta
    is_retry: bool
    fails: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Every run under one selection, in order."""

    selection: Selection
    retry_starts: timedelta
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One kind of worker, without priority for retries and with it.

    ``ahead`` counts the due tasks that waited when the retry ran first. ``estimate`` is the result of
    `tidemill.policy.scheduling.time_saved` for them; ``time_saved`` is measured on the timelines.
    """

    waits_out_backoff: bool
    without: Timeline
    prioritized: Timeline
    time_saved: timedelta
    ahead: int
    estimate: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPriority:
    """The worker that waits for the end of a back-off, and Tidemill's executor, which does not."""

    waiting: Comparison
    tidemill: Comparison


def simulate_retry_priority() -> RetryPriority:
    """Run six tasks, one of which fails, four times: on both kinds of worker, in due order and with retries first.

    In the system that this timeline comes from, the worker waits until the back-off of the failed task has ended
    before it takes the next task: ``waits_out_backoff``. Tidemill's executor takes the next task at once.
    """
    return RetryPriority(waiting=_compare(waits_out_backoff=True), tidemill=_compare(waits_out_backoff=False))


def _compare(*, waits_out_backoff: bool) -> Comparison:
    without = _simulate_timeline("oldest_first", waits_out_backoff=waits_out_backoff)
    prioritized = _simulate_timeline("retries_first", waits_out_backoff=waits_out_backoff)
    ahead = sum(not step.is_retry and step.starts > prioritized.retry_starts for step in prioritized.steps)
    return Comparison(
        waits_out_backoff=waits_out_backoff,
        without=without,
        prioritized=prioritized,
        time_saved=without.retry_starts - prioritized.retry_starts,
        ahead=ahead,
        estimate=time_saved(ahead=ahead, mean_run=RUN_TIME, slots=1),
    )


def _simulate_timeline(selection: Selection, *, waits_out_backoff: bool) -> Timeline:
    conditions = Conditions(
        slots=1, run_time=RUN_TIME, policy=POLICY, selection=selection, waits_out_backoff=waits_out_backoff
    )
    tasks = [SimulatedTask(id=name, due_at=EPOCH, fails=int(name == FAILING_TASK)) for name in TASK_IDS]
    steps = tuple(_make_step(run) for run in simulate(tasks, conditions, draw=lambda: 0.0))
    [retry_starts] = [step.starts for step in steps if step.is_retry]
    return Timeline(selection=selection, retry_starts=retry_starts, steps=steps)


def _make_step(run: SimulatedRun) -> Step:
    return Step(
        task=run.task.id,
        starts=run.started_at - EPOCH,
        ends=run.ended_at - EPOCH,
        is_retry=run.task.lane == "retry",
        fails=isinstance(run.outcome, Retried),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Wave:
    """Number of tasks that are due at the same time, fail their first run and succeed in the second."""

    at: timedelta
    tasks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Parameters of the simulation. ``fresh_per_sec`` tasks arrive evenly over the whole ``duration``.

    By default 50 slots run 50 tasks a second. The fresh tasks need 35 slots; retries leave them 40.
    """

    slots: int = 50
    run_time: timedelta = timedelta(seconds=1)
    fresh_per_sec: int = 35
    duration: timedelta = timedelta(seconds=220)
    interval: timedelta = timedelta(seconds=10)
    waves: tuple[Wave, ...] = (
        Wave(at=timedelta(seconds=10), tasks=100),
        Wave(at=timedelta(seconds=40), tasks=100),
        Wave(at=timedelta(seconds=70), tasks=1000),
    )
    policy: RetryPolicy = DEFAULT
    selection: Selection = "weighted"
    retry_share: float = DEFAULT_RETRY_SHARE


def simulate_scenario(scenario: Scenario, *, rng: Random) -> tuple[SimulatedRun, ...]:
    """Simulate *scenario* and return its runs, including runs after its end: every task is finished."""
    conditions = Conditions(
        slots=scenario.slots,
        run_time=scenario.run_time,
        policy=scenario.policy,
        selection=scenario.selection,
        retry_share=scenario.retry_share,
    )
    return simulate([*_make_fresh_tasks(scenario), *_make_wave_tasks(scenario)], conditions, draw=rng.random)


def _make_fresh_tasks(scenario: Scenario) -> Iterator[SimulatedTask]:
    count = int(scenario.fresh_per_sec * scenario.duration.total_seconds())
    for number in range(count):
        due_at = EPOCH + timedelta(seconds=number / scenario.fresh_per_sec)
        yield SimulatedTask(id=f"steady-{number:06}", due_at=due_at)


def _make_wave_tasks(scenario: Scenario) -> Iterator[SimulatedTask]:
    for wave_number, wave in enumerate(scenario.waves, start=1):
        for number in range(wave.tasks):
            yield SimulatedTask(id=f"wave-{wave_number}-{number:06}", due_at=EPOCH + wave.at, fails=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Measurements from *starts* to *ends*, counted from the start of the simulation.

    Attributes:
        starts: Start of the interval, inclusive.
        ends: End of the interval, exclusive.
        wave: Tasks of waves that arrived.
        retries_due: Retries that are due and wait for a slot, at the end.
        retries_in_backoff: Retries that are not due yet, at the end.
        retry_slots: Fraction of the slots that retries occupied, on average.
        fresh_per_sec: First runs that ended per second, including failed ones.
        failed_per_sec: First runs that failed per second.
        fresh_waiting: Fresh tasks that are due and wait for a slot, at the end.
        fresh_always_waited: Fresh tasks waited at every moment, and for the length of a run before. That long it takes
            until slots that retries got during a lull are free again.
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
        """Number of tasks that wait for a retry."""
        return self.retries_due + self.retries_in_backoff


@dataclass(frozen=True, slots=True, kw_only=True)
class Starvation:
    """Course of a scenario and its summary.

    Attributes:
        scenario: The simulated scenario.
        intervals: Its course, without gaps. Tasks left at its end are run after the last interval.
        retries: Runs that were retries.
        largest_pool: Largest number of tasks that waited for a retry at one time, due or not.
        pool_empty_after: Time when the last retry got its slot.
        least_fresh_per_sec: Lowest ``fresh_per_sec`` of the intervals in which fresh tasks always waited; ``None`` if
            there is none.
    """

    scenario: Scenario
    intervals: tuple[Interval, ...]
    retries: int
    largest_pool: int
    pool_empty_after: timedelta
    least_fresh_per_sec: float | None


def simulate_starvation(scenario: Scenario | None = None, *, rng: Random) -> Starvation:
    """Simulate *scenario* (without it, the default) with the draws of *rng*, and return the measurements."""
    scenario = scenario or Scenario()
    return measure_runs(simulate_scenario(scenario, rng=rng), scenario)


def measure_runs(runs: Sequence[SimulatedRun], scenario: Scenario) -> Starvation:
    """Return the measurements of *runs*."""
    log = _Log(runs)
    count = scenario.duration // scenario.interval
    intervals = tuple(_measure_interval(log, scenario, starts=scenario.interval * number) for number in range(count))
    return Starvation(
        scenario=scenario,
        intervals=intervals,
        retries=len(log.retries),
        largest_pool=max((log.count_pool(at) for at in log.retries_created), default=0),
        pool_empty_after=max((at - EPOCH for at in log.retry_started), default=timedelta(0)),
        least_fresh_per_sec=min(
            (interval.fresh_per_sec for interval in intervals if interval.fresh_always_waited), default=None
        ),
    )


class _Log:
    """Sorted times of the events in the runs."""

    def __init__(self, runs: Sequence[SimulatedRun]) -> None:
        fresh = [run for run in runs if run.task.lane == "fresh"]
        self.retries = [run for run in runs if run.task.lane == "retry"]
        self.retries_created = sorted(run.ended_at for run in runs if isinstance(run.outcome, Retried))
        self.retry_due = sorted(run.task.due_at for run in self.retries)
        self.retry_started = sorted(run.started_at for run in self.retries)
        self.fresh_due = sorted(run.task.due_at for run in fresh)
        self.fresh_started = sorted(run.started_at for run in fresh)
        self.fresh_ended = sorted(run.ended_at for run in fresh)
        self.fresh_failed = sorted(run.ended_at for run in fresh if not isinstance(run.outcome, Succeeded))
        self.fresh_waits = _join_spans((run.task.due_at, run.started_at) for run in fresh)

    def count_pool(self, at: datetime) -> int:
        """Return the number of tasks that wait for a retry after every event *at* that time."""
        return bisect_right(self.retries_created, at) - bisect_right(self.retry_started, at)


def _measure_interval(log: _Log, scenario: Scenario, *, starts: timedelta) -> Interval:
    ends = starts + scenario.interval
    since, until = EPOCH + starts, EPOCH + ends
    seconds = scenario.interval.total_seconds()
    return Interval(
        starts=starts,
        ends=ends,
        wave=sum(wave.tasks for wave in scenario.waves if starts <= wave.at < ends),
        retries_due=bisect_left(log.retry_due, until) - bisect_left(log.retry_started, until),
        retries_in_backoff=bisect_left(log.retries_created, until) - bisect_left(log.retry_due, until),
        retry_slots=_sum_slot_time(log.retries, since, until) / (scenario.slots * scenario.interval),
        fresh_per_sec=_count_within(log.fresh_ended, since, until) / seconds,
        failed_per_sec=_count_within(log.fresh_failed, since, until) / seconds,
        fresh_waiting=bisect_left(log.fresh_due, until) - bisect_left(log.fresh_started, until),
        fresh_always_waited=any(
            first <= since - scenario.run_time and until <= last for first, last in log.fresh_waits
        ),
    )


def _sum_slot_time(runs: Iterable[SimulatedRun], since: datetime, until: datetime) -> timedelta:
    zero = timedelta(0)
    spans = (min(run.ended_at, until) - max(run.started_at, since) for run in runs)
    return sum((max(span, zero) for span in spans), zero)


def _count_within(times: Sequence[datetime], since: datetime, until: datetime) -> int:
    return bisect_left(times, until) - bisect_left(times, since)


def _join_spans(spans: Iterable[tuple[datetime, datetime]]) -> list[tuple[datetime, datetime]]:
    """Return the union of *spans* as spans that do not touch."""
    joined: list[tuple[datetime, datetime]] = []
    for first, last in sorted(spans):
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], last))
        elif first < last:
            joined.append((first, last))
    return joined
