"""``tidemill policy`` and ``tidemill simulate``: retry presets, and simulations of retry policies without a database.

The text of a simulation is the same on a terminal and in a file.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from random import Random
from typing import Any, Final

import click
from rich import box
from rich.console import JustifyMethod
from rich.table import Table

from tidemill.cli.commands import Command, Group, build_json_option, is_json_wanted
from tidemill.cli.output import ABSENT, format_table, print_json, print_text, render_table
from tidemill.errors import InvalidRequestError, Problem
from tidemill.model import Backoff, RetryPolicy
from tidemill.policy.retry import PRESETS, backoff
from tidemill.simulation.scenarios import (
    Comparison,
    Interval,
    RetryPriority,
    Scenario,
    Starvation,
    Step,
    Timeline,
    simulate_retry_priority,
    simulate_starvation,
)
from tidemill.text import did_you_mean, format_duration

WIDTH: Final = 100
"""Columns of a table of a simulation."""

SEED: Final = 1
"""Seed of the jitter: every run prints the same."""

_LATEST_DRAW: Final = math.nextafter(1, 0)

policy: Final = Group("policy", "Show the retry presets and their delays.")
simulate: Final = Group("simulate", "Simulate retry policies on a virtual clock.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Delay before the *retry*-th retry: *wait* without jitter, and its bounds with jitter.

    ``latest_total`` is the latest start of the retry after the first failure, without the run times in between.
    """

    retry: int
    wait: timedelta
    earliest: timedelta
    latest: timedelta
    latest_total: timedelta


def compute_waits(policy: RetryPolicy) -> Iterator[Wait]:
    """Yield the delays of *policy* in order."""
    total = timedelta()
    without_jitter = replace(policy.backoff, jitter="none")
    for retry in range(1, policy.max_retries + 1):
        latest = backoff(policy.backoff, failures=retry, draw=_LATEST_DRAW)
        total += latest
        yield Wait(
            retry=retry,
            wait=backoff(without_jitter, failures=retry, draw=0),
            earliest=backoff(policy.backoff, failures=retry, draw=0),
            latest=latest,
            latest_total=total,
        )


@policy.command("ls", cls=Command, params=[build_json_option()], example="tidemill policy ls")
def _list() -> None:
    """List the presets."""
    if is_json_wanted():
        print_json([_encode_policy(name, policy) for name, policy in PRESETS.items()])
        return
    print_text(
        format_table(
            {
                "preset": "word", "strategy": "word", "base": "number", "factor": "number", "cap": "number",
                "jitter": "word", "max_retries": "number",
            },
            [_format_policy(name, policy) for name, policy in PRESETS.items()],
        )
    )  # fmt: skip


@policy.command("show", cls=Command, params=[build_json_option()], example="tidemill policy show patient")
@click.argument("name", metavar="NAME")
def _show(name: str) -> None:
    """Show the retry delays of the preset NAME."""
    preset = _find_preset(name)
    waits = list(compute_waits(preset))
    if is_json_wanted():
        print_json(_encode_policy(name, preset) | {"retries": waits})
    elif preset.max_retries == 0:
        print_text(f"{name}: one run, no retries")
    else:
        print_text(f"{name}: {_describe_policy(preset)}\n")
        print_text(
            format_table(
                dict.fromkeys(("retry", "before jitter", "earliest", "latest", "latest since first failure"), "number"),
                [
                    (str(wait.retry), *map(format_duration, (wait.wait, wait.earliest, wait.latest, wait.latest_total)))
                    for wait in waits
                ],
            )
        )


def _find_preset(name: str) -> RetryPolicy:
    if name in PRESETS:
        return PRESETS[name]
    sentence = f"there is no preset {name}{did_you_mean(name, PRESETS) or ';'} the presets are {', '.join(PRESETS)}"
    raise InvalidRequestError([Problem("policy", sentence)])


