from __future__ import annotations

import random
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest

from tests.chaos.load import survive
from tests.chaos.load.container import Reading
from tests.chaos.load.growth import growth
from tests.chaos.load.judging import Evidence, growths
from tests.chaos.load.machinery import Course
from tests.chaos.load.plan import plan_for
from tests.chaos.load.samples import KEPT, Extent, Sample
from tests.chaos.load.traces import Traces, read
from tests.chaos.load.verdict import KILLED, Left, verdict
from tests.chaos.load.work import KINDS, Piece, pieces, text
from tidemill.testing import Mongod


def _piece(kind: str, n: int = 7) -> Piece:
    fields = {"name": KINDS[kind].function, "payload": {"n": n, "text": text(n)}, "queue": "default"}
    return Piece(n=n, kind=kind, fields=fields)


def _traces(*whats: str, n: int = 7) -> Traces:
    return read(f"{what} a {attempt} {n} {len(text(7))}\n" for attempt, what in enumerate(whats))


def _letter(**changes: Any) -> dict[str, Any]:
    return {"reason": "exhausted", "payload": _piece("failing").fields["payload"]} | changes


NOTHING = Left(status={}, letters={})
DONE = Left(status={"a": "done"}, letters={})
KEPT_USUALLY = dict.fromkeys(KEPT, Extent(count=1, size=1000))
DEAD = Left(status={}, letters={"a": [_letter()]})


def test_the_load_is_survived(mongod: Mongod) -> None:
    found = survive(mongod.uri, seconds=1.5, seed=7)

    assert found.broken == []
    assert found.accepted == found.done + found.dead + found.cancelled > 50
    assert found.done > found.dead > 0


@pytest.mark.parametrize(
    ("kind", "traces", "left"),
    [
        ("short", _traces("began", "done"), DONE),
        ("short", _traces("began", "done"), NOTHING),
        ("failing twice", _traces("began", "began", "began", "done"), DONE),
        ("failing", _traces("began", "began"), DEAD),
        ("cancelled", _traces(), Left(status={"a": "cancelled"}, letters={})),
    ],
)
def test_what_ends_as_it_ought_to_is_well(kind: str, traces: Traces, left: Left) -> None:
    found = verdict({"a": _piece(kind)}, traces, left, held=())

    assert (found.broken, found.lost) == ([], 0)
    assert getattr(found, KINDS[kind].ends) == 1


@pytest.mark.parametrize(
    ("kind", "traces", "left"),
    [
        ("short", _traces(), NOTHING),
        ("short", _traces("began"), NOTHING),
        ("short", _traces("began", "done"), Left(status={"a": "processing"}, letters={})),
        ("short", _traces("began", "done"), Left(status={"a": "done"}, letters={"a": [_letter()]})),
        ("failing", _traces("began", "began"), NOTHING),
        ("failing", _traces("began", "began"), Left(status={}, letters={"a": [_letter(), _letter()]})),
        ("failing", _traces("began", "began"), Left(status={}, letters={"a": [_letter(reason="malformed")]})),
        ("failing", _traces("began", "began"), replace(DEAD, status={"a": "failed"})),
        ("cancelled", _traces(), Left(status={"a": "pending"}, letters={})),
    ],
)
def test_what_ends_elsewhere_is_lost(kind: str, traces: Traces, left: Left) -> None:
    found = verdict({"a": _piece(kind)}, traces, left, held=())

    assert found.lost == 1
    assert found.broken
    assert found.accepted == found.lost


@pytest.mark.parametrize(
    ("kind", "traces", "left", "said"),
    [
        ("short", _traces("began", "began", "done"), DONE, "ran 2 times"),
        ("short", _traces("began", "done", "began", "done"), DONE, "succeeded 2 times"),
        ("failing", _traces("began"), DEAD, "ran 1 times"),
        ("cancelled", _traces("began", "done"), Left(status={"a": "cancelled"}, letters={}), "ran 1 times"),
        ("short", _traces("began", "done", n=8), DONE, "another payload"),
        (
            "failing",
            _traces("began", "began"),
            Left(status={}, letters={"a": [_letter(payload={})]}),
            "another payload",
        ),
    ],
)
def test_what_ran_otherwise_than_it_ought_to_is_told(kind: str, traces: Traces, left: Left, said: str) -> None:
    found = verdict({"a": _piece(kind)}, traces, left, held=())

    assert any(said in sentence for sentence in found.broken)


