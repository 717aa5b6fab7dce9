"""What the attack on a replica set would have said of runs that went wrong, and that it says nothing of others."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from bson import ObjectId

from tools.chaos.replica_set import reruns
from tools.chaos.replica_set.ledger import KINDS, MANY, WAYS, Answered, Wanted, orders, wishes
from tools.chaos.replica_set.traces import Run, together
from tools.chaos.replica_set.verdict import Evidence, judged

ID = ObjectId("6b0b48e5aef198f65c44b639")
OTHER = ObjectId("6b0b48e5aef198f65c44b63a")
START = datetime(2026, 7, 1, tzinfo=UTC)
WANTED = Wanted(number=7, kind="slow", way="keyed", payload={"number": 7, "ms": 50})


def line(attempt: int, *, at: float, took: float = 0.1, status: str = "succeeded", note: str = "") -> dict[str, Any]:
    """A line of the log of attempts."""
    started = START + timedelta(seconds=at)
    return {
        "attempt": attempt, "status": status, "started_at": started, "duration_ms": int(took * 1000), "note": note,
    }  # fmt: skip


def lost(attempt: int, *, at: float, took: float, counted: bool = False) -> dict[str, Any]:
    """A line about a worker that vanished."""
    note = "its worker vanished" if counted else "its worker vanished; not counted"
    return line(attempt, at=at, took=took, status="lost", note=note)


def run(attempt: int, *, at: float, took: float | None = 0.1, box: str = "A", is_child: bool = False) -> Run:
    """A run that began so many seconds after the start."""
    ended = None if took is None else at + took
    began_at = START.timestamp() + at
    return Run(task=ID, attempt=attempt, box=box, is_child=is_child, began=at, began_at=began_at, ended=ended)


def done(*log: dict[str, Any], attempts: int = 1, **fields: Any) -> dict[str, Any]:
    """The document of a task that is done."""
    return {
        "_id": ID, "name": "slow", "status": "done", "payload": WANTED.payload, "attempts": attempts,
        "attempt_log": list(log),
    } | fields  # fmt: skip


def evidence(**changes: Any) -> Evidence:
    """All is well: one task was asked for, acknowledged, and run once."""
    well = Evidence(
        wanted=[WANTED],
        answers={7: Answered(ids=[str(ID)], seconds=[0.1])},
        tasks=[done(line(1, at=1))],
        letters=[],
        runs=[run(1, at=1)],
        deaths={},
        retryable=("UnavailableError",),
    )
    return replace(well, **changes)


def test_nothing_is_said_where_all_is_well() -> None:
    found = judged(evidence())

    assert found.broken == []
    assert (found.accepted, found.done, found.dead, found.lost) == (1, 1, 0, 0)
    assert found.repeated == Counter()


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"tasks": [], "runs": []}, "and is nowhere"),
        ({"tasks": [done(line(1, at=1), status="pending")]}, "is pending in the tasks"),
        ({"tasks": [done(line(1, at=1), payload={"number": 7, "ms": 51})]}, "has another payload"),
        ({"tasks": [done(line(1, at=1)), done(_id=OTHER, attempts=0)]}, "is there 2 times"),
        ({"letters": [done(line(1, at=1), reason="exhausted")]}, "is there 2 times"),
        ({"letters": [done(line(1, at=1), reason="exhausted")], "tasks": []}, "and not done"),
        ({"answers": {}}, "was never acknowledged"),
        ({"answers": {7: Answered(refused=["UnavailableError"])}}, "was never acknowledged"),
        ({"answers": {7: Answered(ids=[str(ID)], refused=["HTTP 500"])}}, "was told HTTP 500"),
        ({"wanted": []}, "asked for by nobody"),
        ({"wanted": [replace(WANTED, way="transaction")]}, "were not committed together"),
        ({"runs": []}, "has never run"),
        ({"runs": [run(1, at=1), run(1, at=2)]}, "ran 2 times, and its log tells of 1"),
        ({"tasks": [done(line(1, at=1), attempts=2)]}, "has 2 attempts, and its log tells of 1"),
    ],
)
def test_what_does_not_hold_is_said(changes: dict[str, Any], told: str) -> None:
    assert told in "\n".join(judged(evidence(**changes)).broken)


@pytest.mark.parametrize(
    ("changes", "counts"),
    [
        ({"tasks": [], "runs": []}, (1, 0, 0, 1)),
        ({"tasks": [done(line(1, at=1), status="processing")]}, (1, 0, 0, 1)),
        ({"letters": [done(line(1, at=1), reason="exhausted")]}, (1, 0, 0, 1)),
        ({"letters": [done(line(1, at=1), reason="exhausted")], "tasks": []}, (1, 0, 1, 0)),
    ],
)
def test_what_is_in_no_place_or_in_two_or_goes_on_is_lost(changes: dict[str, Any], counts: tuple[int, ...]) -> None:
    found = judged(evidence(**changes))

    assert (found.accepted, found.done, found.dead, found.lost) == counts


def test_a_task_of_which_nobody_knows_may_be_there_or_not() -> None:
    unknown = {"wanted": [replace(WANTED, way="plain")], "answers": {7: Answered(refused=["UnavailableError"])}}

    for nowhere in (False, True):
        found = judged(evidence(**unknown, **({"tasks": [], "runs": []} if nowhere else {})))
        assert (found.broken, found.accepted, found.lost) == ([], 0, 0)


@pytest.mark.parametrize(
    ("log", "runs", "deaths", "why"),
    [
        ([lost(1, at=1, took=2), line(1, at=4)], [run(1, at=1.5, took=None), run(1, at=4, box="B")], {"A": 2.0},
         "its executor was killed while it ran"),
        ([lost(1, at=1, took=2), line(1, at=4)], [run(1, at=1.5), run(1, at=4, box="B")], {"A": 2.0},
         "its executor was killed before it had settled"),
        ([lost(1, at=1, took=2), line(1, at=4)], [run(1, at=1.5, took=5), run(1, at=4, box="B")], {"A": 9.0},
         "its lease was taken away while its executor lived"),
        ([lost(1, at=1, took=2), line(1, at=4)], [run(1, at=1.5, took=None, is_child=True), run(1, at=4)], {},
         "the process that it had for itself was killed"),
    ],
)  # fmt: skip
def test_a_run_too_many_is_explained(
    log: list[dict[str, Any]], runs: list[Run], deaths: dict[str, float], why: str
) -> None:
    assert reruns.broken(done(*log), runs, deaths=deaths) == []
    assert reruns.repeated(done(*log), runs, deaths=deaths) == {why: 1}


def test_runs_that_failed_by_themselves_are_no_repeats() -> None:
    log = [line(1, at=1, status="failed", note="OSError: no"), line(2, at=2)]

    found = judged(evidence(tasks=[done(*log, attempts=2)], runs=[run(1, at=1), run(2, at=2)]))

    assert (found.broken, found.repeated) == ([], Counter())


def test_two_runs_at_once_need_a_lease_that_was_lost_before_the_second_began() -> None:
    runs = [run(1, at=1.5, took=5), run(1, at=3, box="B")]
    in_time, too_late, of_another = lost(1, at=1, took=2), lost(1, at=1, took=4), lost(2, at=1, took=2)

    assert reruns.broken(done(in_time, line(1, at=3)), runs, deaths={}) == []
    for log in ([too_late, line(1, at=3)], [of_another, line(1, at=3)]):
        assert "ran twice at once, in A and B" in reruns.broken(done(*log), runs, deaths={})[0]


def test_a_function_that_outlives_its_executor_is_told() -> None:
    [told] = reruns.broken(done(line(1, at=1)), [run(1, at=1, took=9, is_child=True)], deaths={"A": 2.0})

    assert told == f"{ID} ran on for 8.0 s when its executor A was dead"


@pytest.mark.parametrize(
    ("log", "is_well"),
    [
        ([lost(1, at=1, took=1), lost(1, at=3, took=1, counted=True), line(2, at=5)], True),
        ([lost(1, at=1, took=1, counted=True), line(2, at=5)], False),
        ([lost(1, at=1, took=1), lost(1, at=3, took=1), line(1, at=5)], False),
        ([lost(1, at=1, took=1), line(1, at=3, status="failed", note="OSError: no"), lost(2, at=5, took=1)], True),
        ([line(1, at=1, status="failed", note="crashed: SIGKILL"), lost(2, at=3, took=1, counted=True)], True),
    ],
)
def test_only_the_first_loss_of_a_worker_is_refunded(log: list[dict[str, Any]], is_well: bool) -> None:  # noqa: FBT001
    attempts = sum("not counted" not in one["note"] for one in log)

    assert (reruns.broken(done(*log, attempts=attempts, status="pending"), [], deaths={}) == []) == is_well


def test_a_run_is_put_together_from_its_lines_wherever_they_are() -> None:
    begin = '{"run": "%s", "task": "6b0b48e5aef198f65c44b639", "attempt": 1, "box": "A", "is_child": false, '
    lines = [
        begin % "y" + '"began": 2.0, "began_at": 9.0}',
        '{"run": "x", "ended": 1.5}',
        begin % "x" + '"began": 1.0, "began_at": 8.0}',
    ]

    assert [(one.task, one.began, one.ended) for one in together(lines)] == [(ID, 1.0, 1.5), (ID, 2.0, None)]


def test_each_kind_and_each_way_is_asked_for_and_a_seed_repeats_them() -> None:
    wanted = wishes(300, random.Random(7))

    assert {one.kind for one in wanted} == set(KINDS)
    assert {one.way for one in wanted} == set(WAYS)
    assert wanted == wishes(300, random.Random(7))
    assert [one for order in orders(wanted) for one in order] == wanted
    assert {len(order) for order in orders(wanted) if order[0].way in {"many", "transaction"}} >= {MANY}
    assert {len(order) for order in orders(wanted) if order[0].way not in {"many", "transaction"}} == {1}
