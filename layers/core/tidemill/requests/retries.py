"""How a request says how its task is retried: by the name of a preset, or in numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, Field, ValidationInfo, field_validator

from tidemill.policies import (
    MAX_BACKOFF_SEC,
    MAX_FACTOR,
    MAX_RETRIES_LIMIT,
    Backoff,
    Jitter,
    RetryPolicy,
    Strategy,
)
from tidemill.requests.problems import REQUEST
from tidemill.retry import DEFAULT, PRESET_EXPECTED, PRESETS

Preset: TypeAlias = Literal["default", "standard", "conservative", "aggressive", "one_shot", "quadrupling", "patient"]


class RetryOptions(BaseModel):
    """How this task is retried, in seconds.

    Where it says anything of the wait, what is left out of that is as in the preset ``default``.
    """

    model_config = REQUEST

    max_retries: int | None = Field(default=None, ge=0, le=MAX_RETRIES_LIMIT, description="0 is one run.")
    strategy: Strategy = DEFAULT.backoff.strategy
    base_sec: float = Field(default=DEFAULT.backoff.base_sec, gt=0, le=MAX_BACKOFF_SEC)
    factor: float = Field(default=DEFAULT.backoff.factor, ge=1, le=MAX_FACTOR)
    max_sec: float = Field(default=DEFAULT.backoff.max_sec, gt=0, le=MAX_BACKOFF_SEC, validate_default=True)
    jitter: Jitter = DEFAULT.backoff.jitter
    jitter_factor: float = Field(default=DEFAULT.backoff.jitter_factor, gt=0, le=1)

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
