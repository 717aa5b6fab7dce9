"""Which due tasks go before a task, and what is said of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

import pytest

from tests.unit.explained import A, B, W, chosen, codes, facts, only
from tests.unit.make import a_task
from tidemill.control import Service, Standing
from tidemill.explaining import Reason
from tidemill.explaining.reasons import reasons
from tidemill.explaining.turns import turn
from tidemill.explaining.values import Facts
from tidemill.model import Lane
from tidemill.policies import QueueOptions
from tidemill.selection import BOTH, FRESH, RETRY, Lanes
from tidemill.store.gauges import MANY

EU_ONLY = Service(queues=("eu",))
Chosen: TypeAlias = tuple[Lane, QueueOptions, Service, int]
TURNS: list[tuple[Chosen, tuple[Lanes, Lanes]]] = [
    (("fresh", QueueOptions(), Service(), 0), (FRESH, ())),
    (("retry", QueueOptions(), Service(), 0), (RETRY, ())),
    (("fresh", chosen("retries_first"), Service(), 0), (FRESH, RETRY)),
    (("retry", chosen("retries_first"), Service(), 0), (RETRY, ())),
    (("fresh", chosen("oldest_first"), Service(), 0), (BOTH, ())),
    (("retry", chosen("oldest_first"), Service(), 0), (BOTH, ())),
    (("retry", QueueOptions(retry_share=0), Service(), 0), (RETRY, FRESH)),
    (("fresh", QueueOptions(retry_share=0), Service(), 0), (FRESH, ())),
    (("fresh", QueueOptions(retry_share=1), Service(), 0), (FRESH, RETRY)),
    (("retry", QueueOptions(retry_share=1), Service(), 0), (RETRY, ())),
    (("retry", QueueOptions(), Service(retry_share=0), 0), (RETRY, FRESH)),
    (("retry", QueueOptions(retry_share=0.1), Service(retry_share=0), 0), (RETRY, ())),
    (("fresh", QueueOptions(), Service(selection="retries_first"), 0), (FRESH, RETRY)),
    (("fresh", chosen("weighted"), Service(selection="retries_first"), 0), (FRESH, ())),
    (("fresh", chosen("weighted"), Service(asked="retries_first"), 0), (FRESH, RETRY)),
    (("fresh", chosen("retries_first"), Service(lanes=FRESH), 0), (FRESH, ())),
    (("retry", chosen("oldest_first"), Service(lanes=RETRY), 0), (RETRY, ())),
    (("fresh", chosen("retries_first", max_in_flight_retries=2), Service(), 1), (FRESH, RETRY)),
    (("fresh", chosen("retries_first", max_in_flight_retries=2), Service(), 2), (FRESH, ())),
    (("fresh", chosen("oldest_first", max_in_flight_retries=2), Service(), 3), (FRESH, ())),
    (("retry", chosen("oldest_first", max_in_flight_retries=2), Service(), 2), (BOTH, ())),
]
"""The lane, what its queue and an executor choose, and the retries in flight; the lanes in order, and those first."""


@pytest.mark.parametrize(("given", "expected"), TURNS)
def test_who_goes_before_it_is_chosen_by_the_event_then_the_queue_then_the_deployment(
    given: Chosen, expected: tuple[Lanes, Lanes]
) -> None:
    lane, options, service, held = given
    seated = (replace(A, service=EU_ONLY), replace(B, service=service))
    retries = (replace(A, n=held),) if held else ()

    found = turn(a_task(lane=lane), options, Standing(seated=seated, came=EU_ONLY, retries=retries))

    assert (found.in_order, found.first) == expected


def test_where_nobody_is_at_work_the_last_one_that_came_is_as_good() -> None:
    came = Service(queues=("eu",), asked="oldest_first")

    assert turn(a_task(), QueueOptions(), Standing(came=came)).in_order == BOTH
    assert turn(a_task(), QueueOptions(), Standing(came=came, workers=(W,))).in_order == FRESH


@pytest.mark.parametrize(
    ("known", "code", "message"),
    [
        (
            facts(options=chosen("retries_first"), ahead={"fresh": 1, "retry": 50}),
            "behind",
            (
                "It is behind 51 other due tasks of queue default: by its selection, retries_first, retries go before "
                "fresh tasks; then a higher priority than its 0 goes first, then who was due before 2031-07-01 "
                "09:00:00 UTC (0s ago)."
            ),
        ),
        (
            facts(options=chosen("oldest_first"), ahead={"fresh": 1, "retry": 50}),
            "behind",
            (
                "It is behind 51 other due tasks of queue default: by its selection, oldest_first, both lanes are "
                "one; a higher priority than its 0 goes first, then who was due before 2031-07-01 09:00:00 UTC (0s "
                "ago)."
            ),
        ),
        (
            facts({"lane": "retry"}, options=chosen("retries_first"), ahead={"retry": 1}),
            "behind",
            (
                "It is behind 1 other due task of queue default and lane retry: a higher priority than its 0 goes "
                "first, then who was due before 2031-07-01 09:00:00 UTC (0s ago)."
            ),
        ),
        (
            facts({"lane": "retry"}, options=QueueOptions(retry_share=0), ahead={"fresh": 50}),
            "retry_share",
            (
                "Retries of queue default have no share of the slots, retry_share is 0: a retry starts only where a "
                "slot is left over, and 50 of lane fresh are due; `tidemill ops queue set default --retry-share X` "
                "changes it."
            ),
        ),
        (
            facts(options=QueueOptions(retry_share=1), ahead={"retry": 1}),
            "retry_share",
            (
                "Retries of queue default have all of the slots, retry_share is 1: a fresh task starts only where a "
                "slot is left over, and 1 of lane retry is due; `tidemill ops queue set default --retry-share X` "
                "changes it."
            ),
        ),
    ],
)
def test_what_goes_before_it_is_said_with_its_reason(known: Facts, code: str, message: str) -> None:
    assert reasons(known) == (Reason(code=code, message=message),)


def test_a_share_of_nothing_is_said_beside_those_of_its_own_lane() -> None:
    share, behind = reasons(
        facts({"lane": "retry"}, options=QueueOptions(retry_share=0), ahead={"retry": 2, "fresh": 5})
    )

    assert (share.code, behind.code) == ("retry_share", "behind")
    assert "and 5 of lane fresh are due" in share.message
    assert behind.message.startswith("It is behind 2 other due tasks of queue default: a higher priority")


@pytest.mark.parametrize("lane", ["fresh", "retry"])
@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_share_of_nothing_matters_only_while_others_are_due(lane: Lane, share: float) -> None:
    assert codes(facts({"lane": lane}, options=QueueOptions(retry_share=share), ahead={"fresh": 0, "retry": 0})) == [
        "next"
    ]


@pytest.mark.parametrize(
    ("ahead", "words"),
    [
        ({"fresh": 3, "retry": 50}, "behind 5 other"),
        ({"fresh": 3, "retry": 1}, "behind 4 other"),
        ({"fresh": 3, "retry": MANY - 3}, "behind 5 other"),
        ({"fresh": 3, "retry": MANY - 2}, f"behind {MANY}+ other"),
    ],
)
def test_no_more_retries_go_before_it_than_may_be_in_flight(ahead: dict[Lane, int], words: str) -> None:
    options = chosen("retries_first", max_in_flight_retries=5)

    assert words in only(facts(options=options, standing=Standing(seated=(A,), retries=(A, B)), ahead=ahead)).message
