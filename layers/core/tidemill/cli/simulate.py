"""``tidemill simulate``: results of the simulations as plain text, the same on a terminal and in a file, or as JSON."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from io import StringIO
from random import Random
from typing import Final

from rich import box
from rich.console import Console, JustifyMethod
from rich.table import Table

from tidemill.cli.commands import Command, Group, build_json_option, is_json_wanted
from tidemill.cli.output import print_json, print_text
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

WIDTH: Final = 100
"""Columns of a table."""


def build_table(*headings: str, justify: JustifyMethod = "left") -> Table:
    """Return an empty table with a column for each of *headings*."""
    grid = Table(box=box.ASCII, show_edge=False)
    for heading in headings:
        grid.add_column(heading, justify=justify)
    return grid


def render_table(rows: Table) -> str:
    """Return a table as lines of text."""
    # Never a terminal: the text depends only on the data.
    console = Console(file=StringIO(), width=WIDTH, color_system=None, force_terminal=False, legacy_windows=False)
    with console.capture() as capture:
        console.print(rows)
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def sec(span: timedelta) -> str:
    """Return *span* as text in seconds."""
    return f"{round(span.total_seconds(), 1):g} s"


SEED: Final = 1
"""Seed of the jitter: every run prints the same."""


simulate: Final = Group("simulate", "Simulate retry policies on a virtual clock.")


def format_retry_priority(result: RetryPriority) -> str:
    """Return both timelines and the time that going first saves."""
    return "\n".join(
        [
            *_describe_setting(result.waiting.prioritized),
            "This worker waits out the back-off of a task that failed before it takes the next one:",
            "",
            render_table(_build_timelines(result.waiting)),
            f"Time saved by priority: {sec(result.waiting.time_saved)}.",
            "Tidemill's executor does not wait, it takes the next task at once:",
            "",
            render_table(_build_savings(result)),
        ]
    ).rstrip()


def format_starvation(result: Starvation, *, contrast: Starvation) -> str:
    """Return the course of *result* and a conclusion; *contrast* is the same scenario with another selection."""
    scenario = result.scenario
    waves = ", ".join(f"{wave.tasks} at {sec(wave.at)}" for wave in scenario.waves)
    run = sec(scenario.run_time)
    return "\n".join(
        [
            f"{scenario.slots} slots, {scenario.fresh_per_sec} fresh tasks a second, runs of {run}.",
            f"Waves that come in at once and fail their first run: {waves}.",
            f"Selection {scenario.selection}, retry share {scenario.retry_share:.0%}.",
            "",
            render_table(_build_intervals(result.intervals)),
            *_describe_conclusion(result, contrast),
        ]
    )


@simulate.command(
    "retry-priority", cls=Command, params=[build_json_option()], example="tidemill simulate retry-priority --json"
)
def _print_retry_priority() -> None:
    """Show the time that a retry gains by going first."""
    result = simulate_retry_priority()
    if is_json_wanted():
        print_json(result)
    else:
        print_text(format_retry_priority(result))


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
        print_text(format_starvation(weighted, contrast=retries_first))


def _make_rng() -> Random:
    return Random(SEED)  # noqa: S311 - jitter is no secret


def _describe_setting(timeline: Timeline) -> list[str]:
    fresh = [step for step in timeline.steps if not step.is_retry]
    [failed] = [step for step in fresh if step.fails]
    return [
        f"One worker, {len(fresh)} tasks of {sec(failed.ends - failed.starts)}, all due at {sec(failed.starts)}.",
        f"{failed.task} fails at {sec(failed.ends)}; its back-off is {sec(timeline.retry_starts - failed.ends)}.",
    ]


def _build_timelines(comparison: Comparison) -> Table:
    grid = build_table(
        _format_heading("without priority", comparison.without),
        _format_heading("with priority", comparison.prioritized),
    )
    for steps in zip(comparison.without.steps, comparison.prioritized.steps, strict=True):
        grid.add_row(*(_format_step(step) for step in steps))
    return grid


def _format_heading(words: str, timeline: Timeline) -> str:
    return f"{words} ({timeline.selection})"


def _format_step(step: Step) -> str:
    note = " fails" if step.fails else " retry" if step.is_retry else ""
    return f"{sec(step.starts):>5} - {sec(step.ends):>5}  {step.task}{note}"


def _build_savings(result: RetryPriority) -> Table:
    grid = build_table("after a failure", "retry without", "retry with", "saved", "estimate: ahead x run / slots")
    first = result.waiting.without.steps[0]
    for comparison in (result.waiting, result.tidemill):
        grid.add_row(
            "worker waits" if comparison.waits_out_backoff else "Tidemill does not wait",
            f"at {sec(comparison.without.retry_starts)}",
            f"at {sec(comparison.prioritized.retry_starts)}",
            sec(comparison.time_saved),
            f"{comparison.ahead} x {sec(first.ends - first.starts)} / 1 = {sec(comparison.estimate)}",
        )
    return grid


def _build_intervals(intervals: Iterable[Interval]) -> Table:
    grid = build_table(
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
    for interval in intervals:
        grid.add_row(
            f"{interval.starts.total_seconds():.0f} - {sec(interval.ends)}",
            str(interval.wave or ""),
            str(interval.retry_pool),
            str(interval.retries_due),
            str(interval.retries_in_backoff),
            f"{interval.retry_slots:.1%}",
            f"{interval.fresh_per_sec:.1f}/s",
            f"{interval.failed_per_sec:.1f}/s",
            str(interval.fresh_waiting),
        )
    return grid


def _describe_conclusion(result: Starvation, contrast: Starvation) -> list[str]:
    scenario, selection = result.scenario, contrast.scenario.selection
    part = 1 - scenario.retry_share
    rate = scenario.slots * part / scenario.run_time.total_seconds()
    least, contrast_least = _format_least_rate(result), _format_least_rate(contrast)
    empty, contrast_empty = sec(result.pool_empty_after), sec(contrast.pool_empty_after)
    return [
        f"The retry pool, {result.largest_pool} tasks at its largest, was empty after {empty}.",
        f"Fresh throughput never fell below {least} while fresh tasks waited; {part:.0%} of the slots do {rate:g}/s.",
        f"With {selection} the pool is empty after {contrast_empty}, but fresh throughput falls to {contrast_least}.",
    ]


def _format_least_rate(result: Starvation) -> str:
    return "none" if result.least_fresh_per_sec is None else f"{result.least_fresh_per_sec:.1f}/s"
