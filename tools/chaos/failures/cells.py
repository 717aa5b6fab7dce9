"""One cell: a use case in which one command fails in one way, and what became of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from pymongo.errors import PyMongoError

from tidemill.errors import RefusedError, UnavailableError
from tools.chaos.failures.cases.case import Case, Effect
from tools.chaos.failures.injector import Shot
from tools.chaos.failures.world import World
from tools.chaos.invariants import broken

Answer: TypeAlias = Literal["ok", "later", "503", "refused", "driver"]
"""What its caller is told: done; done in part, which it says; that nothing is known, so try again; that the database
refuses; or, in a transaction of the caller, what the driver says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What became of a use case. ``command`` is the one that failed, ``wrong`` what did not hold, a sentence each."""

    case: Case
    shot: Shot
    command: str | None
    hits: int
    answer: Answer | None = None
    effect: Effect = "none"
    repeated: int = 0
    wrong: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Say which it is."""
        often = {None: "always", 1: "once", 2: "twice"}[self.shot.times]
        return f"{self.case.name}: command {self.shot.number}, {self.command}: {self.shot.kind.name}, {often}"


def commands(world: World, case: Case) -> list[str]:
    """Return the commands that *case* sends where nothing fails."""
    start(world, case, hasty=False)
    with world.injector.listing() as sent:
        case.run(world)
    if case.effect(world) != "all":
        raise AssertionError(f"{case.name} has no effect where nothing fails")
    return sent


def start(world: World, case: Case, *, hasty: bool) -> None:
    """Make the world as *case* finds it."""
    world.start_over(hasty=hasty)
    with world.well():
        case.prepare(world)


def tried(world: World, case: Case, shot: Shot) -> Cell:
    """Run *case* with *shot*, then what follows once all is well, and judge."""
    start(world, case, hasty=shot.times is None or shot.kind.column == "too late")
    with world.injector.shooting(shot, appname=case.appname):
        answer, wrong = _answered(world, case)
    struck, effect = world.injector.struck, case.effect(world)
    wrong = [*wrong, *_contradictions(case, answer, effect), *_wrong_now(world, case)]
    if case.again is not None:
        with world.well():
            wrong += _wrong_at_last(world, case)
    runs = Counter(world.ran)
    again = sum(count - 1 for count in runs.values())
    if again and answer != "503":
        wrong.append(f"functions ran again though every outcome was confirmed: {runs}")
    return Cell(
        case=case,
        shot=shot,
        command=None if struck is None else case.label(struck, world.injector.earlier),
        hits=world.injector.hits,
        answer=answer,
        effect=effect,
        repeated=again,
        wrong=tuple(wrong),
    )


def _answered(world: World, case: Case) -> tuple[Answer | None, list[str]]:
    try:
        told: Any = case.run(world)
    except UnavailableError:
        return "503", []
    except RefusedError:
        return "refused", []
    except PyMongoError:
        return "driver", []
    except Exception as error:  # noqa: BLE001 - that it is another one is what is to be found
        return None, [f"it raised {type(error).__name__}: {error}"]
    return ("later" if case.tells_of_a_rest(told) else "ok"), []


def _contradictions(case: Case, answer: Answer | None, effect: Effect) -> Iterator[str]:
    if answer == "ok" and effect != "all":
        yield f"it says that it is done, and of its effect there is {effect}"
    if case.is_atomic and effect == "some":
        yield "there is a part of its effect"
    if case.is_atomic and answer == "refused" and effect != "none":
        yield f"it says that it is refused, and of its effect there is {effect}"


def _wrong_now(world: World, case: Case) -> list[str]:
    return broken(world.sound, accepted=case.accepted(world), now=world.clock.now())


def _wrong_at_last(world: World, case: Case) -> Iterator[str]:
    assert case.again is not None
    case.again(world)
    there = (case.at_last or case.effect)(world)
    if there != "all":
        yield f"at last {there} of it is done"
    yield from broken(world.sound, accepted=case.accepted(world), now=world.clock.now(), at_rest=case.is_at_rest)
