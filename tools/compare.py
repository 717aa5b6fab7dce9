"""``python -m tools.compare REVISION``: measure the working tree beside an older revision, in turn.

Each pair runs the bench once in either tree, the older one first in every second pair. A figure is
compared by the ratio within a pair, turned so that more is better. The median of the pairs is printed with an
interval that holds the true median with at least 95 % (order statistics, binomial; nine pairs: the second least and
the second most). A figure is worse where its whole interval lies below `WORSE_BELOW`. Counts are compared as they are.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

ROOT: Final = Path(__file__).parents[1]
WORSE_BELOW: Final = 0.95
CONFIDENCE: Final = 0.95
SECTIONS: Final = ("enqueue", "floor", "contention", "archive")
MORE_IS_BETTER: Final = frozenset({"of the floor", "of that of one", "tasks/s"})
"""Units. In ``floor`` this also holds for ``times``: as fast as findAndModify; elsewhere ``times`` is a cost."""

COUNTS: Final = frozenset({
    "a cycle", "a second", "a task", "bytes a task", "commands", "connections", "entries a task", "keys",
    "keys a task", "modules", "round trips",
})  # fmt: skip

Name: TypeAlias = tuple[str, str, str]
"""Section, name and unit of a figure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Figure of both trees. ``least`` and ``most`` bound the median of the ratio."""

    name: Name
    ratio: float
    least: float
    most: float
    old: float
    new: float

    @property
    def is_worse(self) -> bool:
        """Whether the whole interval lies below the limit."""
        return self.most < WORSE_BELOW


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """Return the bounds of the median by order statistics; of few pairs the extremes.

    Source: the number of values below the median is binomial with n and 1/2.
    """
    values, left_out, tail = sorted(ratios), 0, 0.0
    while left_out < (len(values) - 1) // 2:
        tail += math.comb(len(values), left_out) / 2 ** len(values)
        if 1 - 2 * tail < CONFIDENCE:
            break
        left_out += 1
    kept = max(left_out - 1, 0)
    return values[kept], values[-1 - kept]


def compare(pairs: Sequence[tuple[Mapping[Name, float], Mapping[Name, float]]]) -> list[Comparison]:
    """Return how each figure that both trees have differs. A pair is the figures of the old tree and of the new one."""
    ratios: dict[Name, list[float]] = defaultdict(list)
    olds: dict[Name, list[float]] = defaultdict(list)
    news: dict[Name, list[float]] = defaultdict(list)
    for before, after in pairs:
        for name in before.keys() & after.keys():
            olds[name].append(before[name])
            news[name].append(after[name])
            if before[name] > 0 and after[name] > 0:
                ratio = after[name] / before[name]
                is_gain = name[2] in MORE_IS_BETTER or (name[0], name[2]) == ("floor", "times")
                ratios[name].append(ratio if is_gain else 1 / ratio)
    found = []
    for name, values in sorted(ratios.items()):
        least, most = interval(values)
        old, new = statistics.median(olds[name]), statistics.median(news[name])
        found.append(Comparison(name=name, ratio=statistics.median(values), least=least, most=most, old=old, new=new))
    return found


def measure(tree: Path, sections: Sequence[str]) -> dict[Name, float]:
    """Return the figures of one quick bench of *tree*."""
    folders = (tree / "layers/core", tree / "layers/tasks", tree)
    module = "tools.bench" if (tree / "tools/bench").is_dir() else "tests.bench"  # where it was until it was a tool
    subprocess.run(
        [sys.executable, "-m", module, "--quick", "--only", *sections],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, folders))},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    found = json.loads((tree / "build/bench.json").read_text(encoding="utf-8"))
    return {
        (section["name"], figure["name"], figure["unit"]): figure["value"]
        for section in found["sections"]
        for figure in section["figures"]
    }


def main() -> int:
    """Compare; print a line for each figure, and return 1 where one is worse or a count differs."""
    parser = argparse.ArgumentParser(prog="python -m tools.compare", description=__doc__)
    parser.add_argument("revision", help="what the working tree is compared with")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--only", nargs="+", default=list(SECTIONS), metavar="SECTION")
    chosen = parser.parse_args()
    pairs = []
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "old"
        subprocess.run(["git", "clone", "--quiet", "--no-checkout", ROOT, tree], check=True)
        subprocess.run(["git", "-C", tree, "checkout", "--quiet", "--detach", chosen.revision], check=True)
        for number in range(chosen.pairs):
            old_first = [(tree, 0), (ROOT, 1)]
            found = {place: measure(path, chosen.only) for path, place in old_first[:: -1 if number % 2 else 1]}
            pairs.append((found[0], found[1]))
            sys.stderr.write(f"tidemill: pair {number + 1} of {chosen.pairs} is measured\n")
    status = 0
    for comparison in compare(pairs):
        section, name, unit = comparison.name
        is_count = unit in COUNTS
        worse = comparison.old < comparison.new if is_count else comparison.is_worse
        status = max(status, int(worse))
        bounds = "" if is_count else f"  [{comparison.least:.2f}, {comparison.most:.2f}]"
        sys.stdout.write(
            f"{section:<11} {name:<58.58} {comparison.old:>9.3g} -> {comparison.new:<9.3g} {unit:<15}"
            f" {comparison.ratio:5.2f}{bounds}{'  WORSE' if worse else ''}\n"
        )
    return status


if __name__ == "__main__":
    sys.exit(main())
