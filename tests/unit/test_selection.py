"""Which lane is served first, and with how many of the free slots."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ids import shown
from tidemill.model import SELECTIONS
from tidemill.policy.scheduling import BOTH, FRESH, RETRY, Lanes, Share, interleave, shares, take_shares, time_saved


def asked(selection: Any = "weighted", **fields: Any) -> list[tuple[Lanes, int]]:
    usual: dict[str, Any] = {"free": 16, "slots": 16, "retries_in_flight": 0, "retry_share": 0.2, "draw": 0.0}
    return [(one.lanes, one.count) for one in shares(selection, **(usual | fields))]


class Due:
    """So many due tasks of each lane; both lanes in one order are taken in turns."""

    def __init__(self, **waiting: int) -> None:
        self.waiting = waiting
        self.calls: list[tuple[Lanes, int]] = []

    def take(self, lanes: Lanes, count: int) -> list[str]:
        self.calls.append((lanes, count))
        taken: list[str] = []
        while len(taken) < count and any(self.waiting[lane] for lane in lanes):
            for lane in lanes:
                if self.waiting[lane] and len(taken) < count:
                    self.waiting[lane] -= 1
                    taken.append(lane)
        return taken


@pytest.mark.parametrize(
    ("fields", "retries"),
    [
        ({"draw": 0.0}, 3),
        ({"draw": 0.79}, 3),
        ({"draw": 0.8}, 4),
        ({"retries_in_flight": 2}, 1),
        ({"retries_in_flight": 3}, 0),
        ({"retries_in_flight": 3, "draw": 0.8}, 1),
        ({"retries_in_flight": 16}, 0),
        ({"free": 2}, 2),
        ({"free": 0, "draw": 0.9}, 0),
        ({"retry_share": 0, "draw": 0.99}, 0),
        ({"retry_share": 1}, 16),
        ({"retry_share": 1, "retries_in_flight": 5, "free": 11, "draw": 0.9}, 11),
        ({"free": 40}, 3),  # what is claimed ahead of the slots does not raise the share
    ],
    ids=shown,
)
def test_weighted_gives_retries_their_share_of_the_slots_and_fresh_tasks_the_rest(
    fields: dict[str, Any], retries: int
) -> None:
    free = fields.get("free", 16)

    assert asked("weighted", **fields) == [(RETRY, retries), (FRESH, free - retries)]


def test_a_fraction_of_a_slot_is_given_as_often_as_it_says() -> None:
    given_away = [asked(slots=1, free=1, draw=n / 1000)[0][1] for n in range(1000)]

    assert sum(given_away) == 200


def test_retries_first_asks_for_all_due_retries_before_any_fresh_task() -> None:
    assert asked("retries_first") == [(RETRY, 16), (FRESH, 0)]
    assert asked("retries_first", retries_in_flight=16, retry_share=0, free=5) == [(RETRY, 5), (FRESH, 0)]


def test_oldest_first_asks_for_both_lanes_in_one_order() -> None:
    assert asked("oldest_first") == [(BOTH, 16), (FRESH, 0)]
    assert asked("oldest_first", retries_in_flight=16, retry_share=0, free=5) == [(BOTH, 5), (FRESH, 0)]


@pytest.mark.parametrize("lanes", [RETRY, FRESH])
@pytest.mark.parametrize("selection", SELECTIONS)
def test_an_executor_for_one_lane_gives_it_every_free_slot(selection: str, lanes: Lanes) -> None:
    assert asked(selection, lanes=lanes, retries_in_flight=9, free=7) == [(lanes, 7)]


@given(st.data())
def test_all_free_slots_are_given_away_and_no_more(data: st.DataObject) -> None:
    slots = data.draw(st.integers(1, 1000))
    flying = data.draw(st.integers(0, slots))
    free = data.draw(st.integers(0, 2 * slots))

    counts = [
        count
        for _, count in asked(
            data.draw(st.sampled_from(SELECTIONS)),
            lanes=data.draw(st.sampled_from([BOTH, RETRY, FRESH])),
            free=free,
            slots=slots,
            retries_in_flight=flying,
            retry_share=data.draw(st.floats(0, 1)),
            draw=data.draw(st.floats(0, 1, exclude_max=True)),
        )
    ]

    assert sum(counts) == free
    assert all(count >= 0 for count in counts)


def held_over(claims: int, *, slots: int, share: float, ended: int, start: Sequence[str] = ()) -> list[int]:
    """How many retries are held after each claim while *ended* tasks end before it and both lanes have work."""
    rng = random.Random(20310701)
    running = list(start)
    held = []
    for _ in range(claims):
        rng.shuffle(running)
        del running[:ended]
        wanted = shares(
            "weighted",
            free=slots - len(running),
            slots=slots,
            retries_in_flight=running.count("retry"),
            retry_share=share,
            draw=rng.random(),
        )
        running += take_shares(wanted, lambda lanes, count: [*lanes] * count)
        assert len(running) == slots
        held.append(running.count("retry"))
    return held


@pytest.mark.parametrize("ended", [1, 3, 16])
@pytest.mark.parametrize("share", [0.0, 0.2, 0.25, 0.5, 0.77, 1.0])
@pytest.mark.parametrize("slots", [16, 10, 1])
def test_over_a_thousand_claims_retries_hold_their_share_of_the_slots(slots: int, share: float, ended: int) -> None:
    held = held_over(1000, slots=slots, share=share, ended=ended)

    assert all(abs(one - share * slots) <= 1 for one in held)
    assert sum(held) / len(held) == pytest.approx(share * slots, abs=0.5)


@pytest.mark.parametrize("lane", ["fresh", "retry"])
def test_a_lane_that_held_every_slot_gives_way_as_slots_free_up_one_by_one(lane: str) -> None:
    held = held_over(1000, slots=16, share=0.2, ended=1, start=[lane] * 16)

    first = next(n for n, one in enumerate(held) if abs(one - 3.2) <= 1)
    assert first < 100
    assert all(abs(one - 3.2) <= 1 for one in held[first:])


def test_a_share_of_one_slot_is_held_that_part_of_the_time() -> None:
    held = held_over(10_000, slots=1, share=0.2, ended=1)

    assert sum(held) / len(held) == pytest.approx(0.2, abs=0.02)


@pytest.mark.parametrize(
    ("selection", "waiting", "taken", "calls"),
    [
        # weighted, of 16 slots: 3 and 13
        ("weighted", {"retry": 99, "fresh": 99}, (3, 13), [(RETRY, 3), (FRESH, 13)]),
        ("weighted", {"retry": 1, "fresh": 99}, (1, 15), [(RETRY, 3), (FRESH, 15)]),
        ("weighted", {"retry": 0, "fresh": 99}, (0, 16), [(RETRY, 3), (FRESH, 16)]),
        ("weighted", {"retry": 99, "fresh": 4}, (12, 4), [(RETRY, 3), (FRESH, 13), (RETRY, 9)]),
        ("weighted", {"retry": 99, "fresh": 0}, (16, 0), [(RETRY, 3), (FRESH, 13), (RETRY, 13)]),
        ("weighted", {"retry": 5, "fresh": 4}, (5, 4), [(RETRY, 3), (FRESH, 13), (RETRY, 9)]),
        ("retries_first", {"retry": 99, "fresh": 99}, (16, 0), [(RETRY, 16)]),
        ("retries_first", {"retry": 5, "fresh": 99}, (5, 11), [(RETRY, 16), (FRESH, 11)]),
        ("retries_first", {"retry": 0, "fresh": 99}, (0, 16), [(RETRY, 16), (FRESH, 16)]),
        ("oldest_first", {"retry": 99, "fresh": 99}, (8, 8), [(BOTH, 16)]),
        ("oldest_first", {"retry": 99, "fresh": 2}, (14, 2), [(BOTH, 16)]),
    ],
)
def test_what_one_lane_cannot_use_goes_to_the_other(
    selection: str, waiting: dict[str, int], taken: tuple[int, int], calls: list[tuple[Lanes, int]]
) -> None:
    due = Due(**waiting)

    found = take_shares([Share(lanes=lanes, count=count) for lanes, count in asked(selection)], due.take)

    assert (found.count("retry"), found.count("fresh")) == taken
    assert due.calls == calls


def test_retries_that_may_not_be_taken_leave_their_slots_to_fresh_tasks() -> None:
    calls = []

    def take(lanes: Lanes, count: int) -> list[str]:
        calls.append((lanes, count))
        return ["fresh"] * (count if lanes == FRESH else 3)  # the limit of retries in flight ends the look at both

    found = take_shares([Share(lanes=BOTH, count=10), Share(lanes=FRESH, count=0)], take)

    assert len(found) == 10
    assert calls == [(BOTH, 10), (FRESH, 7)]


@pytest.mark.parametrize("lanes", [RETRY, FRESH])
def test_an_executor_for_one_lane_takes_nothing_of_the_other(lanes: Lanes) -> None:
    due = Due(retry=5, fresh=5)

    found = take_shares([Share(lanes=lanes, count=16)], due.take)

    assert found == [*lanes] * 5
    assert due.calls == [(lanes, 16)]


def a_request(data: st.DataObject) -> tuple[int, Lanes, list[Share]]:
    """Free slots, the lanes that may be served, and what is asked for."""
    free = data.draw(st.integers(0, 40))
    lanes: Lanes = data.draw(st.sampled_from([BOTH, RETRY, FRESH]))
    wanted = shares(
        data.draw(st.sampled_from(SELECTIONS)),
        lanes=lanes,
        free=free,
        slots=data.draw(st.integers(1, 40)),
        retries_in_flight=data.draw(st.integers(0, 40)),
        retry_share=data.draw(st.floats(0, 1)),
        draw=data.draw(st.floats(0, 1, exclude_max=True)),
    )
    return free, lanes, wanted


@given(st.data())
def test_everything_that_is_due_is_taken_as_far_as_slots_are_free(data: st.DataObject) -> None:
    free, lanes, wanted = a_request(data)
    waiting = {lane: data.draw(st.integers(0, 40)) for lane in BOTH}
    available = sum(waiting[lane] for lane in lanes)
    due = Due(**waiting)

    found = take_shares(wanted, due.take)

    assert len(found) == min(free, available)
    assert set(found) <= set(lanes)
    assert all(count > 0 for _, count in due.calls)


@given(st.data())
def test_never_more_is_taken_than_is_free_whatever_a_look_brings(data: st.DataObject) -> None:
    free, _, wanted = a_request(data)
    taken = 0

    def take(_: Lanes, count: int) -> range:
        nonlocal taken
        found = range(data.draw(st.integers(0, count)))
        taken += len(found)
        return found

    assert len(take_shares(wanted, take)) == taken <= free


@given(retries=st.integers(0, 200), fresh=st.integers(0, 200))
def test_mixed_lanes_have_their_shares_from_the_first_to_the_last(retries: int, fresh: int) -> None:
    both = interleave([("retry", n) for n in range(retries)], [("fresh", n) for n in range(fresh)])

    for lane, count in (("retry", retries), ("fresh", fresh)):
        assert [n for its, n in both if its == lane] == list(range(count))
        share = count / max(retries + fresh, 1)
        so_far = 0
        for length, (its, _) in enumerate(both, 1):
            so_far += its == lane
            assert abs(so_far - share * length) <= 1


@pytest.mark.parametrize(
    ("ahead", "slots", "saved"), [(0, 16, 0), (16, 16, 2), (10, 4, 5), (1, 16, 0.125), (1000, 1, 2000)]
)
def test_going_first_saves_the_runs_of_those_ahead_side_by_side(ahead: int, slots: int, saved: float) -> None:
    assert time_saved(ahead=ahead, mean_run=timedelta(seconds=2), slots=slots) == timedelta(seconds=saved)