def test_what_a_killed_executor_held_may_run_again() -> None:
    found = verdict({"a": _piece("short")}, _traces("began", "began", "done"), DONE, held={"a"})

    assert found.broken == []
    assert found.repeated == {KILLED: 1}


def test_a_task_that_nobody_accepted_is_told() -> None:
    assert verdict({}, _traces("began", "done"), NOTHING, held=()).broken


@pytest.mark.parametrize(
    ("slope", "swing", "told"),
    [(0.0, 0.0, ""), (0.0, 2.0, ""), (-1.0, 0.0, ""), (1.0, 0.0, "memory: 105 -> 125 (allowed is 2 more)")],
)
def test_growth_is_what_the_last_third_has_more_than_the_first(slope: float, swing: float, told: str) -> None:
    values = [(float(at), 100 + slope * at + swing * (at % 2)) for at in range(30)]

    found = growth("memory", values, whole=30, allowed=2)

    assert found is not None
    assert ("" if found.is_none else found.told()) == told


def test_nothing_is_said_of_the_growth_of_what_was_not_looked_at_in_time() -> None:
    assert growth("memory", [(1.0, 100.0), (15.0, 100.0)], whole=30, allowed=2) is None


def _looks(sample: dict[str, Any], reading: dict[str, Any]) -> Evidence:
    """Return thirty looks, of which the last third shows what is given."""
    usual = Sample(
        at=0, connections=20, due=3, oldest_sec=0.2, paused_sec=4, tasks=900, letters=9, kept=KEPT_USUALLY, server=1
    )
    held = Reading(blocks=230_000, resident=50 << 20, threads=5, files=10, children=0)
    plan = replace(plan_for(110), loaded=30.0)
    return Evidence(
        plan=plan,
        course=Course(),
        samples=[replace(usual, at=at, **(sample if at > 20 else {})) for at in range(30)],
        readings={"first": [(at, replace(held, **(reading if at > 20 else {}))) for at in range(30)]},
        rate=100.0,
        seconds_to_calm=1.0,
        runs=1000,
    )


def test_what_varies_as_usual_has_not_grown() -> None:
    seen = _looks({"connections": 22, "due": 9, "oldest_sec": 0.5}, {"blocks": 230_170, "files": 11, "children": 2})

    assert [one.told() for one in growths(seen) if not one.is_none] == []
    assert len(growths(seen)) == 15


@pytest.mark.parametrize(
    ("sample", "reading"),
    [
        ({"connections": 30}, {}),
        ({"due": 90}, {}),
        ({"oldest_sec": 3.0}, {}),
        ({"paused_sec": 40.0}, {}),
        ({"tasks": 1300}, {}),
        *[({"kept": KEPT_USUALLY | {name: Extent(count=1, size=9000)}}, {}) for name in KEPT],
        ({}, {"blocks": 232_000}),
        ({}, {"resident": 52 << 20}),
        ({}, {"threads": 8}),
        ({}, {"files": 18}),
        ({}, {"children": 4}),
    ],
)
def test_each_thing_that_grows_is_found(sample: dict[str, Any], reading: dict[str, Any]) -> None:
    assert len([one for one in growths(_looks(sample, reading)) if not one.is_none]) == 1


def test_the_same_seed_mixes_the_same_tasks_of_every_kind() -> None:
    first, second = (list(islice(pieces(random.Random(3), run="a"), 2000)) for _ in range(2))

    assert first == second
    assert {one.kind for one in first} == KINDS.keys()
    assert {one.fields["name"] for one in first} == {kind.function for kind in KINDS.values()}
