"""The section of failing commands: its table says something of every command, and its checks would notice."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tidemill import Queue, TidemillError
from tidemill.testing import Mongod
from tools.chaos.failures.cases import CASES
from tools.chaos.failures.cases.case import Case
from tools.chaos.failures.cells import commands, tried
from tools.chaos.failures.injector import Shot
from tools.chaos.failures.kinds import KINDS
from tools.chaos.failures.run import Trial, planned
from tools.chaos.failures.table import COLUMNS, allowed, markdown, rows
from tools.chaos.failures.world import World, opened

SEED = 20260701


@pytest.fixture(scope="module")
def world(mongod: Mongod) -> Iterator[World]:
    with opened(mongod.uri) as world:
        yield world


def test_the_table_has_every_command_of_every_use_case_and_no_other(world: World) -> None:
    plans = planned(world, CASES, seed=SEED)

    assert all(allowed(plan.case.name, plan.command, plan.shot.kind, plan.shot.times) for plan in plans)
    sent = {(plan.case.name, plan.command) for plan in plans}
    told = [(case.name, command) for case in CASES for row in rows() for command in _commands_of(row.lines, case)]
    assert sorted(told) == sorted(sent)
    assert {plan.shot.kind.column for plan in plans} == set(COLUMNS)


def test_whatever_fails_once_becomes_of_it_what_the_table_says(world: World) -> None:
    plans = [plan for plan in planned(world, CASES, seed=SEED) if plan.shot.times == 1 and _is_quick(plan.shot)]
    one_of_each = {plan.square[:2]: plan for plan in plans}

    found = Trial(world).all(list(one_of_each.values()), until=float("inf"))

    assert found.broken == []
    assert (found.lost, found.faults.total() >= 0.9 * len(one_of_each)) == (0, True)


def test_what_comes_too_late_is_noticed_too(world: World) -> None:
    late = next(kind for kind in KINDS if kind.name == "delivered late")
    case = _named("cancel")

    cell = tried(world, case, Shot(number=3, kind=late, times=1))

    assert (cell.command, cell.answer, cell.effect, cell.wrong) == ("findAndModify tasks", "503", "all", ())


def test_the_drivers_own_look_at_the_server_is_never_what_fails(world: World) -> None:
    lost = next(kind for kind in KINDS if kind.name == "reply lost")
    case = _named("invoked directly")
    hello = commands(world, case).index("hello") + 1

    cell = tried(world, case, Shot(number=hello, kind=lost, times=2))

    assert (cell.command, cell.hits, cell.answer) == ("hello", 2, "503")


def test_a_use_case_that_says_too_much_is_found_out(world: World) -> None:
    def careless(world: World) -> object:
        try:
            return Queue(world.db, clock=world.clock).enqueue("noop", {})
        except TidemillError:
            return None

    case = replace(_named("enqueue"), run=careless)
    refused = next(kind for kind in KINDS if kind.column == "refused")

    cell = tried(world, case, Shot(number=len(commands(world, case)), kind=refused, times=1))
    found = Trial(world).all([replace(_plan(world, case), shot=cell.shot)], until=float("inf"))

    assert cell.wrong == ("it says that it is done, and of its effect there is none",)
    assert any("where the table has refused" in sentence for sentence in found.broken)


def test_a_use_case_that_leaves_a_part_is_found_out(world: World) -> None:
    def in_parts(world: World) -> object:
        queue = Queue(world.db, clock=world.clock)
        return [queue.enqueue("noop", {"n": n}) for n in range(3)]

    case = replace(_named("enqueue many"), run=in_parts)
    closed = next(kind for kind in KINDS if kind.column == "interrupted")

    cell = tried(world, case, Shot(number=5, kind=closed, times=1))

    assert (cell.answer, cell.wrong) == ("503", ("there is a part of its effect",))


def test_the_table_can_be_read_by_people() -> None:
    lines = markdown().splitlines()

    assert len(lines) == 2 + len(rows())
    assert {line.count(" | ") for line in lines} == {len(COLUMNS)}


def _commands_of(lines: tuple[str, ...], case: Case) -> list[str]:
    split: list[Any] = [line.split(": ") for line in lines]
    return [command for cases, some in split if case.name in cases.split("; ") for command in some.split(", ")]


def _named(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


def _plan(world: World, case: Case) -> Any:
    return planned(world, [case], seed=SEED)[0]


def _is_quick(shot: Shot) -> bool:
    return shot.kind.column not in {"too late", "cut", "reply lost", "moved"}
