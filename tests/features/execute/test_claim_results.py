"""What a claim says of its tasks and of those that it leaves: the next step of the execution follows from it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.monitoring import CommandListener

from tests.builders import add, document
from tests.claimers import a_claimer, numbers
from tests.commands import Commands
from tests.faults import Afterwards, failing
from tidemill import UnavailableError
from tidemill.executor.claimer import ClaimResult
from tidemill.executor.lifetime import TIMING
from tidemill.model import QueueOptions
from tidemill.store.connection import Tasks, open_tasks
from tidemill.testing import Mongod

HOUR = timedelta(hours=1)
INTERRUPTED = 11601
FRESH_ONLY: Any = {"queues": ["default"], "lanes": ("fresh",)}
"""One queue and one lane: each claim is one look."""


class Moments:
    """A monotonic clock that moves by a microsecond with each reading, and by as much as the test wants."""

    def __init__(self) -> None:
        self.at = 1000.0

    def __call__(self) -> float:
        self.at += 1e-6
        return self.at


@contextmanager
def watched(mongod: Mongod, tasks: Tasks, listener: CommandListener) -> Iterator[Tasks]:
    """The tasks through a client of their own, with *listener*."""
    name = tasks.database.name
    with MongoClient[dict[str, Any]](mongod.uri, tz_aware=True, appname=name, event_listeners=[listener]) as client:
        yield open_tasks(client[name])


def facts(claimed: ClaimResult) -> set[str]:
    """The names of the flags that are set."""
    flags = ("failed", "tried", "answered", "thorough", "exhausted", "more_due", "contended", "retries_first")
    return {name for name in flags if getattr(claimed, name)}


# Whether tasks are left


@pytest.mark.parametrize(
    ("due", "expected"),
    [
        (0, {"answered", "exhausted"}),
        (2, {"answered", "tried"}),
        (3, {"answered", "tried", "more_due"}),
        (4, {"answered", "tried", "more_due"}),
    ],
)
def test_a_claim_that_takes_what_it_may_cannot_know_of_more(
    tasks: Tasks, now: datetime, due: int, expected: set[str]
) -> None:
    for _ in range(due):
        add(tasks, [document(now)])

    claimed = a_claimer(tasks, **FRESH_ONLY).claim(free=3, slots=3, now=now)

    assert len(claimed.tasks) == min(due, 3)
    assert facts(claimed) == expected


def test_a_claim_that_comes_to_the_last_queues_with_no_slot_left_says_that_more_may_be_due(
    tasks: Tasks, now: datetime
) -> None:
    """What the claim avoids makes the look at the first queue longer, so that this look finds the end of the queue."""
    add(tasks, [document(now, queue=queue) for queue in ("eu", "us") for _ in range(3)])
    claimer = a_claimer(tasks, queues=["eu", "us"], lanes=("fresh",), avoided=["elsewhere"])

    claimed = claimer.claim(free=3, slots=3, now=now)

    assert (len(claimed.tasks), claimed.more_due) == (3, True)


def test_a_look_behind_the_position_exhausts_nothing_and_a_thorough_one_does(tasks: Tasks, now: datetime) -> None:
    add(tasks, [document(now) for _ in range(2)])
    claimer = a_claimer(tasks, monotonic=Moments(), **FRESH_ONLY)
    assert len(claimer.claim(free=2, slots=2, now=now).tasks) == 2

    behind = claimer.claim(free=2, slots=2, now=now)
    thorough = claimer.claim(free=2, slots=2, now=now, thorough=True)

    assert (facts(behind), facts(thorough)) == ({"answered"}, {"answered", "exhausted", "thorough"})


def test_a_lane_that_was_found_dry_a_moment_ago_is_not_asked_and_exhausts_nothing(tasks: Tasks, now: datetime) -> None:
    claimer = a_claimer(tasks, monotonic=Moments(), **FRESH_ONLY)
    first, second = (claimer.claim(free=2, slots=2, now=now) for _ in range(2))

    assert (facts(first), facts(second)) == ({"answered", "exhausted"}, set())


def test_one_queue_that_is_exhausted_says_nothing_of_the_next(tasks: Tasks, now: datetime) -> None:
    add(tasks, [document(now, queue="us") for _ in range(2)])
    time = Moments()
    claimer = a_claimer(tasks, queues=["eu", "us"], lanes=("fresh",), monotonic=time)
    assert len(claimer.claim(free=2, slots=2, now=now).tasks) == 2

    time.at += TIMING.dry_lanes_pause_sec + 0.1  # the queue eu is looked at again, us behind the position
    claimed = claimer.claim(free=2, slots=2, now=now)

    assert facts(claimed) == {"answered"}


def test_a_look_from_a_known_head_exhausts_nothing_and_a_thorough_one_uses_none(tasks: Tasks, now: datetime) -> None:
    add(tasks, [document(now, due_at=now + HOUR, priority=9)])
    claimer = a_claimer(tasks, lanes=("fresh",), monotonic=Moments())

    known = claimer.claim(free=2, slots=2, now=now)
    thorough = claimer.claim(free=2, slots=2, now=now, thorough=True)

    assert (facts(known), facts(thorough)) == ({"answered"}, {"answered", "exhausted", "thorough"})


@pytest.mark.parametrize("thorough", [False, True])
def test_a_claim_that_does_not_read_the_queues_leaves_open_what_is_in_the_others(
    tasks: Tasks, now: datetime, *, thorough: bool
) -> None:
    add(tasks, [document(now, queue="eu", due_at=now + HOUR)])
    time = Moments()
    claimer = a_claimer(tasks, lanes=("fresh",), monotonic=time)
    claimer.claim(free=2, slots=2, now=now)
    add(tasks, [document(now, queue="us")])

    time.at += TIMING.dry_lanes_pause_sec + 0.1  # the lane is looked at, and the queues are not read
    claimed = claimer.claim(free=2, slots=2, now=now, thorough=thorough)

    assert (claimed.queues, len(claimed.tasks)) == ((("eu", "us"), 1) if thorough else (("eu",), 0))
    assert not claimed.exhausted


def test_without_pending_tasks_there_is_no_queue_and_nothing_due(tasks: Tasks, now: datetime) -> None:
    claimed = a_claimer(tasks).claim(free=2, slots=2, now=now)

    assert (claimed.queues, facts(claimed)) == ((), {"answered", "exhausted"})


def test_a_queue_that_was_empty_is_looked_at_from_its_head(tasks: Tasks, now: datetime) -> None:
    add(tasks, [document(now, priority=-1)])
    claimer = a_claimer(tasks, lanes=("fresh",), monotonic=Moments())
    assert len(claimer.claim(free=1, slots=1, now=now).tasks) == 1
    assert claimer.claim(free=1, slots=1, now=now, thorough=True).queues == ()

    add(tasks, [document(now)])

    assert len(claimer.claim(free=1, slots=1, now=now).tasks) == 1


def test_each_queue_comes_first_in_turn(tasks: Tasks, now: datetime) -> None:
    add(tasks, [document(now, queue=queue, payload={"n": queue}) for queue in ("eu", "us") for _ in range(4)])
    claimer = a_claimer(tasks)

    taken = [numbers(claimer.claim(free=1, slots=1, now=now).tasks)[0] for _ in range(4)]

    assert taken in (["eu", "us"] * 2, ["us", "eu"] * 2)


# What it must not take


@pytest.mark.parametrize("queues", [[], ["default"]])
def test_what_is_avoided_is_neither_taken_nor_due(tasks: Tasks, now: datetime, queues: list[str]) -> None:
    [avoided] = add(tasks, [document(now)])
    claimer = a_claimer(tasks, queues=queues, avoided=[avoided])

    claimed = claimer.claim(free=2, slots=2, now=now, idle=True)

    assert (claimed.tasks, facts(claimed)) == ((), {"answered", "exhausted"})
    assert claimer.claim(free=2, slots=2, now=now, thorough=True).tasks == ()


def test_the_head_of_a_lane_that_is_not_served_is_no_reason_for_a_look_at_the_others(
    mongod: Mongod, tasks: Tasks, now: datetime
) -> None:
    add(tasks, [document(now, queue=queue, lane="retry", attempts=1) for queue in ("eu", "us")])
    commands = Commands()

    with watched(mongod, tasks, commands) as mine:
        claimed = a_claimer(mine, lanes=("fresh",)).claim(free=2, slots=2, now=now, idle=True)
        sent = list(commands.names)

    assert facts(claimed) == {"answered", "exhausted"}
    assert sent == ["aggregate", "find"]


def test_a_head_that_is_due_this_very_moment_is_enough_to_claim(mongod: Mongod, tasks: Tasks, now: datetime) -> None:
    add(tasks, [document(now)])
    commands = Commands()

    with watched(mongod, tasks, commands) as mine:
        claimed = a_claimer(mine, selection="oldest_first").claim(free=1, slots=1, now=now, idle=True)
        sent = list(commands.names)

    assert len(claimed.tasks) == 1
    assert sent == ["aggregate", "find", "update", "find"]


# Others that were faster, and permits


def test_a_claim_that_lost_all_it_found_is_contended_and_leaves_due_tasks(
    mongod: Mongod, tasks: Tasks, now: datetime
) -> None:
    add(tasks, [document(now) for _ in range(3)])
    rival = Afterwards("find", lambda: a_claimer(tasks, owner="rival", **FRESH_ONLY).claim(free=3, slots=3, now=now))

    with watched(mongod, tasks, rival) as mine:
        claimed = a_claimer(mine, **FRESH_ONLY).claim(free=3, slots=3, now=now)

    assert (claimed.tasks, facts(claimed)) == ((), {"answered", "tried", "contended", "more_due"})


def test_a_claim_that_lost_some_is_not_contended(mongod: Mongod, tasks: Tasks, now: datetime) -> None:
    add(tasks, [document(now) for _ in range(9)])
    rival = Afterwards("find", lambda: a_claimer(tasks, owner="rival", **FRESH_ONLY).claim(free=2, slots=2, now=now))

    with watched(mongod, tasks, rival) as mine:
        claimed = a_claimer(mine, **FRESH_ONLY).claim(free=3, slots=3, now=now)

    assert (len(claimed.tasks), facts(claimed)) == (1, {"answered", "tried", "more_due"})


def test_retries_without_permits_are_due_but_not_contended(tasks: Tasks, now: datetime) -> None:
    add(tasks, [document(now, lane="retry", attempts=1) for _ in range(3)])
    options: Any = {"queues": ["default"], "max_in_flight_retries": 1}
    other = a_claimer(tasks, owner="other", lanes=("retry",), **options)
    assert len(other.claim(free=1, slots=1, now=now).tasks) == 1
    claimer = a_claimer(tasks, lanes=("retry",), monotonic=Moments(), **options)

    denied = claimer.claim(free=2, slots=2, now=now)
    left_alone = claimer.claim(free=2, slots=2, now=now)
    thorough = claimer.claim(free=2, slots=2, now=now, thorough=True)

    assert (facts(denied), facts(left_alone)) == ({"answered", "more_due"}, {"more_due"})
    assert facts(thorough) == {"answered", "more_due", "thorough"}


@pytest.mark.parametrize(
    ("selection", "lanes", "expected"),
    [
        ("weighted", ("fresh", "retry"), ["retry"]),
        ("retries_first", ("fresh", "retry"), ["retry"]),
        ("oldest_first", ("fresh", "retry"), []),
        ("retries_first", ("retry",), []),
    ],
)
def test_a_retry_overtakes_where_the_selection_puts_it_before_fresh_tasks(
    tasks: Tasks, now: datetime, selection: str, lanes: tuple[Any, ...], expected: list[str]
) -> None:
    add(tasks, [document(now, lane=lane, attempts=1, payload={"n": lane}) for lane in ("fresh", "retry")])

    claimed = a_claimer(tasks, lanes=lanes, selection=selection).claim(free=4, slots=4, now=now)

    assert numbers(claimed.overtaking) == expected
    assert claimed.retries_first == (selection == "retries_first")


# Errors


@pytest.mark.parametrize("idle", [True, False])
def test_a_claim_ends_with_the_first_read_that_fails(
    mongod: Mongod, tasks: Tasks, now: datetime, *, idle: bool
) -> None:
    commands = Commands()
    asked: list[str] = []

    def options(queue: str) -> QueueOptions:
        asked.append(queue)
        return QueueOptions()

    with watched(mongod, tasks, commands) as mine:
        claimer = a_claimer(mine, queues=["eu", "us"], options=options)
        with failing(mine, "find", times=1000, errorCode=INTERRUPTED):
            commands.names.clear()
            claimed = claimer.claim(free=2, slots=2, now=now, idle=idle)

    assert isinstance(claimed.error, UnavailableError)
    assert (claimed.tasks, facts(claimed)) == ((), {"failed", "more_due"})
    assert commands.names.count("find") == 1
    assert asked == ([] if idle else ["eu", "us"] if asked[:1] == ["eu"] else ["us", "eu"])


def test_queues_that_cannot_be_read_leave_the_known_ones(mine: Tasks, now: datetime) -> None:
    add(mine, [document(now) for _ in range(2)])
    claimer = a_claimer(mine)
    assert len(claimer.claim(free=1, slots=1, now=now).tasks) == 1

    with failing(mine, "aggregate", times=1, errorCode=INTERRUPTED):
        claimed = claimer.claim(free=2, slots=2, now=now, thorough=True)

    assert isinstance(claimed.error, UnavailableError)
    assert (claimed.queues, facts(claimed)) == (("default",), {"failed", "more_due", "thorough"})


@pytest.mark.parametrize(
    ("how", "unconfirmed"), [({"errorCode": INTERRUPTED}, 0), ({"closeConnection": True}, 1)], ids=["refused", "cut"]
)
def test_a_stamp_that_failed_was_no_race_and_may_be_unconfirmed(
    mine: Tasks, now: datetime, how: dict[str, Any], unconfirmed: int
) -> None:
    add(mine, [document(now) for _ in range(3)])
    claimer = a_claimer(mine, **FRESH_ONLY)

    with failing(mine, "update", times=1, **how):
        claimed = claimer.claim(free=3, slots=3, now=now)

    assert (claimed.tasks, facts(claimed)) == ((), {"failed", "answered", "more_due"})
    assert len(claimed.unconfirmed_tokens) == unconfirmed


def test_a_stamp_that_failed_is_not_repeated_at_once_even_if_others_were_faster(
    mongod: Mongod, tasks: Tasks, now: datetime
) -> None:
    add(tasks, [document(now) for _ in range(30)])
    rival = Afterwards("find", lambda: a_claimer(tasks, owner="rival", **FRESH_ONLY).claim(free=3, slots=3, now=now))

    with watched(mongod, tasks, rival) as mine:
        claimer = a_claimer(mine, **FRESH_ONLY)
        with failing(mine, "update", times=1, errorCode=INTERRUPTED):
            claimed = claimer.claim(free=3, slots=3, now=now)

    assert (claimed.tasks, facts(claimed)) == ((), {"failed", "answered", "more_due"})
