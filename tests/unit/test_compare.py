"""Two trees are compared by the ratio within each pair, and a figure is worse only beyond the noise."""

import pytest

from tools.compare import Comparison, Name, compare, interval

FLOOR: Name = ("floor", "a task", "of the floor")
TIMES_AS_FAST: Name = ("floor", "a task, beside findAndModify", "times")
TIMES_AS_SLOW: Name = ("growth", "a claim of a million", "times")
TIME: Name = ("latency", "a wake", "ms")


def _only(old: list[float], new: list[float], name: Name) -> Comparison:
    [comparison] = compare([({name: before}, {name: after}) for before, after in zip(old, new, strict=True)])
    return comparison


@pytest.mark.parametrize(("count", "bounds"), [(1, (1, 1)), (3, (1, 3)), (5, (1, 5)), (9, (2, 8)), (15, (4, 12))])
def test_an_interval_of_the_median_holds_95_percent(count: int, bounds: tuple[float, float]) -> None:
    assert interval([float(number) for number in range(1, count + 1)]) == bounds


def test_ratios_are_turned_so_that_more_is_better() -> None:
    assert _only([1.0] * 9, [2.0] * 9, FLOOR).ratio == 2
    assert _only([1.0] * 9, [2.0] * 9, TIME).ratio == 0.5
    assert _only([1.0] * 9, [2.0] * 9, TIMES_AS_FAST).ratio == 2
    assert _only([1.0] * 9, [2.0] * 9, TIMES_AS_SLOW).ratio == 0.5


@pytest.mark.parametrize(("new", "is_worse"), [([0.9] * 9, True), ([0.9] * 7 + [1.0] * 2, False), ([0.96] * 9, False)])
def test_a_figure_is_worse_where_the_whole_interval_is_below(new: list[float], *, is_worse: bool) -> None:
    assert _only([1.0] * 9, new, FLOOR).is_worse is is_worse


def test_a_figure_of_one_tree_only_is_left_out() -> None:
    assert compare([({FLOOR: 1.0}, {TIME: 1.0})]) == []
