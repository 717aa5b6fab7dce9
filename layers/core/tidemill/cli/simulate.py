"""The simulations on a terminal: plain text that reads the same in a file, or JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from datetime import timedelta
from random import Random
from typing import Final

from rich.table import Table

from tidemill.cli.plain_text import printed, sec, table
from tidemill.cli.simulate_arrivals import arrivals_text
from tidemill.cli.tables import say
from tidemill.simulation import (
    Comparison,
    Interval,
    RetryPriority,
    Scenario,
    Starvation,
    Step,
    Timeline,
    arrivals,
    retry_priority,
    starvation,
)

SEED: Final = 1
"""Of the jitter: every run prints the same."""


def add_to(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``simulate`` with a sub-command for each simulation."""
    simulating = commands.add_parser("simulate", help="show on a virtual clock what the policies lead to")
    simulations = simulating.add_subparsers(required=True, metavar="SIMULATION")
    _add(simulations, "retry-priority", _retry_priority, summary="what a retry gains by going first")
    _add(simulations, "starvation", _starvation, summary="what fresh tasks keep while waves of tasks fail")
    _add(simulations, "arrivals", _arrivals, summary="how long tasks wait that come in one by one")


def retry_priority_text(result: RetryPriority) -> str:
    """Return both timelines and what going first saves."""
    return "\n".join(
        [
            *_setting(result.waiting.prioritized),
            "This worker waits out the back-off of a task that failed before it takes the next one:",
            "",
            printed(_timelines(result.waiting)),
            f"Time saved by priority: {sec(result.waiting.time_saved)}.",
            "Tidemill's executor does not wait, it takes the next task at once:",
            "",
            printed(_savings(result)),
        ]
    ).rstrip()


def starvation_text(result: Starvation, *, contrast: Starvation) -> str:
    """Return the course of *result* and what it comes to; *contrast* is the same with another selection."""
    scenario = result.scenario
    waves = ", ".join(f"{wave.tasks} at {sec(wave.at)}" for wave in scenario.waves)
    run = sec(scenario.run_time)
    return "\n".join(
        [
            f"{scenario.slots} slots, {scenario.fresh_per_sec} fresh tasks a second, runs of {run}.",
            f"Waves that come in at once and fail their first run: {waves}.",
            f"Selection {scenario.selection}, retry share {scenario.retry_share:.0%}.",
            "",
            printed(_course(result.intervals)),
            *_conclusion(result, contrast),
        ]
    )


def _add(
    simulations: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    command: Callable[[argparse.Namespace], None],
    *,
    summary: str,
) -> None:
    parser = simulations.add_parser(name, help=summary)
    parser.add_argument("--json", action="store_true", help="print the data as JSON")
    parser.set_defaults(command=command)


def _retry_priority(chosen: argparse.Namespace) -> None:
    result = retry_priority()
    say(_json(result) if chosen.json else retry_priority_text(result))


def _starvation(chosen: argparse.Namespace) -> None:
    weighted = starvation(rng=_rng())
    retries_first = starvation(Scenario(selection="retries_first"), rng=_rng())
    if chosen.json:
        say(_json({"weighted": weighted, "retries_first": retries_first}))
    else:
        say(starvation_text(weighted, contrast=retries_first))


def _arrivals(chosen: argparse.Namespace) -> None:
    result = arrivals(rng=_rng())
    say(_json(result) if chosen.json else arrivals_text(result))


def _rng() -> Random:
    return Random(SEED)  # noqa: S311 - jitter keeps no secret


def _setting(timeline: Timeline) -> list[str]:
    fresh = [step for step in timeline.steps if not step.is_retry]
    [failed] = [step for step in fresh if step.fails]
    return [
        f"One worker, {len(fresh)} tasks of {sec(failed.ends - failed.starts)}, all due at {sec(failed.starts)}.",
        f"{failed.task} fails at {sec(failed.ends)}; its back-off is {sec(timeline.retry_starts - failed.ends)}.",
    ]


def _timelines(comparison: Comparison) -> Table:
    made = table(_heading("without priority", comparison.without), _heading("with priority", comparison.prioritized))
    for steps in zip(comparison.without.steps, comparison.prioritized.steps, strict=True):
        made.add_row(*(_step(step) for step in steps))
    return made


def _heading(words: str, timeline: Timeline) -> str:
    return f"{words} ({timeline.selection})"


def _step(step: Step) -> str:
    what = " fails" if step.fails else " retry" if step.is_retry else ""
    return f"{sec(step.starts):>5} - {sec(step.ends):>5}  {step.task}{what}"


def _savings(result: RetryPriority) -> Table:
    made = table("after a failure", "retry without", "retry with", "saved", "estimate: ahead x run / slots")
    first = result.waiting.without.steps[0]
    for comparison in (result.waiting, result.tidemill):
        made.add_row(
            "worker waits" if comparison.waits_out_backoff else "Tidemill does not wait",
            f"at {sec(comparison.without.retry_starts)}",
            f"at {sec(comparison.prioritized.retry_starts)}",
            sec(comparison.time_saved),
            f"{comparison.ahead} x {sec(first.ends - first.starts)} / 1 = {sec(comparison.estimate)}",
        )
    return made


def _course(intervals: Iterable[Interval]) -> Table:
    made = table(
        "time",
        "wave",
        "retry\npool",
        "of it\ndue",
        "of it in\nback-off",
        "slots held\nby retries",
        "fresh runs\nended",
        "of them\nfailed",
        "fresh\nwaiting",
        justify="right",
    )
    for one in intervals:
        made.add_row(
            f"{one.starts.total_seconds():.0f} - {sec(one.ends)}",
            str(one.wave or ""),
            str(one.retry_pool),
            str(one.retries_due),
            str(one.retries_in_backoff),
            f"{one.retry_slots:.1%}",
            f"{one.fresh_per_sec:.1f}/s",
            f"{one.failed_per_sec:.1f}/s",
            str(one.fresh_waiting),
        )
    return made


def _conclusion(result: Starvation, contrast: Starvation) -> list[str]:
    scenario, selection = result.scenario, contrast.scenario.selection
    part = 1 - scenario.retry_share
    rate = scenario.slots * part / scenario.run_time.total_seconds()
    least, other_least = _least(result), _least(contrast)
    empty, other_empty = sec(result.pool_empty_after), sec(contrast.pool_empty_after)
    return [
        f"The retry pool, {result.largest_pool} tasks at its largest, was empty after {empty}.",
        f"Fresh throughput never fell below {least} while fresh tasks waited; {part:.0%} of the slots do {rate:g}/s.",
        f"With {selection} the pool is empty after {other_empty}, but fresh throughput falls to {other_least}.",
    ]


def _least(result: Starvation) -> str:
    return "none" if result.least_fresh_per_sec is None else f"{result.least_fresh_per_sec:.1f}/s"


def _json(value: object) -> str:
    return json.dumps(_plain(value), indent=2)


def _plain(value: object) -> object:
    """Return *value* in JSON's types; a span named ``wait`` becomes seconds named ``wait_sec``."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, dict):
        return {f"{key}_sec" if isinstance(one, timedelta) else key: _plain(one) for key, one in value.items()}
    return value
