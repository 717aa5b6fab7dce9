"""What functions return and raise, by name: to be concluded in a process exactly as in a thread."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

from bson import DBRef, Decimal128, Int64, MaxKey, ObjectId, Regex
from bson.binary import Binary
from bson.datetime_ms import DatetimeMS

from tidemill import Fail, Retry, Snooze

ITSELF: dict[str, Any] = {}
ITSELF["itself"] = ITSELF


class ExoticError(BaseException):
    """Beyond `Exception`."""


class UnprintableError(Exception):
    """Cannot be looked at."""

    def __str__(self) -> str:
        raise SystemExit("no text")

    __repr__ = __str__


class ValidationError(Exception):
    """Not retried, by its name."""


class Unrepresentable:
    """Raises when it is looked at."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


def _raise(error: BaseException) -> Any:
    raise error


def _recurse() -> Any:
    return _recurse()


def _chain() -> None:
    error: BaseException | None = None
    for number in range(50):
        link = ValueError(str(number))
        link.__cause__ = error
        error = link
    assert error is not None
    error.__cause__ = error
    raise error


RETURNS: dict[str, Callable[[], Any]] = {
    "nothing": lambda: None,
    "text": lambda: "ünïcödé 😀 \u202e",
    "numbers": lambda: [0, -1, 2**31, 2**63 - 1, -(2**63), 0.1, -0.0, 1.0, True],
    "object": lambda: {"a.b": {"$gt": ""}, "": 1, "list": [[], {}, None]},
    "bson": lambda: [ObjectId("6540a0a0a0a0a0a0a0a0a0a0"), Decimal128("1.10"), Int64(1), Binary(b"\xff", 5), b"\xff"],
    "regex": lambda: Regex("^a", "i"),
    "keys": MaxKey,
    "reference": lambda: DBRef("tasks", 1),
    "like a reference": lambda: {"$ref": "tasks", "$id": 1},
    "date": lambda: datetime(2031, 7, 1, 9, 0, 0, 123456, tzinfo=UTC),
    "date elsewhere": lambda: datetime(2031, 7, 1, tzinfo=timezone(timedelta(hours=5))),
    "naive date": lambda: datetime(2031, 7, 1),  # noqa: DTZ001 - what functions return
    "far date": lambda: DatetimeMS(2**60),
    "tuple": lambda: (1, (2, 3)),
    "nearly too large": lambda: "x" * (64 * 1024 - 30),
    "set": lambda: {1, 2},
    "plain object": object,
    "decimal": lambda: Decimal("1.1"),
    "day": lambda: date(2026, 1, 1),
    "large number": lambda: 2**70,
    "number as key": lambda: {1: "int key"},
    "nan": lambda: float("nan"),
    "generator": lambda: (n for n in "abc"),
    "20 MB": lambda: "x" * 20_000_000,
    "itself": lambda: ITSELF,
    "surrogate": lambda: "cut \ud83c",
    "nul in a key": lambda: {"a\x00b": 1},
    "unrepresentable": Unrepresentable,
    "exception": lambda: ValueError("returned"),
}

RAISES: dict[str, Callable[[], Any]] = {
    "error": lambda: _raise(ValueError("no")),
    "not retried": lambda: _raise(ValidationError("no")),
    "retry": lambda: _raise(Retry("later")),
    "retry after": lambda: _raise(Retry("later", after=timedelta(hours=1, microseconds=7), code="busy")),
    "fail": lambda: _raise(Fail("never", code="bad")),
    "snooze for": lambda: _raise(Snooze(timedelta(days=2, microseconds=3))),
    "snooze until": lambda: _raise(Snooze(datetime(2031, 7, 1, 9, 0, 0, 123456, tzinfo=timezone(timedelta(hours=-3))))),
    "snooze for ever": lambda: _raise(Snooze(timedelta.max)),
    "snooze to the end": lambda: _raise(Snooze(datetime.max.replace(tzinfo=UTC))),
    "exit": sys.exit,
    "exit 0": lambda: sys.exit(0),
    "exit text": lambda: sys.exit("bye"),
    "interrupt": lambda: _raise(KeyboardInterrupt()),
    "cancelled": lambda: _raise(asyncio.CancelledError()),
    "generator exit": lambda: _raise(GeneratorExit()),
    "memory": lambda: _raise(MemoryError()),
    "stop iteration": lambda: _raise(StopIteration()),
    "exotic": lambda: _raise(ExoticError()),
    "unprintable": lambda: _raise(UnprintableError()),
    "recursion": _recurse,
    "20 MB": lambda: _raise(ValueError("first line\n" + "x" * 20_000_000)),
    "surrogate": lambda: _raise(ValueError("cut \ud83c and \x00")),
    "bytes": lambda: _raise(ValueError(b"\xff")),
    "nameless": lambda: _raise(type("", (Exception,), {})("no name")),
    "group": lambda: _raise(ExceptionGroup("many", [ValueError(str(n)) for n in range(500)])),
    "chain": _chain,
}

SAYINGS = [("returns", name) for name in RETURNS] + [("raises", name) for name in RAISES]
