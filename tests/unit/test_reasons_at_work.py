"""Who is at work, and whom they serve: what is said of it."""

from __future__ import annotations

from datetime import datetime

import pytest

from tests.conftest import T0
from tests.unit.explained import HOUR, MINUTE, codes, facts
from tidemill.control import Held, Service, Standing
from tidemill.explaining import Reason
from tidemill.explaining.reasons import reasons
from tidemill.selection import BOTH, RETRY, Lanes


def serves(owner: str, *queues: str, lanes: Lanes = BOTH) -> Held:
    return Held(owner=owner, n=1, until=T0 + MINUTE, service=Service(queues=queues, lanes=lanes))


TICKED = T0 - MINUTE
LONG_AGO = T0 - HOUR


@pytest.mark.parametrize(
    ("standing", "message"),
    [
        (
            Standing(workers=(serves("W", "eu"),)),
            (
                "None of the executors at work serves queue us, lane fresh: W serves queue eu. For others: see whether "
                "the schedule is enabled and what the function execute logs, or start `tidemill work`."
            ),
        ),
        (
            Standing(workers=(serves("W", lanes=RETRY), serves("V", "us", lanes=RETRY)), came_at=LONG_AGO),
            (
                "None of the executors at work serves queue us, lane fresh: W serves all queues in lane retry, V "
                "serves queue us in lane retry. For others: see whether the schedule is enabled and what the function "
                "execute logs, or start `tidemill work`."
            ),
        ),
        (
            Standing(seated=(serves("A", "eu", "asia"),), came_at=TICKED, seats=2),
            (
                "None of the executors at work serves queue us, lane fresh: A serves queues eu, asia. A tick starts "
                "one for all, unless its event chooses too."
            ),
        ),
        (
            Standing(seated=(serves("A", *"abcdefg"),), came_at=TICKED, seats=2),
            (
                "None of the executors at work serves queue us, lane fresh: A serves queues a, b, c, d, e and 2 more. "
                "A tick starts one for all, unless its event chooses too."
            ),
        ),
        (
            Standing(workers=tuple(serves(f"W{n}", "eu", lanes=()) for n in range(7)), came_at=TICKED),
            (
                "None of the executors at work serves queue us, lane fresh: "
                + ", ".join(f"W{n} serves queue eu in lane none" for n in range(5))
                + ", 2 more serve others. A tick starts one for all, unless its event chooses too."
            ),
        ),
    ],
)
def test_where_those_at_work_serve_others_it_says_whom(standing: Standing, message: str) -> None:
    assert reasons(facts({"queue": "us"}, standing=standing)) == (Reason(code="not_served", message=message),)


@pytest.mark.parametrize("came_at", [None, LONG_AGO, TICKED])
def test_before_it_is_due_others_may_come(came_at: datetime | None) -> None:
    standing = Standing(workers=(serves("W", "eu"),), came_at=came_at)
    early = facts({"queue": "us", "due_at": T0 + HOUR}, standing=standing)

    assert codes(early) == (["not_due"] if came_at == TICKED else ["not_due", "not_served"])


def test_one_of_many_that_serves_it_is_enough() -> None:
    standing = Standing(workers=(serves("W", "eu"), serves("V", "us")), seated=(serves("A", "eu"),), seats=1)

    assert codes(facts({"queue": "us"}, standing=standing)) == ["next"]


def test_seats_that_others_are_served_on_are_in_its_way_too() -> None:
    standing = Standing(seated=(serves("A", "eu"),), workers=(serves("W", "eu"),), seats=1, came_at=T0)

    served, seats = reasons(facts({"queue": "us"}, standing=standing))

    assert (served.code, seats.code) == ("not_served", "seats")
    assert "It has to wait until one of them leaves; MAX_EXECUTORS" in seats.message


def test_an_invocation_that_came_for_others_is_no_sign_of_one_for_this() -> None:
    standing = Standing(came_at=TICKED, came=Service(queues=("eu",), lanes=RETRY))

    assert reasons(facts({"queue": "us"}, standing=standing)) == (
        Reason(
            code="no_executor",
            message=(
                "No executor is at work now: the last one came at 2031-07-01 08:59:00 UTC (1m ago) and served only "
                "queue eu in lane retry. A tick starts one for all, unless its event chooses too."
            ),
        ),
    )
