"""The table of a bench, from its JSON alone: for a terminal, and for the documentation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

Row: TypeAlias = tuple[str, str, str, str, str, str]

HEAD: Final[Row] = ("figure", "measured", "spread", "target", "", "beside it")
WIDTHS: Final = (46, 18, 16, 8, 6, None)
"""Columns on a terminal; the last has the rest."""

MET: Final = "met"
MISSED: Final = "missed"


def on_screen(found: Mapping[str, Any]) -> RenderableType:
    """Return the table for a terminal, and what follows from it."""
    return Group(_lines(HEAD), *map(_on_screen, found["sections"]), Text(run_on(found)), Text(verdict(found)))


def _on_screen(section: Mapping[str, Any]) -> RenderableType:
    heading = Text(f"{title(section)}, {section['seconds']:.0f} s", style="bold")
    failed = [Text(f"FAILED: {section['failed']}", style="red")] if "failed" in section else []
    return Group(heading, *failed, *map(_lines, _rows(section)), "")


def _lines(row: Row) -> RenderableType:
    """Return *row*, as wide as any other: one table would fold its headings into the first column."""
    grid = Table.grid(expand=True, padding=(0, 2, 0, 0))
    for width in WIDTHS:
        grid.add_column(width=width, ratio=None if width else 1)
    name, *cells, beside = row
    style = "red" if MISSED in cells else ""
    grid.add_row(Text(f"  {name}"), *[Text(cell, style=style) for cell in cells], Text(beside, style="dim"))
    return grid


def markdown(found: Mapping[str, Any]) -> str:
    """Return the table for the documentation; what missed its target is bold."""
    lines = [run_on(found), "", f"| {' | '.join(HEAD)} |", "| --- | ---: | ---: | ---: | --- | --- |"]
    for section in found["sections"]:
        lines.append(f"| **{title(section)}** |" + " |" * (len(HEAD) - 1))
        for row in _rows(section):
            cells = [cell.replace("|", "\\|") for cell in row]
            cells[4] = f"**{cells[4]}**" if cells[4] == MISSED else cells[4]
            lines.append("|" + "".join(f" {cell} |" if cell else " |" for cell in cells))
    return "\n".join([*lines, "", verdict(found)]).rstrip()


def title(section: Mapping[str, Any]) -> str:
    """Return the title of *section*; of one that failed, its name."""
    return str(section.get("title", section["name"]))


def run_on(found: Mapping[str, Any]) -> str:
    """Return the sentence about the machine, the day, and how much was measured."""
    on = found["machine"]
    commit = f", commit {on['commit']}" if on["commit"] else ""
    return (
        f"Measured on {on['date']} in {found['seconds']:.0f} s, at {found['scale']} scale: {on['cpu']}, "
        f"{on['cores']} cores, {on['memory_gb']:g} GB; {on['os']}, Python {on['python']}, pymongo {on['pymongo']}, "
        f"MongoDB {on['mongodb']} on the same machine{commit}."
    )


def verdict(found: Mapping[str, Any]) -> str:
    """Return the sentence about the targets; without any, nothing."""
    figures = [figure for section in found["sections"] for figure in section.get("figures", ())]
    held = [figure["is_met"] for figure in figures if figure["target"]]
    return f"{sum(held)} of {len(held)} targets are met." if held else ""


def _rows(section: Mapping[str, Any]) -> Iterator[Row]:
    for figure in section.get("figures", ()):
        least, most, target = figure["least"], figure["most"], figure["target"] or ""
        yield (
            figure["name"],
            f"{number(figure['value'])} {figure['unit']}",
            "" if least is None or most is None else f"{number(least)} to {number(most)}",
            target,
            "" if not target else MET if figure["is_met"] else MISSED,
            figure["absolute"],
        )


def number(value: float) -> str:
    """Return *value* with three digits, or as a whole number with all of them."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
