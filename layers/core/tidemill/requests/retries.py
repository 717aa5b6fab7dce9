"""How a request says how its task is retried: by the name of a preset, or in numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from tidemill.policies import (
    MAX_BACKOFF_SEC,
    MAX_FACTOR,
    MAX_RETRIES_LIMIT,
    Backoff,
    Jitter,
    RetryPolicy,
    Strategy,
)
from tidemill.requests.problems import Request
from tidemill.retry import DEFAULT, PRESET_EXPECTED, PRESETS

Preset: TypeAlias = Literal["default", "standard", "conservative", "aggressive", "one_shot", "quadrupling", "patient"]


class RetryOptions(Request):
    """How this task is retried, in seconds.

    Where it says anything of the wait, what is left out of that is as in the preset ``default``.
    """

    max_retries: int | None = Field(default=None, ge=0, le=MAX_RETRIES_LIMIT, description="0 is one run.")
    strategy: Strategy = Field(
        default=DEFAULT.backoff.strategy,
        description=(
            "How the wait after the nth failure grows: exponential base_sec * factor ** (n - 1), linear base_sec * n, "
            "fixed base_sec, fibonacci base_sec * (1, 1, 2, 3, 5, ...)."
        ),
    )
    base_sec: float = Field(
        default=DEFAULT.backoff.base_sec, gt=0, le=MAX_BACKOFF_SEC, description="Over HTTP at least 0.1."
    )
    factor: float = Field(
        default=DEFAULT.backoff.factor, ge=1, le=MAX_FACTOR, description="Of the strategy exponential."
    )
    max_sec: float = Field(
        default=DEFAULT.backoff.max_sec,
        gt=0,
        le=MAX_BACKOFF_SEC,
        validate_default=True,
        description="No wait is longer; not below base_sec.",
    )
    jitter: Jitter = Field(
        default=DEFAULT.backoff.jitter,
        description=(
            "What chance makes of the wait: none leaves it, full takes one from 0 up to it, decorrelated one from "
            "base_sec up to it, proportional moves it by up to jitter_factor of itself."
        ),
    )
    jitter_factor: float = Field(
        default=DEFAULT.backoff.jitter_factor, gt=0, le=1, description="Of the jitter proportional."
    )

    @field_validator("max_sec")
    @classmethod
    def _cap_holds(cls, max_sec: float, earlier: ValidationInfo) -> float:
        if max_sec < earlier.data.get("base_sec", 0):
            usual = DEFAULT.backoff
            raise ValueError(f"must not be below base_sec; left out, they are {usual.max_sec:g} and {usual.base_sec:g}")
        return max_sec

    def backoff(self) -> Backoff | None:
        """Return the back-off of these options, or ``None`` where they say nothing of it."""
        if self.model_fields_set <= {"max_retries"}:
            return None
        return Backoff(**self.model_dump(exclude={"max_retries"}))


def retry_options(policy: RetryPolicy) -> RetryOptions:
    """Return the options that say what *policy* says."""
    return RetryOptions(max_retries=policy.max_retries, **asdict(policy.backoff))


def _retry(value: Any) -> Any:  # noqa: ANN401 - a validator sees anything
    policy = PRESETS.get(value) if isinstance(value, str) else value
    if isinstance(policy, RetryPolicy):
        return retry_options(policy)
    if isinstance(value, Mapping | RetryOptions):
        return value
    raise ValueError(f"{PRESET_EXPECTED}, or an object with its numbers")


Retry = Annotated[RetryOptions, BeforeValidator(_retry, json_schema_input_type=Preset | RetryOptions)]