def _describe_policy(policy: RetryPolicy) -> str:
    options = policy.backoff
    base, cap = (format_duration(timedelta(seconds=sec)) for sec in (options.base_sec, options.max_sec))
    growth = f" x {options.factor:g}" if options.strategy == "exponential" else ""
    retries = "1 retry" if policy.max_retries == 1 else f"{policy.max_retries} retries"
    return f"{retries}, {options.strategy} from {base}{growth} up to {cap}, jitter {_format_jitter(options)}"


def _format_policy(name: str, policy: RetryPolicy) -> tuple[str, ...]:
    if policy.max_retries == 0:
        return (name, *[ABSENT] * 5, "0")
    options = policy.backoff
    return (
        name,
        options.strategy,
        format_duration(timedelta(seconds=options.base_sec)),
        f"{options.factor:g}" if options.strategy == "exponential" else ABSENT,
        format_duration(timedelta(seconds=options.max_sec)),
        _format_jitter(options),
        str(policy.max_retries),
    )


def _format_jitter(options: Backoff) -> str:
    return f"proportional {options.jitter_factor:g}" if options.jitter == "proportional" else options.jitter


def _encode_policy(name: str, policy: RetryPolicy) -> dict[str, Any]:
    delays = asdict(policy.backoff)
    return {
        "name": name,
        "max_retries": policy.max_retries,
        **(delays if policy.max_retries else dict.fromkeys(delays)),
    }


@simulate.command(
    "retry-priority", cls=Command, params=[build_json_option()], example="tidemill simulate retry-priority --json"
)
def _print_retry_priority() -> None:
    """Show the time that a retry gains by going first."""
    result = simulate_retry_priority()
    if is_json_wanted():
        print_json(result)
    else:
        print_text(_format_retry_priority(result))


@simulate.command(
    "starvation", cls=Command, params=[build_json_option()], example="tidemill simulate starvation --json"
)
def _print_starvation() -> None:
    """Show the throughput of fresh tasks while waves of tasks fail."""
    weighted = simulate_starvation(rng=_make_rng())
    retries_first = simulate_starvation(Scenario(selection="retries_first"), rng=_make_rng())
    if is_json_wanted():
        print_json({"weighted": weighted, "retries_first": retries_first})
    else:
        print_text(_format_starvation(weighted, contrast=retries_first))


def _make_rng() -> Random:
    return Random(SEED)  # noqa: S311 - jitter is no secret


def _format_retry_priority(result: RetryPriority) -> str:
    return "\n".join(
        [
            *_describe_setting(result.waiting.prioritized),
            "This worker waits out the back-off of a task that failed before it takes the next one:",
            "",
            _format_timelines(result.waiting),
            "",
            f"Time saved by priority: {_format_sec(result.waiting.time_saved)}.",
            "Tidemill's executor does not wait, it takes the next task at once:",
            "",
            _format_savings(result),
        ]
    )


def _format_starvation(result: Starvation, *, contrast: Starvation) -> str:
    """Return the course of *result* and a conclusion; *contrast* is the same scenario with another selection."""
    scenario = result.scenario
    waves = ", ".join(f"{wave.tasks} at {_format_sec(wave.at)}" for wave in scenario.waves)
    run = _format_sec(scenario.run_time)
    return "\n".join(
        [
            f"{scenario.slots} slots, {scenario.fresh_per_sec} fresh tasks a second, runs of {run}.",
            f"Waves that come in at once and fail their first run: {waves}.",
            f"Selection {scenario.selection}, retry share {scenario.retry_share:.0%}.",
            "",
            _format_intervals(result.intervals),
            "",
            *_describe_conclusion(result, contrast),
        ]
    )


def _describe_setting(timeline: Timeline) -> list[str]:
    fresh = [step for step in timeline.steps if not step.is_retry]
    [failed] = [step for step in fresh if step.fails]
    run, wait = _format_sec(failed.ends - failed.starts), _format_sec(timeline.retry_starts - failed.ends)
    return [
        f"One worker, {len(fresh)} tasks of {run}, all due at {_format_sec(failed.starts)}.",
        f"{failed.task} fails at {_format_sec(failed.ends)}; its back-off is {wait}.",
    ]


