"""Who is at work, and whom they serve: what is said of it."""

from __future__ import annotations

from datetime import datetime

import pytest

from tests.fixtures import T0
from tests.unit.explained import HOUR, MINUTE, codes, facts
from tidemill.control.fleet import FleetStatus, Permit, Subscription
from tidemill.explain.reasons import Reason, find_reasons
from tidemill.policy.scheduling import BOTH, RETRY, Lanes


def serves(owner: str, *queues: str, lanes: Lanes = BOTH) -> Permit:
    return Permit(owner=owner, n=1, until=T0 + MINUTE, subscription=Subscription(queues=queues, lanes=lanes))


TICKED = T0 - MINUTE
LONG_AGO = T0 - HOUR


@pytest.mark.parametrize(
    ("standing", "message"),
    [
        (
            FleetStatus(workers=(serves("W", "eu"),)),
            (
                "None of the running executors serves queue us, lane fresh: W serves queue eu. For others: see whether "
                "the schedule is enabled and what the function execute logs, or start `tidemill work`."
            ),
        ),
        (
            FleetStatus(workers=(serves("W", lanes=RETRY), serves("V", "us", lanes=RETRY)), last_acquired_at=LONG_AGO),
            (
                "None of the running executors serves queue us, lane fresh: W serves all queues in lane retry, V "
                "serves queue us in lane retry. For others: see whether the schedule is enabled and what the function "
                "execute logs, or start `tidemill work`."
            ),
        ),
        (
            FleetStatus(slot_permits=(serves("A", "eu", "asia"),), last_acquired_at=TICKED, slot_count=2),
            (
                "None of the running executors serves queue us, lane fresh: A serves queues eu, asia. A tick starts "
                "one for all, unless its event chooses too."
            ),
        ),
        (
            FleetStatus(slot_permits=(serves("A", *"abcdefg"),), last_acquired_at=TICKED, slot_count=2),
            (
                "None of the running executors serves queue us, lane fresh: A serves queues a, b, c, d, e and 2 more. "
                "A tick starts one for all, unless its event chooses too."
            ),
        ),
        (
            FleetStatus(workers=tuple(serves(f"W{n}", "eu", lanes=()) for n in range(7)), last_acquired_at=TICKED),
            (
                "None of the running executors serves queue us, lane fresh: "
                + ", ".join(f"W{n} serves queue eu in lane none" for n in range(5))
                + ", 2 more serve others. A tick starts one for all, unless its event chooses too."
            ),
        ),
    ],
)
def test_where_those_at_work_serve_others_it_says_whom(standing: FleetStatus, message: str) -> None:
    assert find_reasons(facts({"queue": "us"}, standing=standing)) == (Reason(code="not_served", message=message),)


@pytest.mark.parametrize("last_acquired_at", [None, LONG_AGO, TICKED])
def test_before_it_is_due_others_may_come(last_acquired_at: datetime | None) -> None:
    standing = FleetStatus(workers=(serves("W", "eu"),), last_acquired_at=last_acquired_at)
    early = facts({"queue": "us", "due_at": T0 + HOUR}, standing=standing)

    assert codes(early) == (["not_due"] if last_acquired_at == TICKED else ["not_due", "not_served"])


def test_one_of_many_that_serves_it_is_enough() -> None:
    standing = FleetStatus(
        workers=(serves("W", "eu"), serves("V", "us")), slot_permits=(serves("A", "eu"),), slot_count=1
    )

    assert codes(facts({"queue": "us"}, standing=standing)) == ["next"]


def test_seats_that_others_are_served_on_are_in_its_way_too() -> None:
    standing = FleetStatus(
        slot_permits=(serves("A", "eu"),), workers=(serves("W", "eu"),), slot_count=1, last_acquired_at=T0
    )

    served, executor_slots = find_reasons(facts({"queue": "us"}, standing=standing))

    assert (served.code, executor_slots.code) == ("not_served", "executor_slots")
    assert "The task waits until one of these executors ends; MAX_EXECUTORS" in executor_slots.message


def test_an_invocation_that_came_for_others_is_no_sign_of_one_for_this() -> None:
    standing = FleetStatus(last_acquired_at=TICKED, last_request=Subscription(queues=("eu",), lanes=RETRY))

    assert find_reasons(facts({"queue": "us"}, standing=standing)) == (
        Reason(
            code="no_executor",
            message=(
                "No executor is running now: the last one started at 2031-07-01 08:59:00 UTC (1m ago) and served only "
                "queue eu in lane retry. A tick starts one for all, unless its event chooses too."
            ),
        ),
    )
