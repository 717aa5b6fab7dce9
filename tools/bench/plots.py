"""The plots of a bench, from its JSON alone: ``python -m tools.bench.plots build/bench.json [FOLDER]``.

The same JSON gives the same bytes.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final, TypeAlias

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

Point: TypeAlias = Mapping[str, float]

COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
"""Of Okabe and Ito, told apart by everyone."""

STYLE: Final[dict[Any, Any]] = {
    "svg.hashsalt": "tidemill",
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "axes.axisbelow": True,
    "legend.frameon": False,
    "savefig.facecolor": "white",  # also where the page is dark
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A plot of the series of the same name."""

    title: str
    draw: Callable[[Axes, Sequence[Point]], None]


def draw(found: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write ``NAME.svg`` into *folder* for every plot that *found* has points of, and return the files."""
    series = {name: points for one in found["sections"] for name, points in one.get("series", {}).items()}
    files = []
    for name, plot in PLOTS.items():
        if series.get(name):
            files.append(folder / f"{name}.svg")
            _write(plot, series[name], files[-1])
    return files


def _write(plot: Plot, points: Sequence[Point], to: Path) -> None:
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(7.5, 4.2), layout="constrained")
        axes = figure.add_subplot()
        plot.draw(axes, points)
        axes.set_title(plot.title, loc="left")
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        if len(axes.get_legend_handles_labels()[0]) > 1:
            axes.legend(loc="lower left")  # where nothing else is: from zero on
        figure.savefig(to, format="svg", metadata={"Date": None})


def _claimers(axes: Axes, points: Sequence[Point]) -> None:
    _line(axes, points, x="claimers", y="tasks_per_sec", label="claim and settle, 100 at a time")
    alone = next(point["tasks_per_sec"] for point in points if point["claimers"] == 1)
    axes.axhline(alone, color="#555555", linestyle="--", linewidth=1, label="one claimer")
    axes.set_xscale("log", base=2)
    axes.set_xticks([point["claimers"] for point in points], [f"{point['claimers']:g}" for point in points])
    axes.set_xlabel("claimers on one queue")
    axes.set_ylabel("tasks a second, all together")


def _backlog(axes: Axes, points: Sequence[Point]) -> None:
    def beside(point: Point) -> tuple[float, float]:
        return point["finished"], point["delayed"]

    for number, (key, line) in enumerate(groupby(sorted(points, key=beside), beside)):
        by_size = sorted(line, key=lambda point: point["pending"])
        _line(axes, by_size, x="pending", y="ms", label=_label(*key), colour=COLOURS[number % len(COLOURS)])
    _bound(axes, points)
    axes.set_xscale("log")
    sizes = sorted({point["pending"] for point in points})
    axes.set_xticks(sizes, [_short(size) for size in sizes])
    axes.minorticks_off()
    axes.set_xlabel("pending tasks")
    axes.set_ylabel("a claim of 100, ms")


def _recent(axes: Axes, points: Sequence[Point]) -> None:
    _line(axes, points, x="claimed_before", y="ms", label="a claim of 100")
    _bound(axes, points)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))
    axes.set_xlabel("tasks claimed in the minute before")
    axes.set_ylabel("a claim of 100, ms")


PLOTS: Final = {
    "claimers": Plot(title="Throughput against claimers", draw=_claimers),
    "backlog": Plot(title="Claim time against backlog", draw=_backlog),
    "recent": Plot(title="Claim time against recent claims", draw=_recent),
}
"""By the series that they show."""


def _line(axes: Axes, points: Sequence[Point], *, x: str, y: str, label: str, colour: str = COLOURS[0]) -> None:
    """Draw medians as a line and extremes as a band."""
    at = [point[x] for point in points]
    axes.fill_between(
        at, [point["least"] for point in points], [point["most"] for point in points], color=colour, alpha=0.18, lw=0
    )
    axes.plot(at, [point[y] for point in points], color=colour, marker="o", label=label)


def _bound(axes: Axes, points: Sequence[Point]) -> None:
    smallest = min(point["ms"] for point in points)
    label = "1.5 times the smallest"
    axes.axhline(1.5 * smallest, color="#555555", linestyle="--", linewidth=1, label=label)


def _label(finished: float, delayed: float) -> str:
    besides = [f"{_short(count)} {what}" for count, what in ((finished, "finished"), (delayed, "delayed")) if count > 0]
    return "beside " + " and ".join(besides) if besides else "pending alone"


def _short(count: float) -> str:
    for size, letter in ((1e6, " M"), (1e3, " k")):
        if count >= size:
            return f"{count / size:g}{letter}"
    return f"{count:g}"


def main(arguments: Sequence[str]) -> int:
    """Draw; return the exit status."""
    if len(arguments) not in {1, 2}:
        sys.exit("usage: python -m tools.bench.plots bench.json [FOLDER]")
    source = Path(arguments[0])
    found = json.loads(source.read_text(encoding="utf-8"))
    draw(found, Path(arguments[1]) if len(arguments) > 1 else source.parent)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