def _format_timelines(comparison: Comparison) -> str:
    without, prioritized = comparison.without, comparison.prioritized
    return _format_grid(
        (f"without priority ({without.selection})", f"with priority ({prioritized.selection})"),
        [tuple(map(_format_step, steps)) for steps in zip(without.steps, prioritized.steps, strict=True)],
    )


def _format_step(step: Step) -> str:
    note = " fails" if step.fails else " retry" if step.is_retry else ""
    return f"{_format_sec(step.starts):>5} - {_format_sec(step.ends):>5}  {step.task}{note}"


def _format_savings(result: RetryPriority) -> str:
    first = result.waiting.without.steps[0]
    run = _format_sec(first.ends - first.starts)
    return _format_grid(
        ("after a failure", "retry without", "retry with", "saved", "estimate: ahead x run / slots"),
        [
            (
                "worker waits" if comparison.waits_out_backoff else "Tidemill does not wait",
                f"at {_format_sec(comparison.without.retry_starts)}",
                f"at {_format_sec(comparison.prioritized.retry_starts)}",
                _format_sec(comparison.time_saved),
                f"{comparison.ahead} x {run} / 1 = {_format_sec(comparison.estimate)}",
            )
            for comparison in (result.waiting, result.tidemill)
        ],
    )


def _format_intervals(intervals: Iterable[Interval]) -> str:
    headings = (
        "time", "wave", "retry\npool", "of it\ndue", "of it in\nback-off", "slots held\nby retries",
        "fresh runs\nended", "of them\nfailed", "fresh\nwaiting",
    )  # fmt: skip
    return _format_grid(headings, map(_format_interval, intervals), justify="right")


def _format_interval(interval: Interval) -> tuple[str, ...]:
    return (
        f"{interval.starts.total_seconds():.0f} - {_format_sec(interval.ends)}",
        str(interval.wave or ""),
        str(interval.retry_pool),
        str(interval.retries_due),
        str(interval.retries_in_backoff),
        f"{interval.retry_slots:.1%}",
        f"{interval.fresh_per_sec:.1f}/s",
        f"{interval.failed_per_sec:.1f}/s",
        str(interval.fresh_waiting),
    )


def _describe_conclusion(result: Starvation, contrast: Starvation) -> list[str]:
    scenario, selection = result.scenario, contrast.scenario.selection
    part = 1 - scenario.retry_share
    rate = scenario.slots * part / scenario.run_time.total_seconds()
    least, contrast_least = _format_least_rate(result), _format_least_rate(contrast)
    empty, contrast_empty = _format_sec(result.pool_empty_after), _format_sec(contrast.pool_empty_after)
    return [
        f"The retry pool, {result.largest_pool} tasks at its largest, was empty after {empty}.",
        f"Fresh throughput never fell below {least} while fresh tasks waited; {part:.0%} of the slots do {rate:g}/s.",
        f"With {selection} the pool is empty after {contrast_empty}, but fresh throughput falls to {contrast_least}.",
    ]


def _format_least_rate(result: Starvation) -> str:
    return "none" if result.least_fresh_per_sec is None else f"{result.least_fresh_per_sec:.1f}/s"


def _format_grid(headings: Sequence[str], rows: Iterable[Sequence[str]], *, justify: JustifyMethod = "left") -> str:
    grid = Table(box=box.ASCII, show_edge=False)
    for heading in headings:
        grid.add_column(heading, justify=justify)
    for row in rows:
        grid.add_row(*row)
    return render_table(grid, width=WIDTH, is_terminal=False)


def _format_sec(span: timedelta) -> str:
    return f"{round(span.total_seconds(), 1):g} s"
