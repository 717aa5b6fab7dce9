"""What the functions took, in milliseconds of this machine."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import Final

from tests.end_to_end.deployed.cloud import Report

_HEAD: Final = ("function", "init p50", "n", "first", "warm p50", "warm p90", "n", "processor", "log bytes")
_ROW: Final = "{:18}{:>10}{:>5}{:>8}{:>10}{:>10}{:>5}{:>11}{:>11}"


class Table:
    """A row for each function: its import, its first invocation, and the usual one, with what that costs."""

    def __init__(self) -> None:
        self._starts: defaultdict[str, list[float]] = defaultdict(list)
        self._first: defaultdict[str, list[float]] = defaultdict(list)
        self._warm: defaultdict[str, list[float]] = defaultdict(list)
        self._costs: dict[str, tuple[float, float]] = {}
        self._notes: list[str] = []

    def add_starts(self, reports: Iterable[Report]) -> None:
        """Add what starts took, whatever was asked for then."""
        for one in reports:
            if one.init_ms is not None and one.how == "response":
                self._starts[one.function].append(one.init_ms)

    def add_usual(self, reports: Iterable[Report]) -> None:
        """Add what usual invocations took."""
        for one in reports:
            (self._warm if one.init_ms is None else self._first)[one.function].append(one.duration_ms)

    def add_cost(self, function: str, *, cpu_ms: float, log_bytes: float) -> None:
        """Add what a usual invocation needs of the processor, and how much it logs."""
        self._costs[function] = (cpu_ms, log_bytes)

    def note(self, line: str) -> None:
        """Add a line below."""
        self._notes.append(line)

    def lines(self) -> Iterator[str]:
        """Return the table, if there is anything in it."""
        if not self._starts:
            return
        yield ""
        yield _ROW.format(*_HEAD) + "   (ms)"
        for function in sorted(self._starts):
            starts, first, warm = self._starts[function], self._first[function], self._warm[function]
            costs = [f"{one:.1f}" for one in self._costs.get(function, ())] or ["-", "-"]
            yield _ROW.format(function, *_middle(starts), _middle(first)[0], *_middle(warm, tail=True), *costs)
        yield from self._notes


def _middle(values: Sequence[float], *, tail: bool = False) -> tuple[str, ...]:
    if not values:
        return ("-",) * (3 if tail else 2)
    late = (f"{sorted(values)[len(values) * 9 // 10]:.1f}",) if tail else ()
    return (f"{median(values):.1f}", *late, str(len(values)))
