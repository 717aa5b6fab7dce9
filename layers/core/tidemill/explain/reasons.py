"""Reasons why a task is not running, or descriptions of its state, from facts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, TypeAlias

from tidemill.control.fleet import Permit, Subscription
from tidemill.documents import STATUSES
from tidemill.explain.facts import (
    Facts,
    count_free_retries,
    explain_no_share,
    explain_order,
    format_command,
    format_when,
    format_word,
    read_facts,
    shorten,
)
from tidemill.explain.registrations import explain_fault, explain_put_off, explain_unknown_task
from tidemill.model import LANES, Malformed, Task, TaskId
from tidemill.policy.scheduling import has_started
from tidemill.store.connection import Tasks
from tidemill.store.recovery import SETTLED_BY_SWEEP
from tidemill.store.tasks import format_id
from tidemill.text import name_attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Reason why a task is not running, or description of its state.

    Attributes:
        code: A word for programs, such as ``not_due`` or ``paused``.
        message: A sentence for the operator, with times in UTC and the remedy, if there is any.
    """

    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Reasons why a task is not running.

    Attributes:
        status: Status of the task, or ``malformed``.
        reasons: All reasons that apply, the decisive one first; never empty.
    """

    task_id: TaskId
    status: str
    is_dead_letter: bool
    reasons: tuple[Reason, ...]


MAX_NAMED_OWNERS: Final = 5
"""Maximum number of permit owners to name."""

RECLAIM: Final = "reclaim, which runs every minute,"
ARCHIVED: Final = "becomes a dead letter with the next archive, which runs every 5 minutes"

TICK_TIMEOUT: Final = timedelta(minutes=3)
"""Time without a tick after which the schedule needs attention. Ticks come every minute by default."""

_TICK_HINT: Final = "see whether the schedule is enabled and what the function execute logs, or start `tidemill work`"

NEXT_REASON: Final = Reason(
    code="next",
    message=(
        "It is due and nothing stands in its way: the next claim with a slot free for its lane takes it. A function "
        "with isolate=True also waits for a core: ISOLATED_CONCURRENCY sets how many run at once."
    ),
)
_Check: TypeAlias = Callable[[Task, Facts], str | None]


def explain(tasks: Tasks, dead: Tasks, task_id: TaskId, *, now: datetime) -> Explanation | None:
    """Return the reasons why the task is not running; ``None`` if there is no such task, living or dead letter.

    Raises:
        UnavailableError: MongoDB did not answer.
    """
    facts = read_facts(tasks, dead, task_id, now=now)
    if facts is None:
        return None
    return Explanation(
        task_id=task_id,
        status="malformed" if isinstance(facts.task, Malformed) else facts.task.status,
        is_dead_letter=facts.is_dead_letter,
        reasons=find_reasons(facts),
    )


def find_reasons(facts: Facts) -> tuple[Reason, ...]:
    """Return all reasons why the task of *facts* is not running, or its state; the decisive one first."""
    task = facts.task
    if isinstance(task, Malformed):
        return (Reason(code="malformed", message=explain_malformed(task, facts)),)
    if facts.is_dead_letter or task.status not in {"pending", "processing"}:
        return (Reason(code="ended", message=_explain_end(task, facts)),)
    if task.status == "processing":
        return _explain_processing(task, facts)
    return find_obstacles(task, facts) or (NEXT_REASON,)


def find_obstacles(task: Task, facts: Facts) -> tuple[Reason, ...]:
    """Return all reasons that prevent the start of a pending *task*, the decisive one first."""
    checks = _CHECKS if task.due_at > facts.now else _CHECKS | _DUE_CHECKS
    found = {code: check(task, facts) for code, check in checks.items()}
    return tuple(Reason(code=code, message=message) for code, message in found.items() if message is not None)


def explain_malformed(task: Malformed, facts: Facts) -> str:
    """Return the problem of a malformed task, and its further course."""
    return f"No executor can run it: {shorten(task.problem)}. {_explain_malformed_outcome(task, facts)}."


def _explain_malformed_outcome(task: Malformed, facts: Facts) -> str:
    if facts.is_dead_letter:
        return f"It is a dead letter: {format_command('dlq show', _format_id_argument(task.id))} has more of it"
    match task.status:
        case "pending":
            return f"It is pending: {RECLAIM} completes it where its meaning is plain, and otherwise makes it fail"
        case "processing":
            return _explain_malformed_lease(task, facts)
        case "failed":
            return f"It has failed, and {ARCHIVED}"
        case str(status) if status in STATUSES:
            return f"It has ended: {status}"
        case _:
            return f"It stays as it is: its status has to be one of {', '.join(STATUSES)}"


def _explain_malformed_lease(task: Malformed, facts: Facts) -> str:
    lease = task.lease
    if lease is None:
        return f"Its lease is missing or malformed: {RECLAIM} adopts it or makes it fail"
    owner, until = shorten(lease.owner), format_when(lease.expires_at, facts)
    if lease.expires_at > facts.now:
        return f"{owner} holds it until {until}; then it fails"
    return f"{owner} held it until {until}: {RECLAIM} makes it fail"


def _explain_end(task: Task, facts: Facts) -> str:
    at = "" if task.finished_at is None else f" at {format_when(task.finished_at, facts)}"
    why = f"{shorten(task.reason or 'for no reason that is known')}{_format_last_error(task)}"
    if facts.is_dead_letter:
        redrive = format_command("dlq redrive", _format_id_argument(task.id))
        return f"It failed{at}, {why}, and is a dead letter: {redrive} runs it again."
    if task.status == "failed" and task.archive_error is not None:
        return f"It failed{at}, {why}, and cannot be moved to the dead letters: {shorten(task.archive_error)}."
    if task.status == "failed":
        return f"It failed{at}, {why}, and {ARCHIVED}."
    return f"It has ended{at}: {task.status}."


def _explain_processing(task: Task, facts: Facts) -> tuple[Reason, ...]:
    lease = task.lease
    is_leased = lease is not None and lease.expires_at > facts.now
    is_adopted = is_leased and lease is not None and lease.owner == SETTLED_BY_SWEEP
    code = "adopted" if is_adopted else "running" if is_leased else "lease_over"
    reason = Reason(code=code, message=_explain_lease(task, facts))
    return (reason,) if task.cancel_requested_at is None else (reason, _explain_stop_request(task, facts))


def _explain_lease(task: Task, facts: Facts) -> str:
    since, lease = format_when(task.updated_at, facts), task.lease
    if lease is None:
        return f"It was claimed at {since} and its lease is malformed: {RECLAIM} takes it back."
    owner, until = shorten(lease.owner), format_when(lease.expires_at, facts)
    if lease.expires_at > facts.now and lease.owner == SETTLED_BY_SWEEP:
        return (
            f"Another program was processing it when the sweep adopted it at {since}: it is left to that program until "
            f"{until}, then {RECLAIM} takes it back."
        )
    if lease.expires_at > facts.now:
        return f"It runs ({name_attempt(task.attempts)}): {owner} claimed it at {since}, under a lease until {until}."
    return f"{owner} claimed it at {since} and its lease ended at {until}: {RECLAIM} takes it back."


def _explain_stop_request(task: Task, facts: Facts) -> Reason:
    at = format_when(task.cancel_requested_at or facts.now, facts)
    force = format_command("ops task cancel --force", _format_id_argument(task.id))
    message = f"It was asked to stop at {at}: it ends as cancelled unless it succeeds; {force} ends it now."
    return Reason(code="cancel_asked", message=message)


def _explain_expired(task: Task, facts: Facts) -> str | None:
    if task.expires_at is None or task.expires_at > facts.now or has_started(task, attempts=task.attempts):
        return None
    return f"It had to start before {format_when(task.expires_at, facts)}: the next claim or reclaim makes it fail."


def _explain_cancel_request(task: Task, facts: Facts) -> str | None:
    if task.cancel_requested_at is None:
        return None
    return f"It was cancelled at {format_when(task.cancel_requested_at, facts)}: the next claim ends it."


def _explain_not_due(task: Task, facts: Facts) -> str | None:
    if task.due_at <= facts.now:
        return None
    failed = "It"
    if task.lane == "retry":
        last, following = name_attempt(task.attempts), name_attempt(task.attempts + 1)
        failed = f"Its last attempt, {last}, failed{_format_last_error(task)}; {following}"
    note = "" if task.adoption_note is None else f" Note: {shorten(task.adoption_note)}."
    hurry = format_command("ops task retry", _format_id_argument(task.id))
    message = f"{failed} is not due until {format_when(task.due_at, facts)}; {hurry} makes it due at once.{note}"
    expires_at = task.expires_at
    if expires_at is None or not facts.now < expires_at <= task.due_at or has_started(task, attempts=task.attempts):
        return message
    return f"{message} But it has to start before {format_when(expires_at, facts)}, or it fails."


def _explain_paused(task: Task, facts: Facts) -> str | None:
    if not facts.options.paused:
        return None
    resume = format_command("ops queue resume", format_word(task.queue, "QUEUE"))
    return f"Queue {shorten(task.queue)} is paused: none of its tasks starts until {resume}."


def _explain_paused_retries(task: Task, facts: Facts) -> str | None:
    if task.lane != "retry" or facts.options.max_in_flight_retries != 0:
        return None
    resume = format_command("ops queue set", format_word(task.queue, "QUEUE"), "--max-in-flight-retries N")
    return (
        f"Retries of queue {shorten(task.queue)} are paused, because it allows 0 of them in flight: none starts until "
        f"{resume}, with N above 0 or none."
    )


def _explain_retry_cap(task: Task, facts: Facts) -> str | None:
    limit, permits = facts.options.max_in_flight_retries, facts.standing.retries
    if task.lane != "retry" or not limit or count_free_retries(facts.options, facts.standing) != 0:
        return None
    change = format_command("ops queue set", format_word(task.queue, "QUEUE"), "--max-in-flight-retries N")
    return (
        f"Queue {shorten(task.queue)} has as many retries in flight as it allows, {limit}: "
        f"{_format_permits(permits, facts)}. It has to wait for one of them to end; {change} sets how many."
    )


def explain_no_tick(_task: Task, facts: Facts) -> str | None:
    """Return the reason if no executor is running and no tick starts one."""
    last_acquired_at = facts.standing.last_acquired_at
    if facts.standing.at_work or _has_ticked(facts):
        return None
    since = (
        "none has ever been started"
        if last_acquired_at is None
        else f"none has started since {format_when(last_acquired_at, facts)}"
    )
    return (
        f"No executor is running, and {since}. A tick starts one every minute unless ExecuteSchedule says otherwise: "
        f"{_TICK_HINT}."
    )


def explain_not_served(task: Task, facts: Facts) -> str | None:
    """Return the reason if the running executors serve other queues or lanes.

    Before the task is due this matters only if no tick starts another executor.
    """
    fleet = facts.standing
    is_early = task.due_at > facts.now and _has_ticked(facts)
    if is_early or not fleet.at_work or fleet.serving(task.queue, task.lane):
        return None
    then = (
        "A tick starts one for all, unless its event chooses too" if _has_ticked(facts) else f"For others: {_TICK_HINT}"
    )
    return (
        f"None of the running executors serves queue {shorten(task.queue)}, lane {task.lane}: "
        f"{_format_services(fleet.at_work)}. {then}."
    )


def explain_executor_slots(task: Task, facts: Facts) -> str | None:
    """Return the reason if all executor slots are taken."""
    fleet = facts.standing
    limit, serving = fleet.slot_count, fleet.serving(task.queue, task.lane)
    has_worker = any(executor in fleet.workers for executor in serving)
    if has_worker or limit is None or sum(permit.n for permit in fleet.slot_permits) < limit:
        return None
    until = "one of these executors claims it" if serving else "one of these executors ends"
    return (
        f"All executor slots are taken ({limit}): {_format_permits(fleet.slot_permits, facts)}. "
        f"The task waits until {until}; MAX_EXECUTORS sets the number of slots."
    )


def explain_no_executor(task: Task, facts: Facts) -> str | None:
    """Return the reason if no executor is running just now."""
    fleet = facts.standing
    if fleet.last_acquired_at is None or fleet.at_work or not _has_ticked(facts):
        return None
    last = f"No executor is running now: the last one started at {format_when(fleet.last_acquired_at, facts)}"
    if fleet.last_request.covers(task.queue, task.lane):
        return f"{last}, and the next tick starts one."
    served = _format_service(fleet.last_request)
    return f"{last} and served only {served}. A tick starts one for all, unless its event chooses too."


def _has_ticked(facts: Facts) -> bool:
    last_acquired_at = facts.standing.last_acquired_at
    return last_acquired_at is not None and facts.now - last_acquired_at <= TICK_TIMEOUT


def _format_services(at_work: Sequence[Permit]) -> str:
    services = [
        f"{shorten(permit.owner)} serves {_format_service(permit.subscription)}"
        for permit in at_work[:MAX_NAMED_OWNERS]
    ]
    rest = [f"{len(at_work) - MAX_NAMED_OWNERS} more serve others"] if len(at_work) > MAX_NAMED_OWNERS else []
    return ", ".join(services + rest)


def _format_service(service: Subscription) -> str:
    queues = [shorten(queue) for queue in service.queues[:MAX_NAMED_OWNERS]]
    more = len(service.queues) - len(queues)
    listed = ", ".join(queues) + (f" and {more} more" if more else "")
    lanes = "" if service.lanes == LANES else f" in lane {' and '.join(service.lanes) or 'none'}"
    return f"{'queue' if len(service.queues) == 1 else 'queues'} {listed}{lanes}" if queues else f"all queues{lanes}"


def _format_permits(permits: Sequence[Permit], facts: Facts) -> str:
    owners = [
        f"{permit.n} by {shorten(permit.owner)} until {format_when(permit.until, facts)}"
        for permit in permits[:MAX_NAMED_OWNERS]
    ]
    rest = [f"{len(permits) - MAX_NAMED_OWNERS} more"] if len(permits) > MAX_NAMED_OWNERS else []
    return ", ".join(owners + rest)


def _format_id_argument(task_id: TaskId) -> str:
    return format_word(format_id(task_id), "ID")


def _format_last_error(task: Task) -> str:
    """Return the code of the last failure in brackets, or nothing. Its message is left out: it may contain anything."""
    return "" if task.error is None else f" ({shorten(task.error.code)})"


_CHECKS: Final[dict[str, _Check]] = {
    "expired": _explain_expired,
    "cancel_asked": _explain_cancel_request,
    "registration_fault": explain_fault,
    "not_due": _explain_not_due,
    "put_off": explain_put_off,
    "paused": _explain_paused,
    "retries_paused": _explain_paused_retries,
    "unknown_task": explain_unknown_task,
    "retry_cap": _explain_retry_cap,
    "no_tick": explain_no_tick,
    "not_served": explain_not_served,
}
_DUE_CHECKS: Final[dict[str, _Check]] = {
    "executor_slots": explain_executor_slots,
    "retry_share": explain_no_share,
    "behind": explain_order,
    "no_executor": explain_no_executor,
}
