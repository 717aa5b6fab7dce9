"""``tidemill ops task``: list, show, explain, retry and cancel tasks. Payloads and results are never shown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final, get_args

import click
from click import argument, option

from tidemill.admin import responses
from tidemill.cli.commands import Group, add_options
from tidemill.cli.operations import ID_HELP, PAGING_OPTIONS, call_pages, print_answer, print_rows
from tidemill.cli.output import ABSENT, MAX_ID, clean, format_facts, format_points, format_table, shorten
from tidemill.model import Status
from tidemill.policy.failures import truncate_text
from tidemill.text import format_duration, format_error, format_time, format_time_and_distance, name_attempt

_MAX_TEXT: Final = 2000
"""Characters of a text: only texts edited by hand are longer."""

_MAX_DURATION_MS: Final = 10**15
"""Bound of a duration edited by hand, which `timedelta` could not hold."""

_UNCHANGED: Final = "it is neither pending nor processing, and nothing was changed"

task: Final = Group("task", "List, show, explain, retry and cancel tasks.")
_ID: Final = "65f0c1a2b3d4e5f607182930"
_id_argument: Final = argument("task_id", metavar="ID")


@task.command("ls", example="tidemill ops task ls --status processing --queue eu")
@option(
    "--status",
    type=click.Choice(get_args(Status)),
    metavar="STATUS",
    help=f"Only this status: {', '.join(get_args(Status))}. Failed tasks soon become dead letters.",
)
@option("--queue", metavar="QUEUE", help="Only this queue.")
@option("--name", metavar="NAME", help="Only this task function.")
@add_options(*PAGING_OPTIONS)
def _list(*, limit: int, cursor: str | None, **filters: str | None) -> None:
    """List tasks that are not dead letters, newest first."""
    given = {name: value for name, value in filters.items() if value is not None}
    page = call_pages({"op": "task.list", **given}, responses.TaskPage, limit=limit, cursor=cursor)
    nothing = "no task matches" if given else "there are no tasks"
    print_rows(page, [listed.id for listed in page.tasks], format_tasks, nothing=nothing)


@task.command("show", note=ID_HELP, example=f"tidemill ops task show {_ID}")
@_id_argument
def _show(*, task_id: str) -> None:
    """Show the state of a task and its attempts."""
    print_answer({"op": "task.show", "id": task_id}, responses.TaskResponse, _describe_task)


def _describe_task(response: responses.TaskResponse) -> str:
    facts = format_facts(list_task_facts(response.task, response))
    return f"{facts}\n\n{format_log(response.task.attempt_log)}"


@task.command("explain", note=ID_HELP, example=f"tidemill ops task explain {_ID}")
@_id_argument
def _explain(*, task_id: str) -> None:
    """Explain why a task is not running."""
    print_answer({"op": "task.explain", "id": task_id}, responses.ExplanationResponse, describe_explanation)


@task.command("retry", note=ID_HELP, example=f"tidemill ops task retry {_ID}")
@_id_argument
def _retry(*, task_id: str) -> None:
    """Run a delayed or retrying task now."""
    print_answer({"op": "task.retry", "id": task_id}, responses.RetryResponse, describe_retry)


@task.command("cancel", note=ID_HELP, example=f"tidemill ops task cancel {_ID} --force")
@_id_argument
@option("--force", is_flag=True, help="Cancel a running task at once; the result of its worker is refused.")
def _cancel(*, task_id: str, force: bool) -> None:
    """Cancel a task, or ask a running task to stop."""
    print_answer({"op": "task.cancel", "id": task_id, "force": force}, responses.CancelResponse, describe_cancel)


def format_tasks(page: responses.TaskPage) -> str:
    """Return a row for each task of a list."""
    return format_table(
        {"task": "id", "name": "text", "queue": "text", "status": "word", "attempts": "number", "when": "word"},
        [_format_row(task, page.now) for task in page.tasks],
    )


def _format_row(task: responses.AnyTask, now: datetime) -> tuple[str, ...]:
    task_id = shorten(clean(task.id), MAX_ID)
    if isinstance(task, responses.MalformedView):
        return task_id, ABSENT, ABSENT, "malformed", ABSENT, ABSENT
    return task_id, task.name, task.queue, task.status, str(task.attempts), _format_distance(_find_time(task), now)


def _find_time(task: responses.TaskView) -> datetime | None:
    """Return the time shown for the status of *task*: due, claimed or ended."""
    return {"pending": task.due_at, "processing": task.updated_at}.get(task.status, task.finished_at)


def _format_distance(at: datetime | None, now: datetime) -> str:
    """Return roughly the distance of *at* from *now*."""
    if at is None:
        return ABSENT
    distance = format_duration(abs(at - now)).split()[0]
    return f"in {distance}" if at > now else f"{distance} ago"


def list_task_facts(task: responses.AnyTask, response: responses.Response) -> dict[str, str]:
    """Return the facts about *task* of *response*, without its execution log."""
    place, hint = ("dead letters", ": see `tidemill dlq show`") if task.dead_letter else ("tasks", "")
    facts = {"task": task.id, "kept": f"among the {place} of {response.database}{hint}"}
    if isinstance(task, responses.MalformedView):
        lease = {} if task.lease is None else {"held by": _describe_lease(task.lease, None, response.now)}
        return facts | {"malformed": f"{task.malformed}: no executor can run it"} | lease
    return facts | _describe_state(task) | _describe_times(task, response.now) | _describe_end(task)


def _describe_state(task: responses.TaskView) -> dict[str, str]:
    assumed = ", unless RETRY_POLICY of the deployment says otherwise" if task.attempts_allowed_assumed else ""
    return {
        "name": task.name,
        "queue": task.queue,
        "status": task.status,
        "priority": str(task.priority),
        "attempts": f"{task.attempts} of {task.attempts_allowed}{assumed}",
    }


def _describe_times(task: responses.TaskView, now: datetime) -> dict[str, str]:
    times: dict[str, datetime | None] = {}
    if task.status == "pending":
        times = {"next retry" if task.lane == "retry" else "due": task.due_at, "expires": task.expires_at}
    held = {"held by": _describe_lease(task.lease, task.updated_at, now)} if task.status == "processing" else {}
    later = {"cancel asked": task.cancel_requested_at, "finished": task.finished_at}
    return _format_times(times, now) | held | _format_times(later, now)


def _format_times(times: dict[str, datetime | None], now: datetime) -> dict[str, str]:
    return {label: format_time_and_distance(at, now=now) for label, at in times.items() if at is not None}


def _describe_end(task: responses.TaskView) -> dict[str, str]:
    facts: dict[str, str] = {}
    if task.status == "failed":
        facts["reason"] = task.reason or "failed by hand"
        if task.archive_error is not None:
            facts["not archived"] = truncate_text(task.archive_error, _MAX_TEXT)
    if task.error is not None:
        message = truncate_text(format_error(task.error.code, task.error.message), _MAX_TEXT)
        facts["last error"] = f"{message} ({format_time(task.error.at)} UTC)"
    facts["result"] = "stored" if task.has_result else "none"
    origin = {"source": task.source, "correlation": task.correlation_id}
    return facts | {label: value for label, value in origin.items() if value}


def _describe_lease(lease: responses.LeaseView | None, since: datetime | None, now: datetime) -> str:
    if lease is None:
        return "unknown: the lease is malformed"
    started = "" if since is None else f" since {format_time_and_distance(since, now=now)}"
    return f"{lease.owner}{started} until {format_time_and_distance(lease.expires_at, now=now)}"


def format_log(log: Sequence[responses.AttemptView]) -> str:
    """Return an execution log, with a line for each attempt."""
    if not log:
        return "no attempt is logged"
    return format_table(
        {"attempt": "word", "status": "word", "started (UTC)": "word", "duration": "number", "note": "text"},
        _format_log_rows(log),
    )


def _format_log_rows(log: Sequence[responses.AttemptView]) -> Iterator[tuple[str, ...]]:
    for missing, line in count_missing_attempts(log):
        if missing:
            yield "...", ABSENT, ABSENT, ABSENT, f"{missing} not kept"
        started = format_time(line.started_at, timespec="milliseconds")
        duration = format_duration(min(line.duration_ms, _MAX_DURATION_MS) * timedelta(milliseconds=1))
        yield name_attempt(line.attempt), line.status, started, duration, truncate_text(line.note, _MAX_TEXT)


def count_missing_attempts(log: Sequence[responses.AttemptView]) -> Iterator[tuple[int, responses.AttemptView]]:
    """Yield the lines of an execution log, each with the number of attempts right before it that have no line."""
    expected = 1
    for line in log:
        yield max(line.attempt - expected, 0), line
        expected = line.attempt + 1


def describe_explanation(response: responses.ExplanationResponse) -> str:
    """Describe the state of a task, with the reasons why it is not running."""
    explanation = response.explanation
    suffix = ", a dead letter" if explanation.is_dead_letter else ""
    reasons = format_points(reason.message for reason in explanation.reasons)
    return f"task {clean(explanation.task_id)} is {explanation.status}{suffix}:\n\n{reasons}"


def describe_cancel(response: responses.CancelResponse) -> str:
    """Describe the effect of a cancel, from the states of the task before and after it."""
    task, was = response.task, response.was
    name = f"task {clean(task.id)}"
    if isinstance(task, responses.MalformedView):
        effect = "it was asked to stop if it is leased, otherwise cancelled" if response.changed else _UNCHANGED
        return f"{name} is malformed: {effect}"
    if task.status == "processing" and task.lease is not None and task.lease.expires_at > response.now:
        return f"{name} is running and was asked to stop: it ends as cancelled, or as done if it succeeds"
    if task.status == "processing":
        return f"{name} was asked to stop, but its lease has expired: the next reclaim cancels it, --force does at once"
    if task.status == "cancelled" and was == "processing":
        return f"{name} is cancelled while running: the result of its worker will be refused"
    if task.status == "cancelled" and was == "pending":
        return f"{name} is cancelled: it was not running"
    return f"{name} is {task.status}: it had already ended, and nothing was changed"


def describe_retry(response: responses.RetryResponse) -> str:
    """Describe the effect of a retry, and a reason known to delay the task anyway."""
    task = response.task
    name = f"task {clean(task.id)} is due now"
    if isinstance(task, responses.MalformedView):
        return f"{name}, but malformed: see `tidemill ops task explain`"
    if response.queue_paused:
        return f"{name}, but queue {clean(task.queue)} is paused: it waits until the queue is resumed"
    return f"{name}: if it does not start soon, `tidemill ops task explain` shows the reason"
