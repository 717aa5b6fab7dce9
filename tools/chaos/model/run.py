"""The section ``model``: examples of the machine, one after the other, until the time is over or one is broken."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final
from unittest.mock import patch

import hypothesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis.internal.conjecture import engine
from hypothesis.stateful import run_state_machine_as_test
from pymongo import MongoClient

from tests.databases import make
from tools.chaos.found import Found
from tools.chaos.model.machine import Machine, machine

STEPS: Final = 100
"""Of an example."""

EXAMPLES: Final = 50
"""From one seed."""

SHRINKING_SEC: Final = (5.0, 60.0)
"""So long, at least and at most, fewer steps are looked for that break the same; in between, while there is time."""

HOSTILE: Final = (
    "clock back", "edited", "spoilt", "inserted", "inserted again", "deleted", "cut short", "at once", "settled late",
    "settled repeatedly", "released late", "extended late", "forced", "export failed", "aborted", "conflict of keys",
)  # fmt: skip
"""What is counted as a fault."""


def survive(uri: str, *, seconds: float, seed: int) -> Found:
    """Run the machine for so long, each example another one; the same ones again with the same *seed*."""
    with MongoClient[dict[str, Any]](uri, tz_aware=True) as client:
        tried, broken = machine(make(client)), list[str]()
        started = time.monotonic()
        tried.until = started + seconds
        for number in itertools.count(1):
            broken += _tried(tried, seed=seed * 1_000_003 + number)
            if broken or time.monotonic() >= tried.until:
                break
        return _found(tried, broken, seconds=time.monotonic() - started)


def _tried(tried: type[Machine], *, seed: int) -> list[str]:
    """Return what broke, with the fewest steps that lead to it, as far as they are found in time."""
    least, most = SHRINKING_SEC
    shrinking = min(max(least, tried.until - time.monotonic()), most)
    try:
        with patch.object(engine, "MAX_SHRINKING_SECONDS", shrinking):
            run_state_machine_as_test(hypothesis.seed(seed)(tried), settings=chosen(EXAMPLES, STEPS))
    except Exception as error:  # noqa: BLE001 - whatever the product raises was found, too
        return ["\n".join([f"seed {seed}: {type(error).__name__}: {error}", *getattr(error, "__notes__", ())])]
    return []


def chosen(examples: int, steps: int) -> settings:
    """Return the settings of a run."""
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )


def _found(tried: type[Machine], broken: list[str], *, seconds: float) -> Found:
    did, ended = tried.did, tried.ended
    return Found(
        faults=Counter({what: did[what] for what in HOSTILE}),
        accepted=ended["accepted"],
        done=ended["done"],
        cancelled=ended["cancelled"],
        dead=ended["dead"],
        lost=ended["lost"],
        notes=[
            f"{ended['examples']} examples, {did['steps']} steps, {did['steps'] / seconds:.0f} a second",
            *_told(did),
        ],
        broken=broken,
    )


def _told(did: Counter[str]) -> Iterator[str]:
    """Yield a line of counts each of the rules, of what they really did, and of what was disturbed."""
    told = {what: many for what, many in sorted(did.items()) if what not in {*HOSTILE, "steps"}}
    pairs = {what for what in told if what.endswith(" at once")}
    rules = {what.removeprefix("rule "): many for what, many in told.items() if what.startswith("rule ")}
    cut_short = {what.removesuffix(" cut short"): many for what, many in told.items() if what.endswith(" cut short")}
    rest = {what: many for what, many in told.items() if what not in pairs and not what.startswith("rule ")}
    rest = {what: many for what, many in rest.items() if not what.endswith(" cut short")}
    for name, some in (("rules", rules), ("really done", rest), ("cut short", cut_short)):
        yield f"{name}: {', '.join(f'{what} {many}' for what, many in some.items())}"
    yield f"at once: {len(pairs)} different pairs"
