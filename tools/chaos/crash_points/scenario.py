"""A use case in a state, crashed at a point; and what is said of it when the ticks have gone on until quiet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, TypeAlias

from tests.crash_points import Point, Trace, crash_if_reached, traced
from tools.chaos import invariants
from tools.chaos.crash_points.ends import End, counted, end_of
from tools.chaos.crash_points.quiet import recover
from tools.chaos.crash_points.world import DEAD, World

Act: TypeAlias = Callable[[World], object]
NOW: Final = timedelta(0)


def nothing(_: World) -> None:
    """Do it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A use case, and what there is when it begins.

    Whatever its *act* is interrupted at, the end has to be as if it had not been.

    Attributes:
        use_case: By which points are counted.
        again: What the caller, the schedule or the platform does once more, *again_after* the crash; ``None``: it is
            left to the ticks.
        otherwise: What else may have been done in the end: of something that nobody repeats, `nothing`.
        deletes: What is there at the crash may be gone in the end.
    """

    name: str
    use_case: str
    act: Act
    prepare: Act = nothing
    again: Act | None = None
    again_after: timedelta = NOW
    otherwise: Sequence[Act] = ()
    deletes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The end of it all, how often each task ran, and what was not as it has to be."""

    end: End
    runs: Counter[Any]
    broken: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Undisturbed:
    """What a scenario calls, and the ends it may have."""

    trace: Trace
    ends: Sequence[Finish]


@dataclass(frozen=True, slots=True, kw_only=True)
class Crashed:
    """What has become of a crash. ``again`` are the tasks whose functions ran, and nobody will ever know."""

    point: Point
    finish: Finish
    again: frozenset[Any] = field(default_factory=frozenset)

    @property
    def broken(self) -> Sequence[str]:
        """What did not hold."""
        return self.finish.broken


def traced_act(scenario: Scenario, world: World) -> Trace:
    """Return what *scenario* calls, and do not wait for its end."""
    _begin(scenario, world)
    return traced(scenario.act, world)


def undisturbed(scenario: Scenario, world: World) -> Undisturbed:
    """Let *scenario* come to its ends, without a crash."""
    traces: list[Trace] = []

    def act(world: World) -> None:
        traces.append(traced(scenario.act, world))

    ends = [_ended(scenario, world, act) for act in (act, *scenario.otherwise)]
    return Undisturbed(trace=traces[0], ends=ends)


def crashed(
    scenario: Scenario,
    world: World,
    expected: Undisturbed,
    *,
    number: int,
    after: bool,
    told: bool,
    dies_at: int | None = None,
) -> Crashed | None:
    """Crash before or after the *number*-th call, and go on; ``None`` where there is no such call this time.

    *told* and *dies_at*: how reclaim hears of it, as `recover` has it.
    """
    _begin(scenario, world)
    point = crash_if_reached(scenario.act, world, number=number, after=after)
    if point is None:
        return None
    again = _unknown(world)
    there = () if scenario.deletes else _ids(world)
    if scenario.again is not None:
        world.clock.move(scenario.again_after)
        scenario.again(world)
    finish = _finished(world, there, told=told, dies_at=dies_at)
    wrong = [*finish.broken, *_differences(finish, expected, again)]
    broken = [f"{scenario.use_case}: {scenario.name}, {point!r}, {told=}, {dies_at=}: {one}" for one in wrong]
    return Crashed(point=point, finish=Finish(end=finish.end, runs=finish.runs, broken=broken), again=again)


def _begin(scenario: Scenario, world: World) -> None:
    world.clear()
    scenario.prepare(world)


def _ended(scenario: Scenario, world: World, act: Act) -> Finish:
    _begin(scenario, world)
    act(world)
    return _finished(world, () if scenario.deletes else _ids(world), told=False)


def _finished(world: World, there: Sequence[Any], *, told: bool, dies_at: int | None = None) -> Finish:
    wrong = recover(world, told=told, dies_at=dies_at)
    wrong += invariants.broken(world.db, accepted=there, now=world.clock.now(), at_rest=True)
    end, runs = end_of(world), world.runs.counts()
    wrong += _of_statistics(world, runs)
    return Finish(end=end, runs=runs, broken=wrong)


def _of_statistics(world: World, runs: Counter[Any]) -> Iterator[str]:
    """Tell where more was counted than there was."""
    done = world.db.tasks.count_documents({"status": "done"})
    for name, most in (("runs", runs.total()), ("done", done)):
        if counted(world, name) > most:
            yield f"statistics tell of {counted(world, name)} {name}, and there were {most}"


def _differences(finish: Finish, expected: Undisturbed, again: frozenset[Any]) -> list[str]:
    """Tell in what *finish* differs from what it was to be; nothing where it is as one of the ends."""
    told: list[str] = []
    for one in expected.ends:
        told = [different] if (different := finish.end.differs_from(one.end)) else []
        runs = one.runs + Counter(again)
        told += [f"{n} ran {finish.runs[n]} times, not {runs[n]}" for n in runs if finish.runs[n] != runs[n]]
        told += [f"{n} ran, which it was not to" for n in finish.runs.keys() - runs.keys()]
        if not told:
            break
    return told


def _unknown(world: World) -> frozenset[Any]:
    ran = world.runs.counts()
    held = {"status": "processing", "lease.owner": DEAD, "payload.n": {"$exists": True}}
    return frozenset(one["payload"]["n"] for one in world.db.tasks.find(held, {"payload.n": 1})) & ran.keys()


def _ids(world: World) -> list[Any]:
    living = [one["_id"] for one in world.db.tasks.find({}, {"_id": 1})]
    return living + [
        one["_id"]["task"] for one in world.db.tasks_dlq.find({}, {"_id": 1}) if isinstance(one["_id"], dict)
    ]
