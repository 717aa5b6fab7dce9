"""What a bench may have found, for the tests of what is made of it."""

from __future__ import annotations

from typing import Any, Final

from tools.bench.__main__ import SECTIONS
from tools.bench.figures import Figure, Section, Target, as_json

MACHINE: Final = {
    "cpu": "A processor",
    "cores": 2,
    "memory_gb": 23.5,
    "os": "An OS",
    "python": "3.11.7",
    "pymongo": "4.20.1",
    "mongodb": "6.0.5",
    "date": "2031-07-01",
    "commit": None,
}
CLAIMERS: Final = [
    {"claimers": n, "tasks_per_sec": 1000.0 + n, "least": 900.0 + n, "most": 1100.0 + n} for n in (1, 2, 4)
]
BACKLOG: Final = [
    {"pending": pending, "finished": finished, "delayed": 0, "ms": 5.0, "least": 4.0, "most": 6.0}
    for pending in (1_000, 1_000_000)
    for finished in (0, 1_000_000)
]
RECENT: Final = [{"claimed_before": n, "ms": 5.0, "least": 4.0, "most": 6.0} for n in (0, 300_000)]


def whole() -> dict[str, Any]:
    """A bench at full scale, in which each section has one figure."""
    sections = [section(name, Figure(name="of it", value=1.0, unit="times")) for name in SECTIONS]
    sections[0]["series"] = {"claimers": CLAIMERS, "backlog": BACKLOG, "recent": RECENT}
    return {"machine": MACHINE, "scale": "full", "seconds": 540.2, "sections": sections}


def section(name: str, *figures: Figure) -> dict[str, Any]:
    """A section as `alone.measured` returns it."""
    return {"name": name, "seconds": 60.0, **as_json(Section(title=name.title(), figures=figures))}


def figure(value: float, **fields: Any) -> Figure:
    """A figure whose target is at least one, but for *fields*."""
    given: dict[str, Any] = {"name": "claim of 100", "unit": "times", "target": Target(at_least=1)}
    return Figure(**given | {"value": value} | fields)
