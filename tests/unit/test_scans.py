"""Where the next scan starts: behind what was taken, and over nothing else."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.fixtures import T0
from tidemill.store.scan import (
    CLAIM_ORDER,
    FIRST_CONTENDED_WIDTH,
    MAX_WIDTH,
    Key,
    Scan,
    adjust_width,
    advance_scan,
    draw_skip,
    due_filter,
    read_key,
)

pytestmark = pytest.mark.slow

SCAN = Scan(queue="eu", lanes=("retry",))
Entry = tuple[int | float, datetime, int]
ENTRIES = st.tuples(
    st.integers(-2, 2) | st.sampled_from([-1.5, 0.0, 1.0, 2.5, float("inf")]),
    st.integers(-3, 3).map(lambda minutes: T0 + timedelta(minutes=minutes)),
    st.integers(0, 5),
)


def rank(entry: Entry) -> tuple[float, datetime, int]:
    """The place of an entry in the order of claims, which is ORDER."""
    priority, due_at, number = entry
    return -priority, due_at, number


def document(entry: Entry) -> dict[str, Any]:
    priority, due_at, number = entry
    return {"priority": priority, "due_at": due_at, "_id": number}


def matches(where: dict[str, Any], found: dict[str, Any]) -> bool:
    """What MongoDB's matcher does, for the operators a scan may use."""
    tests = {"$gt": lambda a, b: a > b, "$gte": lambda a, b: a >= b, "$eq": lambda a, b: a == b}
    tests |= {"$lt": lambda a, b: a < b, "$lte": lambda a, b: a <= b}
    if "$or" in where:
        assert len(where) == 1, "what stands beside an $or at the root keeps the server from merging scans"
        return any(matches(part, found) for part in where["$or"])
    return all(
        all(tests[name](found[field], bound) for name, bound in wanted.items())
        if isinstance(wanted, dict)
        else found[field] == wanted
        for field, wanted in where.items()
    )


def selected(scan: Scan, entries: list[Entry], *, now: datetime = T0) -> list[Entry]:
    where = due_filter([scan], now=now)
    rest = {"status": "pending", "queue": "eu", "lane": "retry"}
    return [one for one in entries if matches(where, rest | document(one))]


def test_the_order_of_claims_is_priority_then_due_time_then_id() -> None:
    assert list(CLAIM_ORDER.items()) == [("priority", -1), ("due_at", 1), ("_id", 1)]


@given(st.lists(ENTRIES))
def test_a_full_look_sees_all_that_is_due(entries: list[Entry]) -> None:
    assert selected(SCAN, entries) == [one for one in entries if one[1] <= T0]


@given(st.lists(ENTRIES, unique_by=rank), st.integers(0, 20))
def test_a_scan_sees_exactly_what_is_due_and_lies_behind_what_was_taken(entries: list[Entry], count: int) -> None:
    due = sorted((one for one in entries if one[1] <= T0), key=rank)
    taken, left = due[:count], due[count:]

    scan = advance_scan(SCAN, [document(one) for one in taken])

    assert sorted(selected(scan, due), key=rank) == left


@given(st.lists(ENTRIES, unique_by=rank), st.integers(0, 20))
def test_a_full_look_may_start_at_the_key_that_is_known_to_come_first(entries: list[Entry], count: int) -> None:
    left = sorted((one for one in entries if one[1] <= T0), key=rank)[count:]
    assume(left)

    scan = SCAN.from_head(read_key(document(left[0])))

    assert scan.after is None
    assert sorted(selected(scan, left), key=rank) == left
    assert not selected(scan, [one for one in entries if rank(one) < rank(left[0])])
    assert advance_scan(scan, [document(left[0])]) == advance_scan(SCAN, [document(left[0])])


