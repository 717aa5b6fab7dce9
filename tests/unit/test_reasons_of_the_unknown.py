"""What is said of functions that executors do not have."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from tests.fixtures import T0
from tests.unit.explained import FAILURE, HOUR, MINUTE, SECOND, codes, facts
from tidemill.explain.facts import Facts
from tidemill.explain.reasons import find_reasons


@pytest.mark.parametrize(
    ("fields", "ending"),
    [
        ({"created_at": T0 - MINUTE, "due_at": T0 + HOUR}, "it waits, and the first claim after 2031-07-01 10:00:00 "),
        ({"created_at": T0 - HOUR, "due_at": T0 + SECOND}, "it waits, and the first claim after 2031-07-01 09:00:01 "),
        (
            {"created_at": T0 - MINUTE, "due_at": T0 + SECOND},
            "it waits, and the first claim after 2031-07-01 09:09:00 ",
        ),
        ({"created_at": T0 - HOUR, "due_at": T0 - SECOND}, "the next claim makes it fail, and it becomes"),
        ({"created_at": T0 - 10 * MINUTE}, "the next claim makes it fail, and it becomes"),
    ],
)
def test_an_unknown_function_is_given_up_when_it_is_old_and_due(fields: dict[str, Any], ending: str) -> None:
    [unknown] = [one for one in find_reasons(facts(fields, is_known=False)) if one.code == "unknown_task"]

    assert f"No executor has registered a function noop: {ending}" in unknown.message


def put_off(*, age: timedelta, wait: timedelta, settling: timedelta = timedelta(0), **fields: Any) -> Facts:
    """Of a task that was claimed at an age, and is due again after a wait."""
    claimed_at = T0 - SECOND
    return facts(
        {
            "created_at": claimed_at - age, "updated_at": claimed_at + settling, "settled_by": "t",
            "due_at": claimed_at + wait, "next_retry_at": claimed_at + wait,
        } | fields
    )  # fmt: skip


@pytest.mark.parametrize(
    ("known", "is_told"),
    [
        (put_off(age=20 * SECOND, wait=15 * SECOND), True),
        (put_off(age=timedelta(0), wait=15 * SECOND), True),
        (put_off(age=60 * SECOND, wait=15 * SECOND), True),
        (put_off(age=80 * SECOND, wait=20 * SECOND), True),
        (put_off(age=9 * MINUTE, wait=135 * SECOND, settling=SECOND), True),
        (
            put_off(age=9 * MINUTE, wait=135 * SECOND, lane="retry", attempts=1, error=FAILURE | {"at": T0 - MINUTE}),
            True,
        ),
        (put_off(age=80 * SECOND, wait=20 * SECOND, error=FAILURE | {"at": T0 - SECOND}), False),
        (put_off(age=80 * SECOND, wait=20 * SECOND, settled_by=None), False),
        (put_off(age=80 * SECOND, wait=15 * SECOND), False),
        (put_off(age=80 * SECOND, wait=30 * SECOND), False),
        (put_off(age=20 * SECOND, wait=13 * SECOND), False),
        (put_off(age=20 * SECOND, wait=60 * SECOND), False),
        (put_off(age=20 * SECOND, wait=15 * SECOND, settling=SECOND + timedelta(milliseconds=1)), False),
        (put_off(age=20 * SECOND, wait=15 * SECOND, settling=timedelta(milliseconds=-1)), False),
        (put_off(age=10 * MINUTE, wait=150 * SECOND), False),
        (put_off(age=-SECOND, wait=15 * SECOND), False),
        (replace(put_off(age=20 * SECOND, wait=15 * SECOND), now=T0 + MINUTE), False),
    ],
)
def test_one_that_was_put_off_as_unknown_functions_are_is_told(known: Facts, is_told: bool) -> None:  # noqa: FBT001
    assert ("put_off" in codes(known)) == is_told
    assert "put_off" not in codes(replace(known, is_known=False))


def test_what_was_put_off_says_when_and_where_to_look() -> None:
    _, reason = find_reasons(put_off(age=20 * SECOND, wait=15 * SECOND))

    assert reason.message == (
        "It was claimed and put off at 2031-07-01 08:59:59 UTC (1s ago), as executors do that have no function noop, "
        "unless that snoozed by itself: see whether all of them run a release that has it."
    )
