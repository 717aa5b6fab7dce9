"""As many cells as there is time for, in an order that has something of every row and column soon."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pymongo.errors import PyMongoError

from tidemill.errors import TidemillError
from tools.chaos.failures.cases import CASES
from tools.chaos.failures.cases.case import Case
from tools.chaos.failures.cells import Cell, commands, tried
from tools.chaos.failures.injector import Shot
from tools.chaos.failures.kinds import KINDS
from tools.chaos.failures.table import allowed
from tools.chaos.failures.world import World, opened
from tools.chaos.found import Found
from tools.chaos.invariants import Holdings, holdings


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A cell that can be tried: *command* is what its shot hits, unless threads have it hit another one."""

    case: Case
    command: str
    shot: Shot

    @property
    def square(self) -> tuple[str, str, str]:
        """Where the table tells of it."""
        return self.case.name, self.command, self.shot.kind.column

    @property
    def is_slow(self) -> bool:
        """Whether it waits for what will not come."""
        return self.shot.times is None or self.shot.kind.column == "too late"


def survive(uri: str, *, seconds: float, seed: int) -> Found:
    """Try cells until the *seconds* are over, those first that no square of the table has had yet."""
    end = time.monotonic() + seconds
    with opened(uri) as world:
        plans = planned(world, CASES, seed=seed)
        return Trial(world).all(plans, until=end - 1.0)


def planned(world: World, cases: Sequence[Case], *, seed: int) -> list[Plan]:
    """Return all cells of *cases*: first one of each row, which is quick, then one of each square, then all others."""
    plans = [plan for case in cases for plan in _of(world, case)]
    random.Random(seed).shuffle(plans)
    seen: Counter[object] = Counter()
    ranked = []
    for plan in plans:
        row, square = plan.square[:2], plan.square
        ranked.append(((seen[square], seen[row] + plan.is_slow), plan))
        seen.update([row, square])
    return [plan for _, plan in sorted(ranked, key=lambda one: one[0])]


def _of(world: World, case: Case) -> Iterator[Plan]:
    sent = commands(world, case)
    for index, command in enumerate(sent):
        for kind in KINDS:
            if kind.is_met_by(command.split()[0]):
                for times in kind.times:
                    shot = Shot(number=index + 1, kind=kind, times=times)
                    yield Plan(case=case, command=case.label(command, sent[:index]), shot=shot)


@dataclass(kw_only=True)
class _Tried:
    cells: int = 0
    commands: int = 0
    in_vain: int = 0
    longest: float = 0.0
    squares: set[tuple[str, str, str]] = field(default_factory=set)


class Trial:
    """Tries cells in *world*, and adds up what is found."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._found = Found()
        self._tried = _Tried()

    def all(self, plans: Sequence[Plan], *, until: float) -> Found:
        """Try *plans* in their order until *until* (monotonic)."""
        for plan in plans:
            if time.monotonic() >= until:
                break
            self._try(plan)
        tried, squares = self._tried, len({plan.square for plan in plans})
        self._found.notes += [
            f"{tried.cells} of {len(plans)} cells were tried, {len(tried.squares)} of {squares} squares of the table",
            f"{tried.commands} commands failed, with the driver's repeats; the longest cell took {tried.longest:.1f} s",
            f"in {tried.in_vain} cells the command that was to fail was not sent",
        ]
        return self._found

    def _try(self, plan: Plan) -> None:
        started = time.monotonic()
        try:
            cell = tried(self._world, plan.case, plan.shot)
        except (TidemillError, PyMongoError, AssertionError) as error:
            self._found.broken.append(f"{plan.case.name}, {plan.command}, {plan.shot}: afterwards {error!r}")
            return
        self._tried.longest = max(self._tried.longest, time.monotonic() - started)
        self._tried.cells += 1
        if not cell.hits or cell.command is None:
            self._tried.in_vain += 1
        else:
            self._tried.squares.add(plan.square)
            self._found.faults[plan.shot.kind.name] += 1
            self._tried.commands += cell.hits
            self._found.broken += [f"{cell}: {wrong}" for wrong in (*cell.wrong, *_unforeseen(cell))]
        if cell.repeated:
            self._found.repeated["outcome never confirmed"] += cell.repeated
        self._count(plan.case)

    def _count(self, case: Case) -> None:
        held = holdings(self._world.sound)
        ends = Counter(_end(held, one) for one in {*held.tasks, *held.letters, *case.accepted(self._world)})
        for end, count in ends.items():
            setattr(self._found, end, getattr(self._found, end) + count)
        self._found.accepted += ends.total()


def _unforeseen(cell: Cell) -> Iterator[str]:
    if cell.command is None or cell.answer is None:
        return
    try:
        right = allowed(cell.case.name, cell.command, cell.shot.kind, cell.shot.times)
    except LookupError as error:
        yield str(error)
        return
    if cell.answer not in right:
        yield f"its caller is told {cell.answer}, where the table has {' or '.join(sorted(right))}"


def _end(held: Holdings, task_id: object) -> str:
    if task_id in held.tasks:
        status = held.tasks[task_id].get("status")
        return str(status) if status in {"done", "cancelled"} else "alive"
    return "dead" if task_id in held.letters else "lost"
