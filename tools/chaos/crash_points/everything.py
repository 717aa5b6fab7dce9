"""All scenarios there are."""

from __future__ import annotations

from itertools import chain
from typing import Final

from tools.chaos.crash_points import executing, intake, invoking, keeping, operating, upkeep
from tools.chaos.crash_points.scenario import Scenario

SCENARIOS: Final[tuple[Scenario, ...]] = tuple(
    chain.from_iterable(one.SCENARIOS for one in (intake, executing, keeping, operating, invoking, upkeep))
)
