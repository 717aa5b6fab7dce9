"""What is done to the real thing and to the model: alone, cut short by a crash, or with something else meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from pymongo.synchronous.pool import Connection

from tools.chaos.model.world import World

Steps = Callable[[World], Sequence[World]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One use case.

    Attributes:
        kind: What it is, in a word; *name* tells the whole of it.
        calls: About how many calls it makes; where it is to be disturbed, at one of these.
        do: Runs it; what it returns is given to *then*, where it was not cut short.
        steps: What it makes of a world, step by step: where it is stopped it leaves one of these, and the last at its
            end.
        purges: Dead letters may be gone afterwards.
        is_loose: Each document may be left as it was.
        late_steps: What it makes of the second world where it has read the first, and goes by what it has read.
        agrees: Says what is wrong with what it returned, by the world before and that after it; only if it ran alone.
    """

    kind: str
    name: str
    do: Callable[[], Any]
    steps: Steps
    calls: int = 1
    purges: bool = False
    is_loose: bool = False
    late_steps: Callable[[World, World], Sequence[World]] = lambda *_: ()
    agrees: Callable[[Any, World, World], str | None] = lambda *_: None
    then: Callable[[Any], None] = lambda _: None

    def changes(self, world: World) -> bool:
        """Tell whether there is anything to do."""
        return any(one != world for one in self.steps(world))


def one_after_the_other(first: Action, second: Action) -> Action:
    """Return both as one."""

    def steps(world: World) -> Sequence[World]:
        done = list(first.steps(world))
        return [*done, *second.steps(done[-1])]

    def late_steps(read: World, world: World) -> Sequence[World]:
        done = list(first.steps(world))
        return [*done, *second.late_steps(list(first.steps(read))[-1], done[-1])]

    def do() -> None:
        first.then(first.do())
        second.then(second.do())

    kind, name = f"{first.kind} and {second.kind}", f"{first.name}, {second.name}"
    calls = first.calls + second.calls
    return Action(kind=kind, calls=calls, name=name, do=do, steps=steps, late_steps=late_steps)


def possible(first: Action, second: Action, world: World) -> list[World]:
    """Return all worlds of which each document is as in one, where the *second* was done amid the *first*."""
    one, other = list(first.steps(world)), list(second.steps(world))
    in_turn = [*first.steps(other[-1]), *second.steps(one[-1])]
    return [world, *one, *other, *in_turn, *first.late_steps(world, other[-1])]


@contextmanager
def meanwhile(do: Callable[[], Any], *, before_call: int) -> Iterator[None]:
    """Call *do* right before the so manyth command, counted from 1, that this thread sends to MongoDB inside.

    The driver's own threads send heartbeats at any time. In one of these *do* would run on after the end of the block.
    """
    send, thread = Connection.send_message, threading.get_ident()
    sent = 0

    def send_watched(conn: Connection, message: bytes, max_doc_size: int) -> None:
        nonlocal sent
        if conn.ready and threading.get_ident() == thread:
            sent += 1
            if sent == before_call:
                do()
        send(conn, message, max_doc_size)

    with patch.object(Connection, "send_message", send_watched):
        yield