@given(st.lists(ENTRIES, unique_by=rank), st.integers(1, 4))
def test_scans_one_after_the_other_take_everything_once_in_order(entries: list[Entry], limit: int) -> None:
    scan, taken = SCAN, list[Entry]()

    while found := sorted(selected(scan, entries), key=rank)[:limit]:
        taken += found
        scan = advance_scan(scan, [document(one) for one in found])

    assert taken == sorted((one for one in entries if one[1] <= T0), key=rank)


@given(st.lists(ENTRIES, min_size=1), ENTRIES)
def test_a_key_is_passed_whether_its_task_is_still_there_or_not(entries: list[Entry], key: Entry) -> None:
    scan = advance_scan(SCAN, [document(key)])

    assert all(rank(one) > rank(key) for one in selected(scan, entries))


def test_every_alternative_has_the_whole_prefix_of_the_index() -> None:
    scan = Scan(queue="eu", lanes=("retry",), after=Key(priority=1, due_at=T0, id=7))

    for part in due_filter([scan], now=T0)["$or"]:
        assert part.items() >= {"status": "pending", "queue": "eu", "lane": "retry"}.items()
        assert set(part) - {"_id"} == {"status", "queue", "lane", "priority", "due_at"}


def test_from_the_head_is_a_full_look_that_keeps_its_width() -> None:
    scan = Scan(
        queue="eu", lanes=("fresh",), after=Key(priority=1, due_at=T0, id=7), width=4, size_divisor=2, passed=True
    )

    assert scan.from_head() == Scan(queue="eu", lanes=("fresh",), width=4, size_divisor=2)


def test_nothing_taken_moves_nothing() -> None:
    scan = Scan(queue="eu", lanes=("fresh",), after=Key(priority=1, due_at=T0, id=7))

    assert advance_scan(scan, []) == scan


@pytest.mark.parametrize("priority", [None, "high", True, [1]])
def test_a_priority_that_is_no_number_is_no_place_to_start_from(priority: object) -> None:  # F25
    odd = {"priority": priority, "due_at": T0, "_id": 1}
    plain = document((3, T0, 7))

    assert advance_scan(SCAN, [odd]) == SCAN
    assert advance_scan(SCAN, [plain, odd]).after == Key(priority=3, due_at=T0, id=7)
    assert advance_scan(SCAN, [{"due_at": T0, "_id": 1}]) == SCAN


@pytest.mark.parametrize("after", [None, Key(priority=1, due_at=T0, id=7)])
@pytest.mark.parametrize("was_contended", [False, True])
def test_where_nobody_else_claims_nothing_is_passed_over(after: Key | None, was_contended: bool) -> None:  # noqa: FBT001
    assert draw_skip(replace(SCAN, after=after, was_contended=was_contended), limit=100, draw=0.999) == 0


def test_whoever_was_beaten_leaps_further_than_who_looks_at_the_head_and_who_goes_on() -> None:
    head = replace(SCAN, width=9)
    going_on = replace(head, after=Key(priority=1, due_at=T0, id=7))

    leaps = [draw_skip(scan, limit=100, draw=0.5) for scan in (replace(head, was_contended=True), head, going_on)]

    assert leaps == [400, 200, 100]
    assert draw_skip(head, limit=100, draw=0) == 0


@pytest.mark.parametrize(
    ("width", "lost", "then"),
    [(1, 6, FIRST_CONTENDED_WIDTH), (40, 50, 100), (40, 100, MAX_WIDTH), (40, 5, 38.8), (40, 0, 38.8), (1, 0, 1)],
)
def test_a_window_widens_by_what_was_lost_and_narrows_a_little_where_nothing_was(
    width: float, lost: int, then: float
) -> None:
    scan = adjust_width(replace(SCAN, width=width), tried=100, lost=lost)

    assert scan.width == pytest.approx(then)
    assert scan.was_contended == (lost > 5)


def test_a_claimer_that_is_alone_again_is_back_in_exact_order_after_some_claims() -> None:
    scan = adjust_width(SCAN, tried=100, lost=100)

    for _ in range(115):
        scan = adjust_width(scan, tried=100, lost=0)

    assert scan == SCAN
