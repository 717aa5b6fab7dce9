"""The use cases whose commands are made to fail."""

from __future__ import annotations

from typing import Final

from tools.chaos.failures.cases import enqueueing, http, operating, ticks
from tools.chaos.failures.cases.case import Case

CASES: Final[tuple[Case, ...]] = (*enqueueing.CASES, *http.CASES, *ticks.CASES, *operating.CASES)
