"""The ticks of `make serve`: what they invoke, and what they say; the handlers are stand-ins."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from types import ModuleType
from typing import Any

from demo.functions import Event
from localapi.ticks import Ticks
from tidemill.requests.events import find_dead_owner
from tidemill.testing import FakeContext

NEVER = timedelta(hours=1)
SOON = timedelta(milliseconds=10)
WITHIN_SEC = 10


@dataclass(kw_only=True)
class Function:
    """A handler that notes its invocations and returns, or raises, what it is told to."""

    returns: Any = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    owners: list[str] = field(default_factory=list)

    def module(self) -> ModuleType:
        made = ModuleType("app")
        vars(made)["lambda_handler"] = self._handle
        return made

    def _handle(self, event: Event, context: FakeContext, **_: object) -> Any:
        self.events.append(event)
        self.owners.append(context.aws_request_id)
        if isinstance(self.returns, Exception):
            raise self.returns
        return self.returns


@dataclass(kw_only=True)
class Stage:
    """The three functions, and what was said."""

    execute: Function = field(default_factory=Function)
    reclaim: Function = field(default_factory=Function)
    archive: Function = field(default_factory=Function)
    said: list[str] = field(default_factory=list)

    def ticks(self, every: timedelta) -> Ticks:
        modules = (self.execute.module(), self.reclaim.module(), self.archive.module())
        return Ticks(*modules, every=every, say=self.said.append)


def wait_for(condition: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + WITHIN_SEC
    while not condition():
        assert time.monotonic() < give_up_at
        time.sleep(0.005)


def test_first_indexes_are_made_and_tasks_declared() -> None:
    stage = Stage()

    stage.ticks(NEVER).prepare()

    assert (len(stage.reclaim.events), len(stage.execute.events), len(stage.archive.events)) == (1, 1, 0)


def test_all_three_tick_again_and_again() -> None:
    stage = Stage()

    with stage.ticks(SOON).run():
        wait_for(lambda: min(len(stage.execute.events), len(stage.reclaim.events), len(stage.archive.events)) > 2)


def test_a_wake_does_not_wait_for_the_next_tick() -> None:
    stage = Stage()
    ticks = stage.ticks(NEVER)

    with ticks.run():
        wait_for(lambda: len(stage.execute.events) == 1)
        ticks.wake()
        wait_for(lambda: len(stage.execute.events) == 2)

    assert stage.reclaim.events == stage.archive.events == []


def test_what_a_tick_did_is_said_and_nothing_else() -> None:
    stage = Stage(execute=Function(returns={"done": 2, "timed_out": 1, "claimed": 3, "failed": 0}))

    with stage.ticks(NEVER).run():
        wait_for(lambda: bool(stage.said))

    assert stage.said == ["execute: 2 done, 1 timed out"]


def test_an_executor_that_fails_is_reported_to_reclaim_and_the_next_one_comes() -> None:
    stage = Stage(execute=Function(returns=RuntimeError("no")))
    ticks = stage.ticks(NEVER)

    with ticks.run():
        wait_for(lambda: len(stage.reclaim.events) == 1)
        ticks.wake()
        wait_for(lambda: len(stage.reclaim.events) == 2)

    assert stage.said[0] == "execute failed: RuntimeError"
    assert [find_dead_owner(event) for event in stage.reclaim.events] == stage.execute.owners
