"""Output of ``tidemill ops task``: rows of tasks, facts about one task, its execution log, results of actions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

from tidemill.cli.operations import Document
from tidemill.cli.output import ABSENT, clean, format_table
from tidemill.policy.failures import truncate_text
from tidemill.text import format_duration, format_time, format_time_and_distance

_WHEN = {
    "pending": "due_at", "processing": "updated_at", "done": "finished_at", "failed": "finished_at",
    "cancelled": "finished_at",
}  # fmt: skip
"""Field with the time shown for each status: due, claimed or ended."""


MAX_ID: Final = 48
"""Characters of an id in a row: the length of a UUID in JSON."""


def format_tasks(answer: Document) -> str:
    """Return a row for each task of a list."""
    now = datetime.fromisoformat(answer["now"])
    return format_table(
        {"task": "word", "name": "text", "queue": "text", "status": "word", "attempt": "number", "when": "word"},
        [_format_row(task, now) for task in answer["tasks"]],
    )


def has_cut_id(answer: Document) -> bool:
    """Return whether an id is too long for its row."""
    return any(len(clean(task["id"])) > MAX_ID for task in answer["tasks"])


def _format_row(task: Document, now: datetime) -> tuple[str, ...]:
    task_id = truncate_text(clean(task["id"]), MAX_ID)
    if "malformed" in task:
        return task_id, ABSENT, ABSENT, "malformed", ABSENT, ABSENT
    status = task["status"]
    return (
        task_id,
        task["name"],
        task["queue"],
        status,
        str(task["attempts"]),
        _format_distance(task[_WHEN[status]], now),
    )


def _format_distance(stamp: str | None, now: datetime) -> str:
    """Return roughly the distance of *stamp* from *now*."""
    if stamp is None:
        return ABSENT
    at = datetime.fromisoformat(stamp)
    distance = format_duration(abs(at - now)).split()[0]
    return f"in {distance}" if at > now else f"{distance} ago"


_MAX_TEXT = 2000
"""Characters of a text: only texts edited by hand are longer."""

_UNCHANGED = "it is neither pending nor processing, and nothing was changed"
_MAX_DURATION_MS = 10**15
"""Bound of a duration edited by hand, which `timedelta` could not hold."""


def describe_task(answer: Document) -> dict[str, str]:
    """Return the facts about a task, without its execution log."""
    task, now = answer["task"], datetime.fromisoformat(answer["now"])
    place, hint = ("dead letters", ": see `tidemill dlq show`") if task["dead_letter"] else ("tasks", "")
    lines = _describe_malformed(task, now) if "malformed" in task else _describe_task(task, now)
    return {"task": task["id"], "kept": f"among the {place} of {answer['database']}{hint}"} | lines


def format_log(lines: Sequence[Document]) -> str:
    """Return an execution log, with a line for each attempt."""
    return format_table(
        {"attempt": "number", "status": "word", "started (UTC)": "word", "duration": "number", "note": "text"},
        _format_log_rows(lines),
    )


def count_missing_attempts(lines: Sequence[Document]) -> Iterator[tuple[int, Document]]:
    """Yield the lines of an execution log, each with the number of attempts right before it that have no line."""
    expected = 1
    for line in lines:
        yield max(line["attempt"] - expected, 0), line
        expected = line["attempt"] + 1


def describe_cancel(answer: Document) -> str:
    """Describe the effect of a cancel, from the states of the task before and after it."""
    task, was = answer["task"], answer["was"]
    name, status = f"task {clean(task['id'])}", task.get("status", "malformed")
    if status == "malformed":
        effect = "it was asked to stop if it is leased, otherwise cancelled" if answer["changed"] else _UNCHANGED
        return f"{name} is malformed: {effect}"
    if status == "processing" and _is_leased(task, datetime.fromisoformat(answer["now"])):
        return f"{name} is running and was asked to stop: it ends as cancelled, or as done if it succeeds"
    if status == "processing":
        return f"{name} was asked to stop, but its lease has expired: the next reclaim cancels it, --force does at once"
    if status == "cancelled" and was == "processing":
        return f"{name} is cancelled while running: the result of its worker will be refused"
    if status == "cancelled" and was == "pending":
        return f"{name} is cancelled: it was not running"
    return f"{name} is {status}: it had already ended, and nothing was changed"


def describe_retry(answer: Document) -> str:
    """Describe the effect of a retry, and a reason known to delay the task anyway."""
    task = answer["task"]
    name = f"task {clean(task['id'])} is due now"
    if answer["queue_paused"]:
        return f"{name}, but queue {clean(task['queue'])} is paused: it waits until the queue is resumed"
    if "malformed" in task:
        return f"{name}, but malformed: see `tidemill ops task explain`"
    return f"{name}: if it does not start soon, `tidemill ops task explain` shows the reason"


def _is_leased(task: Document, now: datetime) -> bool:
    return task["lease"] is not None and datetime.fromisoformat(task["lease"]["expires_at"]) > now


def _describe_task(task: Document, now: datetime) -> dict[str, str]:
    assumed = ", unless RETRY_POLICY of the deployment says otherwise" if task["attempts_allowed_assumed"] else ""
    lines = {
        "name": task["name"],
        "queue": task["queue"],
        "status": task["status"],
        "priority": str(task["priority"]),
        "attempts": f"{task['attempts']} of {task['attempts_allowed']}{assumed}",
    }
    return lines | _describe_times(task, now) | _describe_result(task) | _describe_origin(task)


def _describe_times(task: Document, now: datetime) -> dict[str, str]:
    lines = {}
    if task["status"] == "pending":
        lines["next retry" if task["lane"] == "retry" else "due"] = _format_time(task["due_at"], now)
        if task["expires_at"] is not None:
            lines["expires"] = _format_time(task["expires_at"], now)
    if task["status"] == "processing":
        lines["held by"] = _describe_lease(task["lease"], task["updated_at"], now)
    if task["cancel_requested_at"] is not None:
        lines["cancel asked"] = _format_time(task["cancel_requested_at"], now)
    if task["finished_at"] is not None:
        lines["finished"] = _format_time(task["finished_at"], now)
    return lines


def _describe_result(task: Document) -> dict[str, str]:
    lines = {}
    if task["status"] == "failed":
        lines["reason"] = task["reason"] or "failed by hand"
        if task["archive_error"] is not None:
            lines["not archived"] = truncate_text(task["archive_error"], _MAX_TEXT)
    if task["error"] is not None:
        error = task["error"]
        at = format_time(datetime.fromisoformat(error["at"]))
        lines["last error"] = truncate_text(f"{error['code']}: {error['message']}", _MAX_TEXT) + f" ({at} UTC)"
    return lines | {"result": "stored" if task["has_result"] else "none"}


def _describe_origin(task: Document) -> dict[str, str]:
    labels = {"source": "source", "correlation": "correlation_id"}
    return {label: task[field] for label, field in labels.items() if task[field]}


def _describe_malformed(task: Document, now: datetime) -> dict[str, str]:
    lease = {} if task["lease"] is None else {"held by": _describe_lease(task["lease"], None, now)}
    return {"malformed": f"{task['malformed']}: no executor can run it"} | lease


def _describe_lease(lease: Document | None, since: str | None, now: datetime) -> str:
    if lease is None:
        return "unknown: the lease is malformed"
    started = "" if since is None else f" since {_format_time(since, now)}"
    return f"{lease['owner']}{started} until {_format_time(lease['expires_at'], now)}"


def _format_time(stamp: str, now: datetime) -> str:
    return format_time_and_distance(datetime.fromisoformat(stamp), now=now)


def _format_log_rows(lines: Sequence[Document]) -> Iterator[tuple[str, ...]]:
    for missing, line in count_missing_attempts(lines):
        if missing:
            yield "...", ABSENT, ABSENT, ABSENT, f"{missing} not kept"
        started = format_time(datetime.fromisoformat(line["started_at"]), timespec="milliseconds")
        duration = format_duration(min(line["duration_ms"], _MAX_DURATION_MS) * timedelta(milliseconds=1))
        yield str(line["attempt"]), line["status"], started, duration, truncate_text(line["note"], _MAX_TEXT)
