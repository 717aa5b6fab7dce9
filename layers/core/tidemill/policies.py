"""What people may choose about retries and queues, as values that cannot be wrong: each checks itself."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias, get_args

Strategy: TypeAlias = Literal["exponential", "linear", "fixed", "fibonacci"]
Jitter: TypeAlias = Literal["none", "full", "decorrelated", "proportional"]
Selection: TypeAlias = Literal["weighted", "retries_first", "oldest_first"]

STRATEGIES: Final[tuple[Strategy, ...]] = get_args(Strategy)
JITTERS: Final[tuple[Jitter, ...]] = get_args(Jitter)
SELECTIONS: Final[tuple[Selection, ...]] = get_args(Selection)

MAX_RETRIES_LIMIT: Final = 1000
MAX_BACKOFF_SEC: Final = 7 * 86400.0
MAX_FACTOR: Final = 1000.0
MAX_COUNT: Final = 1_000_000
"""What counts that people choose stay within: retries in flight, retries a minute, tasks that are ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """How the wait grows from failure to failure; see ``retry.backoff`` for the formulas.

    ``factor`` matters to the strategy ``exponential`` only, ``jitter_factor`` to the jitter ``proportional``.

    Raises:
        ValueError: A word is unknown, or a number not finite or out of its range; the message starts with the field.
    """

    strategy: Strategy = "exponential"
    base_sec: float = 5.0
    factor: float = 2.0
    max_sec: float = 1800.0
    jitter: Jitter = "full"
    jitter_factor: float = 0.2

    def __post_init__(self) -> None:
        _require_word(self.strategy, STRATEGIES, "strategy")
        _require(_is_number(self.base_sec) and self.base_sec > 0, "base_sec", "must be a number above 0")
        _require(
            _is_number(self.factor) and 1 <= self.factor <= MAX_FACTOR,
            "factor",
            f"must be a number from 1 to {MAX_FACTOR:g}",
        )
        _require(
            _is_number(self.max_sec) and self.base_sec <= self.max_sec <= MAX_BACKOFF_SEC,
            "max_sec",
            "must be a number from base_sec to 7 days",
        )
        _require_word(self.jitter, JITTERS, "jitter")
        _require(
            _is_number(self.jitter_factor) and 0 < self.jitter_factor <= 1,
            "jitter_factor",
            "must be a number above 0, at most 1",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often a failed task is tried again, and after which waits.

    ``max_retries=0`` is one run. The defaults are the preset ``default``; the others are in ``retry.PRESETS``.
    """

    max_retries: int = 10
    backoff: Backoff = field(default_factory=Backoff)

    def __post_init__(self) -> None:
        _require_whole(self.max_retries, 0, MAX_RETRIES_LIMIT, "max_retries")
        _require_kind(self.backoff, Backoff, "backoff")


@dataclass(frozen=True, slots=True, kw_only=True)
class Adaptive:
    """Longer waits while a queue is full: one more wait for every *scale* tasks that are ready, up to *max_sec*."""

    scale: int = 10
    max_sec: float = 60.0

    def __post_init__(self) -> None:
        _require_whole(self.scale, 1, MAX_COUNT, "scale")
        _require(
            _is_number(self.max_sec) and 0 < self.max_sec <= MAX_BACKOFF_SEC,
            "max_sec",
            "must be a number above 0, up to 7 days",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Longer waits once *per_minute* retries were scheduled in a minute of the clock: *factor* times as long."""

    per_minute: int = 100
    factor: float = 2.0

    def __post_init__(self) -> None:
        _require_whole(self.per_minute, 1, MAX_COUNT, "per_minute")
        _require(
            _is_number(self.factor) and 1 <= self.factor <= MAX_FACTOR,
            "factor",
            f"must be a number from 1 to {MAX_FACTOR:g}",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure:
    """What lengthens the waits of a queue under load; ``None`` is switched off."""

    adaptive: Adaptive | None = None
    budget: Budget | None = None

    def __post_init__(self) -> None:
        if self.adaptive is not None:
            _require_kind(self.adaptive, Adaptive, "adaptive")
        if self.budget is not None:
            _require_kind(self.budget, Budget, "budget")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
    """What a queue chooses for itself; ``None`` leaves it to the deployment.

    ``retry_share`` is the part of an executor's slots that retries hold under the selection ``weighted``.
    ``max_in_flight_retries`` bounds how many retries are leased at once, whatever the number of executors.
    """

    paused: bool = False
    selection: Selection | None = None
    retry_share: float | None = None
    max_in_flight_retries: int | None = None
    pressure: Pressure = field(default_factory=Pressure)

    def __post_init__(self) -> None:
        _require(isinstance(self.paused, bool), "paused", "must be true or false")
        if self.selection is not None:
            _require_word(self.selection, SELECTIONS, "selection")
        if self.retry_share is not None:
            is_share = _is_number(self.retry_share) and 0 <= self.retry_share <= 1
            _require(is_share, "retry_share", "must be a number from 0 to 1")
        if self.max_in_flight_retries is not None:
            _require_whole(self.max_in_flight_retries, 1, MAX_COUNT, "max_in_flight_retries")
        _require_kind(self.pressure, Pressure, "pressure")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _require(condition: bool, field_name: str, sentence: str) -> None:  # noqa: FBT001 - reads as an assertion
    if not condition:
        raise ValueError(f"{field_name} {sentence}")


def _require_kind(value: object, kind: type, field_name: str) -> None:
    _require(isinstance(value, kind), field_name, f"must be a value of the class {kind.__name__}")


def _require_word(value: object, words: tuple[str, ...], field_name: str) -> None:
    _require(isinstance(value, str) and value in words, field_name, f"must be one of {', '.join(words)}")


def _require_whole(value: object, low: int, high: int, field_name: str) -> None:
    is_whole = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
    _require(is_whole, field_name, f"must be a whole number from {low} to {high}")
