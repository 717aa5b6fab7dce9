"""Which due tasks go before a task, and what is said of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

import pytest

from tests.unit.explained import A, B, W, chosen, codes, facts, only
from tests.unit.make import a_task
from tidemill.control.fleet import FleetStatus, Subscription
from tidemill.explain.facts import Facts, find_turn
from tidemill.explain.reasons import Reason, find_reasons
from tidemill.model import Lane, QueueOptions
from tidemill.policy.scheduling import BOTH, FRESH, RETRY, Lanes
from tidemill.store.counts import COUNT_LIMIT

EU_ONLY = Subscription(queues=("eu",))
Chosen: TypeAlias = tuple[Lane, QueueOptions, Subscription, int]
TURNS: list[tuple[Chosen, tuple[Lanes, Lanes]]] = [
    (("fresh", QueueOptions(), Subscription(), 0), (FRESH, ())),
    (("retry", QueueOptions(), Subscription(), 0), (RETRY, ())),
    (("fresh", chosen("retries_first"), Subscription(), 0), (FRESH, RETRY)),
    (("retry", chosen("retries_first"), Subscription(), 0), (RETRY, ())),
    (("fresh", chosen("oldest_first"), Subscription(), 0), (BOTH, ())),
    (("retry", chosen("oldest_first"), Subscription(), 0), (BOTH, ())),
    (("retry", QueueOptions(retry_share=0), Subscription(), 0), (RETRY, FRESH)),
    (("fresh", QueueOptions(retry_share=0), Subscription(), 0), (FRESH, ())),
    (("fresh", QueueOptions(retry_share=1), Subscription(), 0), (FRESH, RETRY)),
    (("retry", QueueOptions(retry_share=1), Subscription(), 0), (RETRY, ())),
    (("retry", QueueOptions(), Subscription(retry_share=0), 0), (RETRY, FRESH)),
    (("retry", QueueOptions(retry_share=0.1), Subscription(retry_share=0), 0), (RETRY, ())),
    (("fresh", QueueOptions(), Subscription(selection="retries_first"), 0), (FRESH, RETRY)),
    (("fresh", chosen("weighted"), Subscription(selection="retries_first"), 0), (FRESH, ())),
    (("fresh", chosen("weighted"), Subscription(asked="retries_first"), 0), (FRESH, RETRY)),
    (("fresh", chosen("retries_first"), Subscription(lanes=FRESH), 0), (FRESH, ())),
    (("retry", chosen("oldest_first"), Subscription(lanes=RETRY), 0), (RETRY, ())),
    (("fresh", chosen("retries_first", max_in_flight_retries=2), Subscription(), 1), (FRESH, RETRY)),
    (("fresh", chosen("retries_first", max_in_flight_retries=2), Subscription(), 2), (FRESH, ())),
    (("fresh", chosen("oldest_first", max_in_flight_retries=2), Subscription(), 3), (FRESH, ())),
    (("retry", chosen("oldest_first", max_in_flight_retries=2), Subscription(), 2), (BOTH, ())),
]
"""The lane, what its queue and an executor choose, and the retries in flight; the lanes in order, and those first."""


@pytest.mark.parametrize(("given", "expected"), TURNS)
def test_who_goes_before_it_is_chosen_by_the_event_then_the_queue_then_the_deployment(
    given: Chosen, expected: tuple[Lanes, Lanes]
) -> None:
    lane, options, service, held = given
    slot_permits = (replace(A, subscription=EU_ONLY), replace(B, subscription=service))
    retries = (replace(A, n=held),) if held else ()

    found = find_turn(
        a_task(lane=lane), options, FleetStatus(slot_permits=slot_permits, last_request=EU_ONLY, retries=retries)
    )

    assert (found.in_order, found.first) == expected


def test_where_nobody_is_at_work_the_last_one_that_came_is_as_good() -> None:
    came = Subscription(queues=("eu",), asked="oldest_first")

    assert find_turn(a_task(), QueueOptions(), FleetStatus(last_request=came)).in_order == BOTH
    assert find_turn(a_task(), QueueOptions(), FleetStatus(last_request=came, workers=(W,))).in_order == FRESH


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
    assert find_reasons(known) == (Reason(code=code, message=message),)


def test_a_share_of_nothing_is_said_beside_those_of_its_own_lane() -> None:
    share, behind = find_reasons(
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
        ({"fresh": 3, "retry": COUNT_LIMIT - 3}, "behind 5 other"),
        ({"fresh": 3, "retry": COUNT_LIMIT - 2}, f"behind {COUNT_LIMIT}+ other"),
    ],
)
def test_no_more_retries_go_before_it_than_may_be_in_flight(ahead: dict[Lane, int], words: str) -> None:
    options = chosen("retries_first", max_in_flight_retries=5)

    assert (
        words
        in only(facts(options=options, standing=FleetStatus(slot_permits=(A,), retries=(A, B)), ahead=ahead)).message
    )
