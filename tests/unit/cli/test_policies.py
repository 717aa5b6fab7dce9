"""`tidemill policy`: the presets and their waits, without a database."""

from __future__ import annotations

from datetime import timedelta
from itertools import accumulate

import pytest

from tests.unit.cli.conftest import CommandLine
from tidemill.cli.policies import compute_waits
from tidemill.model import Backoff, RetryPolicy
from tidemill.policy.retry import PRESETS


def _seconds(*values: float) -> list[timedelta]:
    return [timedelta(seconds=value) for value in values]


def test_ls_has_a_row_for_each_preset(tidemill: CommandLine) -> None:
    rows = [line.split() for line in tidemill.done("policy", "ls").lines[2:]]

    assert [row[0] for row in rows] == list(PRESETS)
    assert rows[1] == ["standard", "exponential", "500ms", "2", "30s", "full", "3"]
    assert rows[4] == ["one_shot", "-", "-", "-", "-", "-", "0"]
    assert rows[6] == ["patient", "exponential", "1m", "2", "1h", "proportional", "0.2", "3"]


def test_ls_as_json_has_the_numbers_of_the_presets(tidemill: CommandLine) -> None:
    found = {one["name"]: one for one in tidemill.done("policy", "ls", "--json").json}

    assert list(found) == list(PRESETS)
    assert found["default"] == {
        "name": "default",
        "max_retries": 10,
        "strategy": "exponential",
        "base_sec": 5.0,
        "factor": 2.0,
        "max_sec": 1800.0,
        "jitter": "full",
        "jitter_factor": 0.2,
    }
    assert found["one_shot"]["strategy"] is None


def test_show_tells_when_each_retry_comes(tidemill: CommandLine) -> None:
    title, _, headings, _, *rows = tidemill.done("policy", "show", "patient").lines

    assert title == "patient: 3 retries, exponential from 1m x 2 up to 1h, jitter proportional 0.2"
    assert headings == "retry  before jitter  earliest  latest  latest since first failure"
    assert [" ".join(row.split()) for row in rows] == [
        "1 1m 48s 1m 12s 1m 12s",
        "2 2m 1m 36s 2m 24s 3m 36s",
        "3 4m 3m 12s 4m 48s 8m 24s",
    ]


def test_show_as_json_has_seconds(tidemill: CommandLine) -> None:
    shown = tidemill.done("policy", "show", "standard", "--json").json

    assert (shown["name"], shown["max_retries"]) == ("standard", 3)
    assert shown["retries"][2] == {
        "retry": 3, "wait_sec": 2.0, "earliest_sec": 0.0, "latest_sec": 2.0, "latest_total_sec": 3.5,
    }  # fmt: skip


@pytest.mark.parametrize("name", sorted(set(PRESETS) - {"one_shot"}))
def test_every_preset_with_retries_can_be_shown(tidemill: CommandLine, name: str) -> None:
    assert len(tidemill.done("policy", "show", name).lines) == 4 + PRESETS[name].max_retries


def test_one_run_is_one_sentence(tidemill: CommandLine) -> None:
    assert tidemill.done("policy", "show", "one_shot").out == "one_shot: one run, no retries\n"
    assert tidemill.done("policy", "show", "one_shot", "--json").json["retries"] == []


def test_a_name_that_is_nearly_right_is_guessed(tidemill: CommandLine) -> None:
    assert tidemill.refused("policy", "show", "patiant") == (
        "policy: there is no preset patiant, did you mean patient? the presets are "
        "default, standard, conservative, aggressive, one_shot, quadrupling, patient"
    )


def test_a_name_that_is_like_none_is_answered_with_the_list(tidemill: CommandLine) -> None:
    refused = tidemill.refused("policy", "show", "xyz")

    assert refused.startswith("policy: there is no preset xyz; the presets are default, standard,")


def test_waits_grow_to_the_cap_and_the_total_adds_up_the_latest() -> None:
    policy = RetryPolicy(max_retries=4, backoff=Backoff(base_sec=10, max_sec=40))

    found = list(compute_waits(policy))

    assert [one.plain for one in found] == _seconds(10, 20, 40, 40)
    assert [one.earliest for one in found] == _seconds(0, 0, 0, 0)
    assert [one.latest for one in found] == _seconds(10, 20, 40, 40)
    assert [one.total for one in found] == list(accumulate(_seconds(10, 20, 40, 40)))


def test_jitter_leaves_the_wait_before_it_as_it_is() -> None:
    policy = RetryPolicy(max_retries=2, backoff=Backoff(base_sec=10, jitter="decorrelated"))

    first, second = compute_waits(policy)

    assert (first.earliest, first.plain, first.latest) == tuple(_seconds(10, 10, 10))
    assert (second.earliest, second.plain, second.latest) == tuple(_seconds(10, 20, 20))
