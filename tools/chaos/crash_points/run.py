"""The section: as many points as there is time for, each scenario at its turn; given enough, all of them."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from pymongo import MongoClient

from tests.databases import make
from tools.chaos.crash_points import sites
from tools.chaos.crash_points.ends import places
from tools.chaos.crash_points.everything import SCENARIOS
from tools.chaos.crash_points.scenario import Crashed, Scenario, Undisturbed, crashed, undisturbed
from tools.chaos.crash_points.world import World, a_world
from tools.chaos.found import Found

RESERVE_SEC: Final = 1.0
"""Kept for the summary: longer than a point takes."""

NOWHERE: Final = "was accepted and is nowhere"
"""What the invariants say of a task that is lost."""

UNKNOWN: Final = "its executor died between its end and its outcome"

CALLS_OF_RECLAIM: Final = 8
"""So many it makes before it has taken back what there was, or a few more."""

READS: Final = frozenset({"find", "getMore", "aggregate", "distinct", "hello", "ping", "count", "listIndexes"})
"""Calls that change nothing: before and after them the database is the same."""


def survive(uri: str, *, seconds: float, seed: int) -> Found:
    """Crash use cases for *seconds*; *seed* is the order in which scenarios and their points come."""
    until = time.monotonic() + seconds - RESERVE_SEC
    with MongoClient[dict[str, Any]](uri, tz_aware=True) as client, a_world(make(client)) as world:
        campaign = Campaign(world, rng=random.Random(seed))
        while campaign.goes_on() and time.monotonic() < until:
            campaign.one()
    found = campaign.found()
    if campaign.has_begun_all:
        found.broken += [f"no scenario writes in {one}" for one in campaign.unmet()]
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shot:
    """A point of a scenario that has not come yet."""

    scenario: Scenario
    expected: Undisturbed
    number: int
    after: bool

    @property
    def is_after_a_write(self) -> bool:
        """Whether it leaves the database as no other point does."""
        return self.after and self.expected.trace.calls[self.number - 1].partition(" ")[0] not in READS


class Campaign:
    """Takes one point after the other: first one of each scenario, then those after writes, then all others."""

    def __init__(self, world: World, *, rng: random.Random, scenarios: Sequence[Scenario] = SCENARIOS) -> None:
        self._world = world
        self._rng = rng
        self._fresh = rng.sample(scenarios, len(scenarios))
        self._left: list[_Shot] = []
        self._callers: set[str] = set()
        self._begun = 0
        self._taken = 0
        self._found = Found()

    def goes_on(self) -> bool:
        """Tell whether a point is left."""
        return bool(self._fresh or self._left)

    @property
    def has_begun_all(self) -> bool:
        """Whether no scenario was left out."""
        return not self._fresh

    def unmet(self) -> list[str]:
        """Return the places that write where no scenario that has begun comes to."""
        return sites.unmet(self._callers)

    def one(self) -> None:
        """Take the next point."""
        if self._fresh:
            self._begin(self._fresh.pop())
            if not self._fresh:
                last = self._left.pop()
                self._left.sort(key=lambda one: one.is_after_a_write)
                self._left.append(last)
        shot = self._left.pop()
        told, dies_at = self._rng.choice(
            [(False, None), (True, None), (True, self._rng.randrange(1, CALLS_OF_RECLAIM))]
        )
        try:
            result = crashed(
                shot.scenario,
                self._world,
                shot.expected,
                number=shot.number,
                after=shot.after,
                told=told,
                dies_at=dies_at,
            )
        except Exception as error:  # noqa: BLE001 - nobody is to fail for a crash that was
            where = f"{shot.scenario.name}, call {shot.number}, {shot.after=}, {told=}, {dies_at=}"
            self._found.broken.append(f"{where}: {error!r}")
            return
        if result is not None:
            self._count(shot.scenario, result)
            self._found.faults["crash of the reclaim that hears of one"] += dies_at is not None

    def found(self) -> Found:
        """Return what was found so far."""
        found = self._found
        after_writes = sum(one.is_after_a_write for one in self._left)
        found.notes.append(
            f"{self._taken} points of {self._begun} of {self._begun + len(self._fresh)} scenarios; left out "
            f"{after_writes} after a write and {len(self._left) - after_writes} others of these scenarios"
        )
        return found

    def _begin(self, scenario: Scenario) -> None:
        expected = undisturbed(scenario, self._world)
        shots = [
            _Shot(scenario=scenario, expected=expected, number=number, after=after)
            for number in range(1, len(expected.trace.calls) + 1)
            for after in (False, True)
        ]
        self._left += self._rng.sample(shots, len(shots))
        self._callers |= expected.trace.callers
        self._begun += 1
        self._found.broken += [
            f"{scenario.use_case}: {scenario.name}, undisturbed: {one}" for end in expected.ends for one in end.broken
        ]

    def _count(self, scenario: Scenario, result: Crashed) -> None:
        ended = Counter(places(result.finish.end))
        lost = sum(NOWHERE in one for one in result.broken)
        found = self._found
        self._taken += 1
        found.faults[f"crash in {scenario.use_case}"] += 1
        found.accepted += ended.total() + lost
        found.done += ended["done"]
        found.cancelled += ended["cancelled"]
        found.dead += ended["dead"]
        found.alive += ended.total() - ended["done"] - ended["cancelled"] - ended["dead"]
        found.lost += lost
        if result.again:
            found.repeated[UNKNOWN] += len(result.again)
        found.broken += result.broken
