"""Requests for a task that says nothing but its name, and what they are told."""

from __future__ import annotations

from typing import Any

import pytest

from tidemill import InvalidRequestError, NewTask
from tidemill.requests.tasks import new_task


def wanted(**fields: Any) -> NewTask:
    """The request with these fields."""
    return new_task(**({"name": "noop", "payload": {}} | fields))


def refused(**fields: Any) -> dict[str, str]:
    """What a request with these fields is told, by field."""
    with pytest.raises(InvalidRequestError) as caught:
        wanted(**fields)
    return {one.field: one.message for one in caught.value.problems}
