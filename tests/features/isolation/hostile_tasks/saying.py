"""Functions that return or raise what their payload names."""

from __future__ import annotations

from typing import Any

from tests.features.isolation.sayings import RAISES, RETURNS
from tidemill import task


@task("hostile.returns")
def returns(payload: dict[str, Any]) -> Any:
    return RETURNS[payload["what"]]()


@task("hostile.raises", retry_on=(MemoryError, "StopIteration"), fail_on=LookupError)
def raises(payload: dict[str, Any]) -> Any:
    return RAISES[payload["what"]]()
