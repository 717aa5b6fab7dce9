"""What a load is judged by: everything that might grow, each with what it may."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tests.chaos.load.container import Reading
from tests.chaos.load.enqueueing import SHARE
from tests.chaos.load.growth import Growth, growth
from tests.chaos.load.machinery import Course
from tests.chaos.load.plan import Plan
from tests.chaos.load.samples import KEPT, Sample
from tests.chaos.load.work import PAUSED
from tidemill.control.options import OPTIONS_SEC
from tidemill.documents import CONTROL, OCCURRENCES, QUEUE_STATS, QUEUES, TASK_TYPES

MIB: Final = 1 << 20

TROUBLES: Final = ("lost", "unknown", "errors", "stuck", "leftovers", "missed", "released")

# What was found where nothing grew, and what a leak would make of it in some hundred invocations of each container:
THREADS: Final = 1  # always 0; one in a hundred invocations would be 4
PROCESSES: Final = 2  # the helper for isolated functions and its guard, which begin with the first of these
FILES: Final = 4  # up to 1, or with those two processes 3; connections come and go
BLOCKS: Final = 1000  # up to 350, of caches; four that each invocation of an executor leaves would be more
RESIDENT: Final = 1.0  # MiB; up to 0.1
CONNECTIONS: Final = 4  # up to 2
AGE_SEC: Final = 1.0  # less than 0.3 in either third
DUE: Final = 50  # a median of up to 5
TTL_SEC: Final = 1.0  # so many seconds' worth of tasks: the server removes what is done once a second
SIZES: Final = {
    CONTROL: 500,  # two seats more, of which one was a dead one's
    QUEUES: 0,
    TASK_TYPES: 0,
    QUEUE_STATS: 6000,  # a second minute, of eight functions in three queues
    OCCURRENCES: 0,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What was seen of a load at *rate* tasks a second, with so many *runs* in all."""

    plan: Plan
    course: Course
    samples: Sequence[Sample]
    readings: Mapping[str, Sequence[tuple[float, Reading]]]
    rate: float
    seconds_to_calm: float
    runs: int

    def faults(self) -> Counter[str]:
        """Return what was done to it."""
        counts = self.course.counts
        return Counter({
            "executors killed": counts["reported"],
            "executors killed, and nobody told": counts["deaths"] - counts["reported"],
            "queues paused": counts["pauses"],
        })  # fmt: skip


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
    whole = seen.plan.loaded
    ages = [(one.at, one.oldest_sec) for one in seen.samples]
    yield growth("oldest due elsewhere", ages, whole=whole, allowed=AGE_SEC, unit="s", by=max)
    yield Growth(
        name=f"oldest due in {PAUSED}, beside its pause",
        first=seen.plan.pause_sec,
        last=max(one.paused_sec for one in seen.samples),
        allowed=OPTIONS_SEC + 2 * AGE_SEC,
        unit="s",
    )
    yield growth("due tasks", [(one.at, one.due) for one in seen.samples], whole=whole, allowed=DUE)


def _stored(seen: Evidence) -> Iterator[Growth | None]:
    whole, samples = seen.plan.loaded, seen.samples
    yield growth("connections", [(one.at, one.connections) for one in samples], whole=whole, allowed=CONNECTIONS)
    yield growth("stored tasks", [(one.at, one.tasks) for one in samples], whole=whole, allowed=seen.rate * TTL_SEC)
    for name in KEPT:
        sizes = [(one.at, one.kept[name].size) for one in samples]
        yield growth(f"bytes of {name}", sizes, whole=whole, allowed=SIZES[name], by=max)
