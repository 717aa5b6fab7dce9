"""Reasons why a task is not running that lie in the registration of its function."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from tidemill.explain.facts import Facts, format_when, shorten
from tidemill.model import Task
from tidemill.policy.scheduling import UNKNOWN_NAME_GRACE, UNKNOWN_NAME_SNOOZE

SETTLE_TIMEOUT: Final = timedelta(seconds=1)
"""Maximum time between a claim and the write of a snooze. An executor under load needs a part of it."""


def explain_fault(_task: Task, facts: Facts) -> str | None:
    """Return the reason if executors cannot run the function because of a fault of its module or registration."""
    fault = facts.fault
    if fault is None:
        return None
    release = f" of release {shorten(fault.release)}" if fault.release else ""
    return (
        f"Executors{release} cannot run it since {format_when(fault.at, facts)}: {fault.problem}. "
        "They put it off without an attempt. Deploy a release without the fault."
    )


def explain_unknown_task(task: Task, facts: Facts) -> str | None:
    """Return the reason if no executor has registered the function, and none is about to."""
    if facts.fault is not None:
        return None
    fleet = facts.standing
    has_any_run = facts.is_any_known or fleet.last_acquired_at is not None or bool(fleet.at_work)
    if facts.is_known or not has_any_run:
        return None
    ends = max(task.created_at + UNKNOWN_NAME_GRACE, task.due_at)
    then = "the next claim makes it fail"
    if ends > facts.now:
        then = f"it waits, and the first claim after {format_when(ends, facts)} makes it fail"
    return (
        f"No executor has registered a function {shorten(task.name)}: {then}, and it becomes a dead letter. "
        "Deploy one that has it."
    )


def explain_put_off(task: Task, facts: Facts) -> str | None:
    """Return the reason if an executor without the function seems to have snoozed the task.

    A function that snoozes by itself may look the same.
    """
    has_failed_last = task.error is not None and task.error.at >= task.updated_at
    if (
        facts.fault is not None
        or task.due_at <= facts.now
        or not facts.is_known
        or task.settled_by is None
        or has_failed_last
    ):
        return None
    span = task.due_at - task.created_at
    age = min(span - UNKNOWN_NAME_SNOOZE, span * 0.8)  # its age at the claim, from the snooze that admission chooses
    settling = task.updated_at - task.created_at - age
    if not timedelta(0) <= settling <= SETTLE_TIMEOUT or not timedelta(0) <= age < UNKNOWN_NAME_GRACE:
        return None
    return (
        f"It was claimed and put off at {format_when(task.updated_at, facts)}, as executors do that have no function "
        f"{shorten(task.name)}, unless that snoozed by itself: see whether all of them run a release that has it."
    )
