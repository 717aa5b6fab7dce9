"""A machine that does the same to the real thing and to the model, and compares both after each step."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, ClassVar, Final, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine
from pymongo.database import Database

from tests.crash_points import crash
from tests.databases import ALL_BUT_THE_MARK
from tests.fixtures import T0, ManualClock
from tidemill import Queue
from tidemill.documents import DEAD_LETTERS
from tidemill.model import Malformed, Task
from tidemill.store.connection import open_tasks
from tools.chaos.model.actions import Action, meanwhile, possible
from tools.chaos.model.comparing import BrokenError, Eyes
from tools.chaos.model.world import LetterKey, World

T = TypeVar("T")

EVER: Final = 1e12
PICK: Final = st.integers(0, 23)
"""Whatever a rule chooses among, by the remainder: it shrinks to the first."""

QUEUES: Final = ("default", "eu")
OWNERS: Final = ("A", "B", "C")


class Base(RuleBasedStateMachine):
    """What all rules share.

    ``did`` counts, over all examples, what rules really did, and ``ended`` where tasks ended. After ``until``, on the
    monotonic clock, nothing is done any more; once something broke it is looked for in as few steps as may be.
    """

    did: ClassVar[Counter[str]] = Counter()
    ended: ClassVar[Counter[str]] = Counter()
    until: ClassVar[float] = math.inf

    def __init__(self) -> None:
        super().__init__()
        for name in ("tasks", "tasks_dlq", "queues", "control", "queue_stats"):
            self.db[name].delete_many(ALL_BUT_THE_MARK)
        self.clock = ManualClock(T0)
        self.tasks, self.dead = open_tasks(self.db), open_tasks(self.db, DEAD_LETTERS)
        self.queue = Queue(self.db, clock=self.clock)
        self.eyes = Eyes(self.tasks)
        self.world = World()
        self.rng = random.Random(0)
        self.uptime = 0.0
        self.held: list[Task | Malformed] = []
        self.accepted: set[Any] = set()
        self.removed: set[Any] = set()
        self.purged: set[Any] = set()
        self.edited: set[Any] = set()
        self.reused: set[Any] = set()
        self.paused: set[str] = set()
        self.without_retries: set[str] = set()
        self.story: list[str] = []
        self.is_broken = False

    @property
    def db(self) -> Database[Any]:
        """The database; no attribute of the class, since Hypothesis asks all of these for marks of its own."""
        raise NotImplementedError

    def count(self, what: str, many: int = 1) -> None:
        """Note that a rule did something, so many times."""
        if many:
            type(self).did[what] += many

    @contextmanager
    def noting_what_breaks(self) -> Iterator[None]:
        """Go on without an end once something broke, whatever was raised."""
        try:
            yield
        except Exception:
            self.is_broken = True
            type(self).until = math.inf
            raise

    def now_is(self, *worlds: World, is_by_hand: bool = False, may_vanish: bool = False) -> World:
        """Compare what is stored with the model, which is then brought up to that; return the model as it was.

        With several *worlds* each document may be as in another one: so nothing may be in none, unless it *may_vanish*.
        """
        before = self.world
        type(self).did["steps"] += 1
        try:
            self.world = self.eyes.compared(before, worlds, is_by_hand=is_by_hand)
        except BrokenError as broken:
            self._complain(str(broken))
        self.forget(before.letters.keys() - self.world.letters.keys())
        vanished = ids_in(before) - ids_in(self.world)
        if may_vanish:
            self.purged |= vanished
        elif vanished and not is_by_hand:
            self._complain(f"{vanished} were there, and are nowhere")
        return before

    def forget(self, letters: Iterable[LetterKey]) -> None:
        """Hear that these letters are gone."""

    def expect(self, sentence: str | None) -> None:
        """Complain of what does not hold, if anything."""
        if sentence is not None:
            self._complain(sentence)

    def alone(self, action: Action) -> None:
        """Do it, undisturbed."""
        self.tell(action.name)
        result = action.do()
        action.then(result)
        steps = action.steps(self.world)
        before = self.now_is(*((self.world, *steps) if action.is_loose else steps[-1:]), may_vanish=action.purges)
        self.expect(action.agrees(result, before, self.world))

    def cut_short(self, action: Action, *, number: int, after: bool) -> None:
        """Begin it, and let the process die at a call."""
        steps = action.steps(self.world)
        try:
            point = crash(lambda _: action.do(), None, number=number, after=after)
        except AssertionError:  # it makes fewer calls than that
            self.tell(f"{action.name}, to its end")
        else:
            self.tell(f"{action.name}, but {point}")
            self.count("cut short")
            self.count(f"{action.kind} cut short")
        self.now_is(self.world, *steps, may_vanish=action.purges)

    def at_once(self, first: Action, second: Action, *, before_call: int) -> None:
        """Do both, the *second* whole before a call of the *first*."""
        self.tell(f"{first.name}, and before its call {before_call} {second.name}")
        worlds = possible(first, second, self.world)
        results: list[Any] = []
        with meanwhile(lambda: results.append(second.do()), before_call=before_call):
            result = first.do()
        first.then(result)
        if results:
            self.count("at once")
            self.count(f"{first.kind} and {second.kind} at once")
            second.then(results[0])
        self.now_is(*worlds, may_vanish=first.purges or second.purges)

    def tell(self, what: str) -> None:
        """Add a line to the story that is told where something breaks."""
        self.story.append(f"{(self.clock.now() - T0).total_seconds():g} s: {what}")

    def step(self, span: timedelta) -> None:
        """Let the clock go on, or back; a process's own goes only on."""
        self.clock.move(span)
        self.uptime += max(span.total_seconds(), 0.0)

    def monotonic(self) -> float:
        """Return the time of a process's own, which never stands still."""
        self.uptime += 1e-6
        return self.uptime

    def _complain(self, sentence: str) -> None:
        raise BrokenError("\n  ".join([sentence, "after", *self.story]))


def picked(those: Sequence[T] | Iterable[T], pick: int) -> T | None:
    """Return one of *those*, or ``None`` where there are none."""
    some = list(those)
    return some[pick % len(some)] if some else None


def ids_in(world: World) -> set[Any]:
    """Return the ids of all tasks, alive or dead and not redriven."""
    return {*world.tasks, *(key[0] for key, letter in world.letters.items() if "redriven_at" not in letter)}
