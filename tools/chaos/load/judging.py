"""What a load is judged by: everything that might grow, each with what it may."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidemill.control.queues import OPTIONS_CACHE_SEC
from tidemill.documents import CONTROL, OCCURRENCES, QUEUE_STATS, QUEUES, TASK_TYPES
from tools.chaos.load.container import Reading
from tools.chaos.load.enqueueing import SHARE
from tools.chaos.load.growth import Growth, Values, growth
from tools.chaos.load.machinery import Course
from tools.chaos.load.plan import Plan
from tools.chaos.load.samples import KEPT, Sample
from tools.chaos.load.speed import MEASURE_EVERY_SEC, compute_backlogs, compute_slowdown, has_kept_pace, mean_by_third
from tools.chaos.load.work import PAUSED, PAUSED_PART

MIB: Final = 1 << 20

TROUBLES: Final = ("lost", "unknown", "errors", "write_rejected", "leftovers", "contended_ids", "released")

# What was found where nothing grew, and what a leak would make of it in some hundred invocations of each container:
THREADS: Final = 1  # always 0; one in a hundred invocations would be 4
PROCESSES: Final = 2  # the helper for isolated functions and its guard, which begin with the first of these
FILES: Final = 4  # up to 1, or with those two processes 3; connections come and go
BLOCKS: Final = 1000  # up to 350, of caches; four that each invocation of an executor leaves would be more
RESIDENT: Final = 1.0  # MiB; up to 0.1
CONNECTIONS: Final = 4  # up to 2
AGE_SEC: Final = 1.0  # less than 0.3 in either third
DUE: Final = 50  # a median of up to 5
SETTLE_SEC: Final = 1.0  # after which tasks wait no more because the machine was too slow
PAUSES_TO_CATCH_UP: Final = 2  # until nothing waits in the paused queue because of an earlier pause
TTL_SEC: Final = 1.0  # so many seconds' worth of tasks: the server removes what is done once a second
WAITING: Final = ("oldest due elsewhere", f"oldest due in {PAUSED}, beside its pause", "due tasks", "stored tasks")
SIZES: Final = {
    CONTROL: 500,  # two executor slots more, of which one was a dead one's
    QUEUES: 0,
    TASK_TYPES: 0,
    QUEUE_STATS: 6000,  # a second minute, of eight functions in three queues
    OCCURRENCES: 0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What was seen of a load at *rate* tasks a second, with so many *runs* in all.

    Attributes:
        speeds: Of the machine under load, where 1 is the mean speed while it was calibrated.
    """

    plan: Plan
    course: Course
    samples: Sequence[Sample]
    readings: Mapping[str, Sequence[tuple[float, Reading]]]
    speeds: Values
    rate: float
    seconds_to_calm: float
    runs: int

    def backlogs(self) -> Values:
        """Return the work that the machine was too slow for, as if there had been a pause at any moment before."""
        unserved_sec = self.plan.unserved_sec
        held_back_sec = SHARE * PAUSED_PART * unserved_sec
        extra = held_back_sec / (self.plan.cycle_sec - unserved_sec)
        return compute_backlogs(self.speeds, needed=SHARE, extra=extra, held_back_sec=held_back_sec)

    def select_judged(self) -> list[Sample]:
        """Return the samples in which tasks may not wait, except in the paused queue."""
        return self._select(within_sec=SETTLE_SEC)

    def select_judged_beside_pause(self) -> list[Sample]:
        """Return the samples in which tasks of the paused queue may wait for its latest pause only."""
        return self._select(within_sec=PAUSES_TO_CATCH_UP * self.plan.cycle_sec)

    def faults(self) -> Counter[str]:
        """Return what was done to it."""
        counts = self.course.counts
        return Counter({
            "executors killed": counts["reported"],
            "executors killed, unreported": counts["deaths"] - counts["reported"],
            "queues paused": counts["pauses"],
        })  # fmt: skip

    def _select(self, *, within_sec: float) -> list[Sample]:
        """Return the samples before which the machine had kept pace for *within_sec*."""
        backlogs = self.backlogs()
        return [
            sample
            for sample in self.samples
            if has_kept_pace(backlogs, since=sample.at - within_sec, until=sample.at + 2 * MEASURE_EVERY_SEC)
        ]


def growths(seen: Evidence) -> list[Growth]:
    """Return how everything has changed that must not grow: memory, and what waits, only where there was time."""
    found = [*_of_processes(seen), *(_settling(seen) if seen.plan.is_judged else ())]
    return [one for one in found if one is not None]


def notes(seen: Evidence) -> list[str]:
    """Return the numbers worth telling."""
    counts, plan = seen.course.counts, seen.plan
    first, last = seen.samples[0], seen.samples[-1]
    load = f"{seen.rate:.0f} tasks/s for {plan.loaded:.0f} s, {SHARE:.0%} of what was sustained before"
    done = f"{counts['invocations']:,} executions, {counts['claimed']:,} claims, {seen.runs:,} runs"
    return [
        f"{load}: {done}; calm after {seen.seconds_to_calm:.1f} s more",
        *(_describe_judging(seen) if plan.is_judged else ()),
        f"executors told of {_told(counts, TROUBLES)}",
        f"executors that were killed held {counts['held']} tasks",
        f"at the end {last.tasks:,} tasks and {last.letters:,} dead letters are stored",
        f"mongod {first.server / MIB:.0f} -> {last.server / MIB:.0f} MiB",
    ]


