"""One function for each outcome."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from tidemill import Fail, Retry, Snooze, task


@task("returns", http=True)
def returns(payload: dict[str, Any]) -> dict[str, Any]:
    """Succeed."""
    return {"echo": payload.get("n")}


@task("retries", http=True)
def retries(_: dict[str, Any]) -> None:
    """Fail, and be tried again in an hour."""
    raise Retry("busy", after=timedelta(hours=1), code="busy")


@task("breaks", http=True)
def breaks(_: dict[str, Any]) -> None:
    """Raise what nobody expected."""
    raise ValueError("order 7 is broken")


@task("fails", http=True)
def fails(_: dict[str, Any]) -> None:
    """Fail for good."""
    raise Fail("no such order 7", code="gone")


@task("snoozes")
def snoozes(_: dict[str, Any]) -> None:
    """Come again later, uncounted."""
    raise Snooze(timedelta(hours=2))
