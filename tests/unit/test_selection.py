"""How many tasks of each lane are asked for."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemill.selection import lane_quotas


def quotas(**fields: Any) -> list[tuple[str, int]]:
    return list(lane_quotas(**({"free": 16, "slots": 16, "retries_in_flight": 0, "retry_share": 0.2} | fields)))


@pytest.mark.parametrize(
    ("fields", "retries"),
    [
        ({"draw": 0.0}, 3),
        ({"draw": 0.79}, 3),
        ({"draw": 0.8}, 4),
        ({"draw": 0.0, "retries_in_flight": 2}, 1),
        ({"draw": 0.0, "retries_in_flight": 3}, 0),
        ({"draw": 0.0, "retries_in_flight": 16}, 0),
        ({"draw": 0.0, "free": 2}, 2),
        ({"draw": 0.9, "free": 0}, 0),
        ({"draw": 0.99, "retry_share": 0}, 0),
        ({"draw": 0.0, "retry_share": 1}, 16),
        ({"draw": 0.9, "retry_share": 1, "retries_in_flight": 5, "free": 11}, 11),
    ],
)
def test_retries_hold_their_share_of_the_slots_and_fresh_tasks_the_rest(fields: dict[str, Any], retries: int) -> None:
    free = fields.get("free", 16)

    assert quotas(**fields) == [("retry", retries), ("fresh", free - retries)]


def test_a_fraction_of_a_slot_is_given_as_often_as_it_says() -> None:
    given_away = [quotas(slots=1, free=1, draw=n / 1000)[0][1] for n in range(1000)]

    assert sum(given_away) == 200


@given(st.data())
def test_all_free_slots_are_given_away_and_no_more(data: st.DataObject) -> None:
    slots = data.draw(st.integers(1, 1000))
    flying = data.draw(st.integers(0, slots))
    free = data.draw(st.integers(0, slots - flying))

    counts = [
        count
        for _, count in quotas(
            free=free,
            slots=slots,
            retries_in_flight=flying,
            retry_share=data.draw(st.floats(0, 1)),
            draw=data.draw(st.floats(0, 1, exclude_max=True)),
        )
    ]

    assert sum(counts) == free
    assert all(count >= 0 for count in counts)
