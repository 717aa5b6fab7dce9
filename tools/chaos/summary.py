"""The summary of a chaos, from its JSON alone: for a terminal, and for the documentation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

Row: TypeAlias = tuple[str, ...]

HEAD: Final[Row] = (
    "section", "seconds", "faults", "accepted", "done", "cancelled", "dead", "alive", "lost", "ran again", "broken",
)  # fmt: skip
COUNTERS: Final = ("rules: ", "really done: ", "cut short: ")
"""Beginnings of the notes that count each rule of the model: for a terminal only."""
COUNTS: Final = ("accepted", "done", "cancelled", "dead", "alive", "lost")


def survived(found: Mapping[str, Any]) -> bool:
    """Tell whether every section did its work, no task was lost and no promise broken."""
    return all("failed" not in one and not one["lost"] and not one["broken"] for one in found["sections"])


def on_screen(found: Mapping[str, Any]) -> RenderableType:
    """Return the summary for a terminal."""
    table = Table(*HEAD, box=None, pad_edge=False, header_style="bold")
    for column in table.columns[1:]:
        column.justify = "right"
    for row in _rows(found):
        table.add_row(*row)
    return Group(table, "", *[Text(line) for line in _details(found)], "", *_broken(found), Text(verdict(found)))


def markdown(found: Mapping[str, Any]) -> str:
    """Return the summary for the documentation."""
    lines = [run_on(found), "", _line(HEAD), _line(["---", *["---:"] * (len(HEAD) - 1)])]
    lines += [_line(row) for row in _rows(found)]
    lines += ["", *[f"- {line}" for line in _details(found, without=COUNTERS)], "", verdict(found)]
    return "\n".join(lines)


def run_on(found: Mapping[str, Any]) -> str:
    """Return the sentence about the machine, the day, and how long it took."""
    on = found["machine"]
    commit = f", commit {on['commit']}" if on["commit"] else ""
    return (
        f"Survived on {on['date']} in {found['seconds']:.0f} s, with seed {found['seed']}: {on['cores']} cores, "
        f"{on['os']}, Python {on['python']}, pymongo {on['pymongo']}, MongoDB {on['mongodb']}{commit}."
    )


def verdict(found: Mapping[str, Any]) -> str:
    """Return the sentence that matters."""
    whole = [one for one in found["sections"] if "failed" not in one]
    faults = sum(sum(one["faults"].values()) for one in whole)
    sums = {name: sum(one[name] for one in whole) for name in COUNTS}
    ends = ", ".join(f"{sums[name]:,} {name}" for name in COUNTS[1:])
    failed = len(found["sections"]) - len(whole)
    said = f"{faults:,} faults injected; {sums['accepted']:,} tasks accepted: {ends}."
    if survived(found):
        return f"{said} Every promise held."
    return f"{said} NOT SURVIVED: {sum(len(one['broken']) for one in whole)} broken, {failed} sections failed."


def _rows(found: Mapping[str, Any]) -> Iterator[Row]:
    for one in found["sections"]:
        name, seconds = one["name"].replace("_", " "), f"{one['seconds']:.0f}"
        if "failed" in one:
            yield (name, seconds, "FAILED", *[""] * (len(HEAD) - 3))
            continue
        counts = [f"{number:,}" for number in (sum(one["faults"].values()), *[one[count] for count in COUNTS])]
        yield (name, seconds, *counts, f"{sum(one['repeated'].values()):,}", str(len(one["broken"])))


def _details(found: Mapping[str, Any], *, without: tuple[str, ...] = ()) -> Iterator[str]:
    for one in found["sections"]:
        name = one["name"].replace("_", " ")
        if "failed" in one:
            yield f"{name}: FAILED: {one['failed']}"
            continue
        if any(one["faults"].values()):
            yield f"{name}: {_counted(one['faults'])}"
        if any(one["repeated"].values()):
            yield f"{name}: ran again: {_counted(one['repeated'])}"
        yield from (f"{name}: {note}" for note in one["notes"] if not note.startswith(without))


def _broken(found: Mapping[str, Any]) -> Iterator[Text]:
    for one in found["sections"]:
        yield from (Text(f"BROKEN by {one['name']}: {sentence}", style="red") for sentence in one.get("broken", ()))


def _counted(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{number:,} {what}" for what, number in Counter(numbers).most_common() if number)


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
