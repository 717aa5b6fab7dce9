"""One task in words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from tidemill.classify import bounded
from tidemill.cli.ops.asking import Document
from tidemill.cli.tables import ABSENT, clean, table
from tidemill.wording import moment, moment_from, span

_MAX_TEXT = 2000
"""Of a text that was edited by hand; those of Tidemill's own are shorter."""

_UNCHANGED = "it is neither pending nor processing, and nothing was changed"
_LONGEST_MS = 10**15


def header(answer: Document) -> dict[str, str]:
    """Return what is to be said of a task, but for its execution log."""
    task, now = answer["task"], datetime.fromisoformat(answer["now"])
    place, more = ("dead letters", ": see `tidemill dlq show`") if task["dead_letter"] else ("tasks", "")
    lines = _malformed(task, now) if "malformed" in task else _whole(task, now)
    return {"task": task["id"], "kept": f"among the {place} of {answer['database']}{more}"} | lines


def log(lines: Sequence[Document]) -> str:
    """Return an execution log, a line for each attempt."""
    return table(
        {"attempt": "number", "status": "word", "started (UTC)": "word", "duration": "number", "note": "text"},
        _rows(lines),
    )


def unlogged(lines: Sequence[Document]) -> Iterator[tuple[int, Document]]:
    """Yield the lines of an execution log, each with how many attempts right before it have none."""
    expected = 0
    for line in lines:
        yield max(line["attempt"] - expected, 0), line
        expected = line["attempt"] + 1


def cancelled(answer: Document) -> str:
    """Return what a cancel did, going by how the task was before and is now."""
    task, was = answer["task"], answer["was"]
    name, status = f"task {clean(task['id'])}", task.get("status", "malformed")
    if status == "malformed":
        did = "if it is held, it was asked to stop, and else cancelled" if answer["changed"] else _UNCHANGED
        return f"{name} is malformed: {did}"
    if status == "processing" and _is_held(task, datetime.fromisoformat(answer["now"])):
        return f"{name} runs and is asked to stop: it will be cancelled, or done if it succeeds all the same"
    if status == "processing":
        return f"{name} is asked to stop, but its lease is over: the next reclaim cancels it, --force does so at once"
    if status == "cancelled" and was == "processing":
        return f"{name} is cancelled, though it ran: what its worker still does with it is refused"
    if status == "cancelled" and was == "pending":
        return f"{name} is cancelled: it was not running"
    return f"{name} is {status}: it had ended already, and nothing was changed"


def hurried(answer: Document) -> str:
    """Return what a retry did, and what is known to keep the task all the same."""
    task = answer["task"]
    name = f"task {clean(task['id'])} is due now"
    if answer["queue_paused"]:
        return f"{name}, but queue {clean(task['queue'])} is paused: it waits until that is resumed"
    if "malformed" in task:
        return f"{name}, but malformed: see `tidemill ops task explain`"
    return f"{name}: the next executor that looks takes it, unless `tidemill ops task explain` says otherwise"


def _is_held(task: Document, now: datetime) -> bool:
    return task["lease"] is not None and datetime.fromisoformat(task["lease"]["expires_at"]) > now


def _whole(task: Document, now: datetime) -> dict[str, str]:
    assumed = ", unless RETRY_POLICY of the deployment says otherwise" if task["attempts_allowed_assumed"] else ""
    lines = {
        "name": task["name"],
        "queue": task["queue"],
        "status": task["status"],
        "priority": str(task["priority"]),
        "attempts": f"{task['attempts']} of {task['attempts_allowed']}{assumed}",
    }
    return lines | _times(task, now) | _ending(task) | _origin(task)


def _times(task: Document, now: datetime) -> dict[str, str]:
    lines = {}
    if task["status"] == "pending":
        lines["next retry" if task["lane"] == "retry" else "due"] = _moment(task["due_at"], now)
        if task["expires_at"] is not None:
            lines["expires"] = _moment(task["expires_at"], now)
    if task["status"] == "processing":
        lines["held by"] = _holder(task["lease"], task["updated_at"], now)
    if task["cancel_requested_at"] is not None:
        lines["cancel asked"] = _moment(task["cancel_requested_at"], now)
    if task["finished_at"] is not None:
        lines["finished"] = _moment(task["finished_at"], now)
    return lines


def _ending(task: Document) -> dict[str, str]:
    lines = {}
    if task["status"] == "failed":
        lines["reason"] = task["reason"] or "failed by hand"
        if task["archive_error"] is not None:
            lines["not archived"] = bounded(task["archive_error"], _MAX_TEXT)
    if task["error"] is not None:
        error = task["error"]
        at = moment(datetime.fromisoformat(error["at"]))
        lines["last error"] = bounded(f"{error['code']}: {error['message']}", _MAX_TEXT) + f" ({at} UTC)"
    return lines | {"result": "stored" if task["has_result"] else "none"}


def _origin(task: Document) -> dict[str, str]:
    labels = {"source": "source", "correlation": "correlation_id"}
    return {label: task[field] for label, field in labels.items() if task[field]}


def _malformed(task: Document, now: datetime) -> dict[str, str]:
    held = {} if task["lease"] is None else {"held by": _holder(task["lease"], None, now)}
    return {"malformed": f"{task['malformed']}: no executor can run it"} | held


def _holder(lease: Document | None, since: str | None, now: datetime) -> str:
    if lease is None:
        return "nobody who could prove it: its lease is malformed"
    started = "" if since is None else f" since {_moment(since, now)}"
    return f"{lease['owner']}{started} until {_moment(lease['expires_at'], now)}"


def _moment(stamp: str, now: datetime) -> str:
    return moment_from(datetime.fromisoformat(stamp), now=now)


def _rows(lines: Sequence[Document]) -> Iterator[tuple[str, ...]]:
    for missing, line in unlogged(lines):
        if missing:
            yield "...", ABSENT, ABSENT, ABSENT, f"{missing} not kept"
        started = moment(datetime.fromisoformat(line["started_at"]), timespec="milliseconds")
        duration = span(min(line["duration_ms"], _LONGEST_MS) * timedelta(milliseconds=1))
        yield str(line["attempt"]), line["status"], started, duration, bounded(line["note"], _MAX_TEXT)
