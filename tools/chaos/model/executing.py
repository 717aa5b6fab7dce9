"""What an executor makes of all that is due, by DESIGN 8: pure; and the functions that it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final
from unittest.mock import ANY

from tidemill.errors import Fail, Snooze
from tidemill.model import Cancelled, Failed, Failure, Outcome, Reason, Retried, Snoozed, Succeeded
from tidemill.policy.scheduling import Lanes
from tidemill.registry import Registry
from tidemill.task_functions import TaskContext
from tools.chaos.model.ending import Ending, ended
from tools.chaos.model.living import RETRIES, WAIT, quarantined
from tools.chaos.model.world import Document, World, changed, due, is_count, queues_of, wrong

NOTE: Final = "half of it is done"
NAP: Final = timedelta(minutes=1)
NAMES: Final = frozenset({"noop", "told"})

_DEPLOYING: Final = timedelta(minutes=10)
_DEPLOYED_SOON: Final = timedelta(seconds=15)


def registry() -> Registry:
    """Return the functions: one does nothing, the other what its payload says."""
    made = Registry()

    @made.task("noop")
    def noop(_payload: dict[str, Any]) -> None:
        return None

    @made.task("told")
    def told(payload: dict[str, Any], ctx: TaskContext) -> Any:
        match payload.get("does"):
            case "note":
                ctx.note("to be replaced")
                ctx.note(NOTE)
            case "fail":
                raise RuntimeError
            case "refuse":
                raise Fail
            case "snooze":
                raise Snooze(NAP)
        return payload.get("n")

    return made


def executed(world: World, *, lanes: Callable[[str], Lanes], now: datetime) -> World:
    """Return the world after an executor has found nothing more that is due in the *lanes* it serves of each queue."""
    for queue in queues_of(world):
        for document in due(world, queue=queue, lanes=lanes(queue), now=now):
            world = world.with_task(document["_id"], run(document, now=now))
    return world


def run(document: Document, *, now: datetime) -> Document:
    """Return a due *document* after it was claimed and, if it was admitted, its function called."""
    if not is_count(document["attempts"]):
        return quarantined(document, now=now)
    held = changed(document, status="processing", lease={}, updated_at=now, attempts=document["attempts"] + 1)
    refusal = admitted(held, now=now)
    if refusal is not None:
        return ended(held, Ending(outcome=refusal, read=None if wrong(held) else held), by=ANY, now=now)
    outcome = told_by(held, now=now)
    status = "failed" if isinstance(outcome, Retried | Failed) else "succeeded"
    note = NOTE if held["name"] == "told" and held["payload"].get("does") == "note" else None
    return ended(held, Ending(outcome=outcome, read=held, status=status, note=note), by=ANY, now=now)


def admitted(held: Document, *, now: datetime) -> Outcome | None:
    """Return what becomes of a claimed document that may not start, or ``None``."""
    if wrong(held) is not None:
        return _failed("malformed")
    if held.get("cancel_requested_at") is not None:
        return Cancelled()
    until = held.get("expires_at")
    if isinstance(until, datetime) and until <= now and not _was_started(held, until=until):
        return _failed("expired")
    if held["attempts"] - 1 > retries_of(held):
        return _failed("exhausted")
    if held["name"] not in NAMES:
        return _unknown(held, now=now)
    return None


def _was_started(held: Document, *, until: datetime) -> bool:
    """Tell whether it was claimed before, and in time; where nobody knows when, it was, unless it has come back."""
    if held["attempts"] > 1 or not held.get("crashes"):
        return bool(held["attempts"] > 1)
    log = held.get("attempt_log")
    lines = [one for one in log if isinstance(one, Mapping)] if isinstance(log, list) else []
    return any(one["started_at"] < until for one in lines) if lines else not held.get("redrives")


def told_by(held: Document, *, now: datetime) -> Outcome:
    """Return the outcome of the function of *held*."""
    does = held["payload"].get("does") if held["name"] == "told" else None
    match does:
        case "fail" if held["attempts"] > retries_of(held):
            return Failed(failure=Failure(message="", code="RuntimeError"), reason="exhausted")
        case "fail":
            return Retried(failure=Failure(message="", code="RuntimeError"), next_retry_at=now + WAIT)
        case "refuse":
            return Failed(failure=Failure(message="", code="fail"), reason="not_retryable")
        case "snooze":
            return Snoozed(until=now + NAP)
    return Succeeded(result=held["payload"].get("n") if held["name"] == "told" else None)


def retries_of(document: Document) -> int:
    """Return how often a task is tried again: its own word, or the deployment's."""
    own = document.get("max_retries")
    return RETRIES if own is None else int(own)


def _unknown(held: Document, *, now: datetime) -> Outcome:
    age = now - (held.get("created_at") or held["due_at"])
    if age >= _DEPLOYING:
        return _failed("unknown_task")
    return Snoozed(until=now + max(_DEPLOYED_SOON, age / 4))


def _failed(reason: Reason) -> Failed:
    return Failed(failure=Failure(message="", code=reason, by_function=False), reason=reason)
