"""What is enqueued: tasks of all kinds, mixed by a seed; and what is to become of each."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

End: TypeAlias = Literal["done", "dead", "cancelled"]

PAUSED: Final = "bulk"
"""The queue that is paused and resumed, again and again."""

SLOW: Final = "slow"
QUEUES: Final = ("default", PAUSED, SLOW)

PAUSED_PART: Final = 0.25
"""Of the tasks that are not long, for the queue `PAUSED`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of task.

    Attributes:
        function: Which function runs it.
        share: How many of a thousand tasks are of this kind.
        ends: Where it ends, after so many *runs*; if dead, for this *reason*.
        fields: What else is said of one, drawn for each.
        is_keyed: It is enqueued with a key, and once more with the same.
        is_long: It is for the queue `SLOW`, else for either of the others.
    """

    function: str
    share: int
    ends: End = "done"
    runs: int = 1
    reason: str | None = None
    fields: Callable[[random.Random], Mapping[str, Any]] = lambda _: {}
    is_keyed: bool = False
    is_long: bool = False


def _sec(least: float, most: float) -> Callable[[random.Random], Mapping[str, Any]]:
    return lambda rng: {"payload": {"sec": round(rng.uniform(least, most), 3)}}


def _delay(least: float, most: float) -> Callable[[random.Random], Mapping[str, Any]]:
    return lambda rng: {"delay_sec": round(rng.uniform(least, most), 3)}


KINDS: Final[Mapping[str, Kind]] = {
    "short": Kind(function="quick", share=520),
    "by priority": Kind(function="quick", share=100, fields=lambda rng: {"priority": rng.randint(-10, 10)}),
    "delayed": Kind(function="quick", share=80, fields=_delay(0.1, 3)),
    "keyed": Kind(function="quick", share=60, is_keyed=True),
    "sleeping": Kind(function="sleeps", share=60, fields=_sec(0.01, 0.05)),
    "awaiting": Kind(function="awaits", share=40, fields=_sec(0.01, 0.05)),
    "long": Kind(function="sleeps", share=5, fields=_sec(0.3, 1), is_long=True),
    "failing twice": Kind(function="fails_twice", share=70, runs=3),
    "failing": Kind(function="fails", share=30, ends="dead", runs=2, reason="exhausted"),
    "overrunning": Kind(function="overruns", share=5, ends="dead", reason="exhausted"),
    "isolated": Kind(function="isolated", share=10),
    "crashing": Kind(function="crashes", share=5, ends="dead", runs=2, reason="worker_lost"),
    "cancelled": Kind(function="quick", share=15, ends="cancelled", runs=0, fields=lambda _: {"delay_sec": 3600}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One task that is to be enqueued: *fields* are those of a request; its payload has its number *n*."""

    n: int
    kind: str
    fields: Mapping[str, Any]


def pieces(rng: random.Random, *, run: str) -> Iterator[Piece]:
    """Yield tasks without end; keys hold *run*, so that two runs on one database do not meet."""
    names, shares = list(KINDS), [kind.share for kind in KINDS.values()]
    for n in itertools.count():
        [name] = rng.choices(names, shares)
        kind = KINDS[name]
        fields = dict(kind.fields(rng))
        payload = {"n": n, "text": text(n), **fields.pop("payload", {})}
        key = {"idempotency_key": f"{run}-{n}"} if kind.is_keyed else {}
        yield Piece(
            n=n,
            kind=name,
            fields={"name": kind.function, "payload": payload, "queue": _queue(kind, rng), **fields, **key},
        )


def text(n: int) -> str:
    """Return the text in the payload of the *n*-th: of any length up to 200, so that a wrong one is found out."""
    return "x" * (n * 7919 % 200)


def _queue(kind: Kind, rng: random.Random) -> str:
    return SLOW if kind.is_long else rng.choices(QUEUES[:2], (1 - PAUSED_PART, PAUSED_PART))[0]
