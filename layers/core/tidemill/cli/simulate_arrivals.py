"""The simulation of arrivals on a terminal."""

from __future__ import annotations

from rich.table import Table

from tidemill.cli.plain_text import printed, sec, table
from tidemill.simulation import Arrivals, Course
from tidemill.simulation.arrivals import HARD, HARD_RATE, LONG
from tidemill.simulation.containers import Surroundings


def arrivals_text(result: Arrivals) -> str:
    """Return the waits at every rate, and what they become without each of the parts."""
    usual, ((_, whole), *_) = Surroundings(), result.hard
    longest = max(one.longest for one in (*result.ordinary, *result.alone, whole))
    lines = [
        f"Tasks of {_span(usual.runs_for)} come in by themselves through {usual.containers} containers that wake.",
        f"An executor starts {_span(usual.starts_in)} after that and claims for {usual.claims_for:g} s.",
        f"A tick comes every {usual.tick:g} s.",
        "",
        printed(_waits(result)),
        f"What each part is for, at {HARD_RATE:g} tasks a second, with one executor at a time,",
        f"which claims for {HARD.claims_for:g} s and may take {HARD.runs_for[1]:g} s more to finish:",
        "",
        printed(_parts(result)),
        f"With all of them, no task waited longer than {sec(longest)}.",
    ]
    return "\n".join(lines)


def _waits(result: Arrivals) -> Table:
    made = table(
        "tasks a\nsecond",
        "median\nwait",
        "longest\nwait",
        "executors\nstarted",
        "of them\nturned away",
        "one at a time:\nmedian",
        "longest\nwait",
        justify="right",
    )
    for usual, alone in zip(result.ordinary, result.alone, strict=True):
        made.add_row(
            f"{usual.per_sec:g}",
            *_wait(usual),
            f"{usual.executors / usual.tasks:.2f} a task",
            f"{usual.turned_away / usual.executors:.0%}",
            *_wait(alone),
        )
    return made


def _wait(course: Course) -> tuple[str, str]:
    return f"{course.median.total_seconds():.2f} s", f"{course.longest.total_seconds():.2f} s"


def _parts(result: Arrivals) -> Table:
    made = table("without", "longest wait", f"above {sec(LONG)}")
    for name, course in result.hard:
        made.add_row(name, sec(course.longest), f"{course.long} of {course.tasks}")
    return made


def _span(span: tuple[float, float]) -> str:
    return f"{span[0]:g} to {span[1]:g} s"
