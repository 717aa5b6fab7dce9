"""What was asked for, and what was answered: each acknowledgement a line of a file before the next request is made."""

from __future__ import annotations

import json
import os
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

Kind: TypeAlias = Literal["quick", "slow", "unpunctual", "broken", "alone", "fatal"]
Way: TypeAlias = Literal["plain", "keyed", "many", "transaction", "http", "http keyed", "direct"]

KINDS: Final[dict[Kind, int]] = {"quick": 52, "slow": 28, "unpunctual": 8, "broken": 5, "alone": 5, "fatal": 2}
WAYS: Final[dict[Way, int]] = {
    "plain": 15, "keyed": 20, "many": 10, "transaction": 10, "http": 10, "http keyed": 25, "direct": 10,
}  # fmt: skip
"""How many of a hundred."""

DEADLY: Final = ("broken", "fatal")
MANY: Final = 5
"""So many tasks go into one `enqueue_many`, or into one transaction."""

RETRIES: Final = 2
RETRIES_OF_THE_GOOD: Final = 60
"""More than a task loses executors, so that only those become dead letters that have to."""

BASE_SEC: Final = 0.1
MAX_SEC: Final = 1.0
"""Of the back-off of all tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A task that somebody asks for, once or, *is_repeated*, until it is acknowledged, with one key."""

    number: int
    kind: Kind
    way: Way
    payload: dict[str, Any]

    @property
    def is_repeated(self) -> bool:
        """Tell whether it has a key."""
        return self.way not in {"plain", "transaction", "http"}

    @property
    def key(self) -> str:
        """The key, where it is repeated."""
        return f"task-{self.number}"

    @property
    def max_retries(self) -> int:
        """How often it is tried again."""
        return RETRIES if self.kind in DEADLY else RETRIES_OF_THE_GOOD


@dataclass(slots=True, kw_only=True)
class Answered:
    """What one wanted task was answered: the ids that were acknowledged, and everything else."""

    ids: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


class Ledger:
    """Keeps what was answered, for any number of threads; the acknowledgements in *file*, too."""

    def __init__(self, file: Path) -> None:
        self._file = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._lock = threading.Lock()
        self.answers: dict[int, Answered] = {}

    def acknowledged(self, wanted: Wanted, task_id: str, *, seconds: float) -> None:
        """Note that a task was accepted."""
        os.write(self._file, json.dumps({"number": wanted.number, "id": task_id}).encode() + b"\n")
        with self._lock:
            answered = self.answers.setdefault(wanted.number, Answered())
            answered.ids.append(task_id)
            answered.seconds.append(seconds)

    def refused(self, wanted: Wanted, what: str, *, seconds: float) -> None:
        """Note an answer that is none: whether the task is stored is not known."""
        with self._lock:
            answered = self.answers.setdefault(wanted.number, Answered())
            answered.refused.append(what)
            answered.seconds.append(seconds)

    def close(self) -> None:
        """Take no more."""
        os.close(self._file)


def wishes(count: int, rng: random.Random) -> list[Wanted]:
    """Return so many tasks to be asked for; those of one `enqueue_many` or transaction follow each other."""
    ways: list[Way] = []
    while len(ways) < count:
        [way] = rng.choices(list(WAYS), list(WAYS.values()))
        ways += [way] * (MANY if way in {"many", "transaction"} else 1)
    kinds = rng.choices(list(KINDS), list(KINDS.values()), k=count)
    for number, kind in enumerate(KINDS):  # each is there, however few they are
        kinds[number] = kind
    return [
        Wanted(number=number, kind=kind, way=way, payload={"number": number, "ms": rng.randrange(50, 300), "é": ["$x"]})
        for number, (kind, way) in enumerate(zip(kinds, ways, strict=False))
    ]


def orders(wanted: Sequence[Wanted]) -> list[list[Wanted]]:
    """Return what is asked for in one request each, in order."""
    found: list[list[Wanted]] = []
    for one in wanted:
        last = found[-1] if found else []
        is_more = one.way in {"many", "transaction"} and 0 < len(last) < MANY and last[0].way == one.way
        if is_more:
            last.append(one)
        else:
            found.append([one])
    return found
