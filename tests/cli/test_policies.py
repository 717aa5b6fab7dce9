"""`tidemill policy`: the presets and their waits, without a database."""

from __future__ import annotations

from datetime import timedelta
from itertools import accumulate

from tidemill.cli.policies import compute_waits
from tidemill.model import Backoff, RetryPolicy


def _seconds(*values: float) -> list[timedelta]:
    return [timedelta(seconds=value) for value in values]


def test_waits_grow_to_the_cap_and_the_total_adds_up_the_latest() -> None:
    policy = RetryPolicy(max_retries=4, backoff=Backoff(base_sec=10, max_sec=40))

    found = list(compute_waits(policy))

    assert [one.wait for one in found] == _seconds(10, 20, 40, 40)
    assert [one.earliest for one in found] == _seconds(0, 0, 0, 0)
    assert [one.latest for one in found] == _seconds(10, 20, 40, 40)
    assert [one.latest_total for one in found] == list(accumulate(_seconds(10, 20, 40, 40)))


def test_jitter_leaves_the_wait_before_it_as_it_is() -> None:
    policy = RetryPolicy(max_retries=2, backoff=Backoff(base_sec=10, jitter="decorrelated"))

    first, second = compute_waits(policy)

    assert (first.earliest, first.wait, first.latest) == tuple(_seconds(10, 10, 10))
    assert (second.earliest, second.wait, second.latest) == tuple(_seconds(10, 20, 20))