def told(grown: Sequence[Growth]) -> list[str]:
    """Return them in a few lines: of the containers, for each thing that one of them whose grew most."""
    kinds: dict[str, list[Growth]] = {}
    for one in grown:
        kinds.setdefault(one.name.partition(" of ")[0], []).append(one)
    most = [max(ones, key=lambda one: one.last - one.first) for ones in kinds.values() if len(ones) > 1]
    single = [ones[0] for ones in kinds.values() if len(ones) == 1]
    whole = [("first and last third, where it grew most", most), ("first and last third", single)]
    return [f"{head}: {'; '.join(map(str, ones))}" for head, ones in whole if ones]


def _told(counts: Counter[str], names: Sequence[str]) -> str:
    return ", ".join(f"{counts[name]:,} {name}" for name in names)


def _of_processes(seen: Evidence) -> Iterator[Growth | None]:
    whole = seen.plan.loaded
    for name, read in seen.readings.items():
        yield growth(f"threads of {name}", [(at, one.threads) for at, one in read], whole=whole, allowed=THREADS)
        yield growth(f"descriptors of {name}", [(at, one.files) for at, one in read], whole=whole, allowed=FILES)
        yield growth(f"processes of {name}", [(at, one.children) for at, one in read], whole=whole, allowed=PROCESSES)


def _settling(seen: Evidence) -> Iterator[Growth | None]:
    yield from _memory(seen)
    yield from _waiting(seen)
    yield from _stored(seen)


def _memory(seen: Evidence) -> Iterator[Growth | None]:
    whole = seen.plan.loaded
    for name, read in seen.readings.items():
        yield growth(f"blocks of {name}", [(at, one.blocks) for at, one in read], whole=whole, allowed=BLOCKS)
        resident = [(at, one.resident / MIB) for at, one in read]
        yield growth(f"memory of {name}", resident, whole=whole, allowed=RESIDENT, unit="MiB")


def _waiting(seen: Evidence) -> Iterator[Growth | None]:
    """Yield what waits, judged only while the machine was fast enough for the load."""
    whole, samples, beside_pause = seen.plan.loaded, seen.select_judged(), seen.select_judged_beside_pause()
    elsewhere, in_paused, due, stored = WAITING
    ages = [(sample.at, sample.oldest_sec) for sample in samples]
    yield growth(elsewhere, ages, whole=whole, allowed=AGE_SEC, unit="s", by=max)
    if beside_pause:
        yield Growth(
            name=in_paused,
            first=seen.plan.pause_sec,
            last=max(sample.paused_sec for sample in beside_pause),
            allowed=OPTIONS_CACHE_SEC + 2 * AGE_SEC,
            unit="s",
        )
    yield growth(due, [(sample.at, sample.due) for sample in samples], whole=whole, allowed=DUE)
    if len(beside_pause) == len(seen.samples):  # thirds compare only whole: tasks of the paused queue are among these
        counts = [(sample.at, sample.tasks) for sample in seen.samples]
        yield growth(stored, counts, whole=whole, allowed=seen.rate * TTL_SEC)


def _stored(seen: Evidence) -> Iterator[Growth | None]:
    whole, samples = seen.plan.loaded, seen.samples
    yield growth("connections", [(one.at, one.connections) for one in samples], whole=whole, allowed=CONNECTIONS)
    for name in KEPT:
        sizes = [(one.at, one.kept[name].size) for one in samples]
        yield growth(f"bytes of {name}", sizes, whole=whole, allowed=SIZES[name], by=max)


def _describe_judging(seen: Evidence) -> Iterator[str]:
    """Yield how fast the machine was, and how much of the waiting was not judged."""
    speeds = ", ".join(f"{speed:.2f}" for speed in mean_by_third(seen.speeds, whole=seen.plan.loaded))
    yield f"speed of the machine in each third, 1 while it was calibrated: {speeds or 'not measured'}"
    looks = len(seen.samples)
    left_out = {
        "elsewhere": looks - len(seen.select_judged()),
        f"in {PAUSED}": looks - len(seen.select_judged_beside_pause()),
    }
    if any(left_out.values()):
        counts = ", ".join(f"{where} at {count} of {looks} looks" for where, count in left_out.items())
        yield f"waiting was not judged {counts}: {_describe_slowness(seen)}"
    judged = {change.name for change in _waiting(seen) if change is not None}
    if unjudged := [name for name in WAITING if name not in judged]:
        yield f"not judged at all, for want of looks: {'; '.join(unjudged)}"


def _describe_slowness(seen: Evidence) -> str:
    if (slowdown := compute_slowdown(seen.speeds, seen.backlogs())) is None:
        return "the speed of the machine was not measured"
    return f"the machine had been {slowdown:.1f} times slower than while it was calibrated"
