"""How long to fuzz: as many examples as a test suite has time for, always the same; or other ones for FUZZ_SEC."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import SearchStrategy

_T = TypeVar("_T")

SECONDS = float(os.environ.get("FUZZ_SEC") or 0)
HEALTHY = (HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large)


def fuzz(body: Callable[[_T], None], inputs: SearchStrategy[_T], *, examples: int, share: float) -> None:
    """Run *body* on *examples* of *inputs*; in a long run, on others again and again for its *share* of the time."""
    give_up_at = time.monotonic() + SECONDS * share
    chosen = settings(
        max_examples=examples if not SECONDS else max(examples, 200),
        derandomize=not SECONDS,
        database=None,
        deadline=None,
        suppress_health_check=HEALTHY,
    )
    run = chosen(given(inputs)(body))
    run()
    while time.monotonic() < give_up_at:
        run()
