"""``tidemill task``: one task and what became of its attempts. Neither its payload nor its result is shown."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from bson import ObjectId
from pymongo.database import Database

from tidemill import bootstrap, control
from tidemill.cli.database import database
from tidemill.cli.tables import (
    ABSENT,
    Commands,
    add_json_to,
    facts,
    moment,
    moment_from,
    say,
    say_json,
    span,
    stamp,
    table,
)
from tidemill.client import Queue
from tidemill.clock import ServerClock
from tidemill.control import Directory
from tidemill.model import Attempt, Lease, Malformed, Task, TaskId
from tidemill.store import lookups, open_tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """How many attempts a task has in all; ``assumed``: neither it nor its registration says so."""

    attempts: int
    assumed: bool


def add_to(commands: Commands) -> None:
    """Add ``task`` with its sub-command."""
    task = commands.add_parser("task", help="look at one task")
    actions = task.add_subparsers(required=True, metavar="ACTION")
    showing = actions.add_parser("show", help="show how a task stands and what became of its attempts")
    showing.add_argument("id", type=_task_id, metavar="ID", help="its id; 24 hex digits are an ObjectId")
    add_json_to(showing)
    showing.set_defaults(command=_show)


def unlogged(log: Sequence[Attempt]) -> Iterator[tuple[int, Attempt]]:
    """Yield the lines of an execution log, each with how many attempts right before it have none."""
    expected = 0
    for line in log:
        yield max(line.attempt - expected, 0), line
        expected = line.attempt + 1


def _task_id(text: str) -> TaskId:
    return ObjectId(text) if re.fullmatch("[0-9a-fA-F]{24}", text) else text


def _show(chosen: argparse.Namespace) -> None:
    db = database()
    task = Queue(db).get(chosen.id)
    is_dead = lookups.get(open_tasks(db), chosen.id) is None
    if chosen.json:
        say_json(_document(db, task, is_dead=is_dead))
        return
    now = ServerClock(db).now()
    header = _malformed(task, now) if isinstance(task, Malformed) else _header(task, _allowance(db, task), now)
    say(facts({"task": str(task.id), "kept": _kept(is_dead=is_dead)} | header))
    say(f"\n{_log(task.attempt_log)}" if task.attempt_log else "\nno attempt is logged")


def _allowance(db: Database[Any], task: Task) -> Allowance:
    directory = Directory(db)
    policy = control.policy_of(task, directory, deployment=bootstrap.chosen().retry)
    registered = (directory.task_type(task.name) or {}).get("max_retries")
    return Allowance(attempts=policy.max_retries + 1, assumed=task.max_retries is None and registered is None)


def _kept(*, is_dead: bool) -> str:
    return "among the dead letters" if is_dead else "among the living tasks"


def _header(task: Task, allowance: Allowance, now: datetime) -> dict[str, str]:
    assumed = ", unless RETRY_POLICY of the deployment says otherwise" if allowance.assumed else ""
    lines = {
        "name": task.name,
        "queue": task.queue,
        "status": task.status,
        "priority": str(task.priority),
        "attempts": f"{task.attempts} of {allowance.attempts}{assumed}",
    }
    if task.status == "pending":
        lines["next retry" if task.lane == "retry" else "due"] = moment_from(task.due_at, now=now)
    if task.status == "pending" and task.expires_at is not None:
        lines["expires"] = moment_from(task.expires_at, now=now)
    if task.status == "processing":
        lines["held by"] = _holder(task.lease, task.updated_at, now)
    if task.cancel_requested_at is not None:
        lines["cancel asked"] = moment_from(task.cancel_requested_at, now=now)
    if task.finished_at is not None:
        lines["finished"] = moment_from(task.finished_at, now=now)
    if task.status == "failed":
        lines["reason"] = task.reason or "failed by hand"
    if task.error is not None:
        lines["last error"] = f"{task.error.code}: {task.error.message} ({moment(task.error.at)} UTC)"
    return lines | {"result": "none" if task.result is None else "stored"}


def _malformed(task: Malformed, now: datetime) -> dict[str, str]:
    held = {} if task.lease is None else {"held by": _holder(task.lease, None, now)}
    return {"malformed": f"{task.problem}: no executor can run it"} | held


def _holder(lease: Lease | None, since: datetime | None, now: datetime) -> str:
    if lease is None:
        return "nobody who could prove it: its lease is malformed"
    started = "" if since is None else f" since {moment_from(since, now=now)}"
    return f"{lease.owner}{started} until {moment_from(lease.expires_at, now=now)}"


def _log(log: Sequence[Attempt]) -> str:
    return table(
        {"attempt": "number", "status": "word", "started (UTC)": "word", "duration": "number", "note": "text"},
        _rows(log),
    )


def _rows(log: Sequence[Attempt]) -> Iterator[tuple[str, ...]]:
    for missing, line in unlogged(log):
        if missing:
            yield "...", ABSENT, ABSENT, ABSENT, f"{missing} not kept"
        started = moment(line.started_at, timespec="milliseconds")
        yield str(line.attempt), str(line.status), started, span(timedelta(milliseconds=line.duration_ms)), line.note


def _document(db: Database[Any], task: Task | Malformed, *, is_dead: bool) -> dict[str, Any]:
    fields = {"malformed": task.problem} if isinstance(task, Malformed) else _fields(task, _allowance(db, task))
    lease = task.lease  # its token is not shown: it is the proof of a claim
    return {
        "id": str(task.id),
        "dead_letter": is_dead,
        **fields,
        "lease": None if lease is None else {"owner": lease.owner, "expires_at": stamp(lease.expires_at)},
        "attempt_log": [
            {
                "attempt": line.attempt,
                "status": str(line.status),
                "started_at": stamp(line.started_at),
                "duration_ms": line.duration_ms,
                "note": line.note,
            }
            for line in task.attempt_log
        ],
    }


def _fields(task: Task, allowance: Allowance) -> dict[str, Any]:
    times = ("due_at", "next_retry_at", "created_at", "updated_at", "finished_at", "expires_at", "cancel_requested_at")
    error = task.error
    return {
        "name": task.name,
        "queue": task.queue,
        "status": task.status,
        "lane": task.lane,
        "priority": task.priority,
        "attempts": task.attempts,
        "attempts_allowed": allowance.attempts,
        "attempts_allowed_assumed": allowance.assumed,
        **{name: stamp(getattr(task, name)) for name in times},
        "reason": task.reason,
        "error": None if error is None else {"code": error.code, "message": error.message, "at": stamp(error.at)},
        "crashes": task.crashes,
        "redrives": task.redrives,
        "has_result": task.result is not None,
    }
