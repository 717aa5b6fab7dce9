"""How long to fuzz: as many examples as a test suite has time for, always the same; or other ones for FUZZ_SEC."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy

_T = TypeVar("_T")

HEALTHY = (HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large)


def seconds() -> float:
    """For how long FUZZ_SEC says to go on; 0 is a bounded run."""
    text = os.environ.get("FUZZ_SEC") or "0"
    with suppress(ValueError):
        if 0 <= float(text) < math.inf:
            return float(text)
    raise pytest.UsageError(f"FUZZ_SEC must be a number of seconds, not {text[:40]!r}")


def fuzz(body: Callable[[_T], None], inputs: SearchStrategy[_T], *, examples: int, share: float) -> None:
    """Run *body* on *examples* of *inputs*; in a long run, on others again and again for its *share* of the time."""
    give_up_at = time.monotonic() + seconds() * share
    chosen = settings(
        max_examples=examples if not seconds() else max(examples, 200),
        derandomize=not seconds(),
        database=None,
        deadline=None,
        suppress_health_check=HEALTHY,
    )
    run = chosen(given(inputs)(body))
    run()
    while time.monotonic() < give_up_at:
        run()
