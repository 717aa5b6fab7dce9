"""Facts about a task, and what is said of them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from tests.fixtures import T0
from tests.unit.make import a_task
from tidemill.control.fleet import FleetStatus, Permit
from tidemill.explain.facts import Facts
from tidemill.explain.reasons import Reason, find_reasons
from tidemill.model import QueueOptions, Selection

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)

A = Permit(owner="A", n=1, until=T0 + MINUTE)
W = Permit(owner="W", n=1, until=T0 + MINUTE)
B = Permit(owner="B", n=2, until=T0 + 2 * MINUTE)
AT_WORK = FleetStatus(slot_permits=(A,), slot_count=5, last_acquired_at=T0 - MINUTE)
CAPPED = QueueOptions(max_in_flight_retries=3)
FAILURE = {"message": "secret", "code": "TimeoutError", "at": T0}


def facts(fields: dict[str, Any] | None = None, /, *, standing: FleetStatus = AT_WORK, **around: Any) -> Facts:
    """Of a task that is due, but for its *fields*, while an executor is at work."""
    return Facts(task=a_task(**{"_id": "t-1"} | (fields or {})), now=T0, standing=standing, **around)


def codes(known: Facts) -> list[str]:
    """What is said, by its words for programs."""
    return [one.code for one in find_reasons(known)]


def only(known: Facts) -> Reason:
    """The one thing that is said."""
    [reason] = find_reasons(known)
    return reason


def chosen(selection: Selection, **fields: Any) -> QueueOptions:
    """What a queue chooses."""
    return QueueOptions(selection=selection, **fields)
