"""``tidemill enqueue``: enqueue one task, or many from lines of JSON, on a MongoDB URI or by the enqueue function."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, Protocol

import click
from click import argument, option

from tidemill.aws.lambda_functions import InvokeError, NotInvokedError, RefusedEventError, invoke_function
from tidemill.cli.commands import (
    Command,
    build_function_option,
    build_json_option,
    is_json_wanted,
    parse_duration,
    read_function,
)
from tidemill.cli.enqueue_lines import Batch, check_lines, open_lines, read_batches, read_object
from tidemill.cli.operations import open_database
from tidemill.cli.output import clean, print_json, print_text, warn
from tidemill.clock import ServerClock
from tidemill.control.task_types import Directory
from tidemill.enqueue.documents import Accepted
from tidemill.enqueue.enqueue import EnqueueService
from tidemill.enqueue.rules import EnqueueRules
from tidemill.errors import (
    DuplicateKeyError,
    InvalidRequestError,
    Problem,
    TidemillError,
    UnavailableError,
    UnknownTaskError,
)
from tidemill.requests.tasks import CheckedTasks, NewTask, new_task

MAX_EVENT_BYTES: Final = 4 * 1024 * 1024
"""Upper limit of the tasks of one invocation; Lambda takes events of 6 MB."""

_REFUSALS: Final = (InvalidRequestError.__name__, UnknownTaskError.__name__, DuplicateKeyError.__name__)
"""Errors of the enqueue function whose text repeats no secret."""

_OPTIONS: Final = {
    "payload": "--payload", "queue": "--queue", "priority": "--priority", "delay_sec": "--delay", "not_before": "--at",
    "expires_at": "--expires", "retry": "--retry", "max_retries": "--max-retries", "timeout_sec": "--timeout",
    "idempotency_key": "--key", "name": "NAME", "task": "task",
}  # fmt: skip
"""The option for each field of a task."""


@click.command(
    "enqueue",
    cls=Command,
    help="Enqueue a task, or many from lines of JSON.",
    note=(
        "NAME is the name of a task function. It prints the id of the task. --many reads a task from each line, like "
        '{"name": "greet", "payload": {"name": "Ada"}}; all lines are checked before the first is stored.'
    ),
    example="""tidemill enqueue greet --payload '{"name": "Ada"}' --delay 5m""",
)
@argument("name", metavar="[NAME]", required=False)
@option("--payload", metavar="JSON", help="Payload: a JSON object, @FILE, or - for stdin. Default: {}.")
@option("--queue", metavar="QUEUE", help="Queue of the task. Default: default.")
@option("--priority", type=int, metavar="N", help="Higher first, within the queue. Default: 0.")
@option("--delay", type=parse_duration, metavar="DURATION", help="Delay until the task is due, like 30s, 5m or 2h.")
@option("--at", "not_before", metavar="TIME", help="Time at which the task is due, like 2026-07-01T09:00:00Z.")
@option("--expires", "expires_at", metavar="TIME", help="Time from which on the task fails instead of starting.")
@option("--retry", metavar="POLICY", help="Name of a preset, or a JSON object with the numbers of a policy.")
@option("--max-retries", type=int, metavar="N", help="Number of retries; 0 is one run.")
@option(
    "--timeout", type=parse_duration, metavar="DURATION", help="Upper limit of the duration of one attempt, like 30s."
)
@option("--key", "idempotency_key", metavar="KEY", help="Idempotency key: a repeat creates no second task.")
@option("--many", metavar="FILE", help="Read tasks from the lines of FILE, or of stdin for -.")
def enqueue(*, name: str | None, many: str | None, **options: Any) -> None:  # noqa: ANN401 - those of _read_task
    """Enqueue NAME, or the lines of --many."""
    given = [field for field, value in options.items() if value is not None]
    if (name is None) == (many is None):
        raise click.UsageError("give either NAME or --many FILE")
    if many is not None and given:
        raise click.UsageError("the lines of --many hold all options of their tasks: leave out the other options")
    function = read_function()
    if name is not None:
        task = _read_task(name, **options)
        _print_task(_Database().store(task) if function is None else _Function(function).store(task))
        return
    with open_lines(many or "") as lines:
        way: _Way = _Database() if function is None else _Function(function)
        check_lines(read_batches(lines), way.check)
        _print_stored(way, read_batches(lines, max_bytes=way.max_bytes))


enqueue.params += [build_json_option(), build_function_option("enqueue")]


def _read_task(name: str, *, payload: str | None, retry: str | None, **fields: Any) -> NewTask:  # noqa: ANN401 - of any type
    """Return the task that the options name.

    Raises:
        InvalidRequestError: With every problem; the fields are named by their options.
    """
    given = {field: value for field, value in fields.items() if value is not None}
    for field in ("delay", "timeout"):
        if field in given:
            duration: timedelta = given.pop(field)
            given[f"{field}_sec"] = duration.total_seconds()
    if retry is not None:
        given["retry"] = _read_option("retry", retry) if retry.lstrip().startswith("{") else retry
    content = {} if payload is None else _read_option("payload", _read_payload(payload))
    try:
        return new_task(name=name, payload=content, **given)
    except InvalidRequestError as error:
        raise InvalidRequestError([_name_option(problem) for problem in error.problems]) from None


def _read_payload(text: str) -> str | bytes:
    try:
        if text == "-":
            return sys.stdin.buffer.read()
        if text.startswith("@"):
            return Path(text[1:]).read_bytes()
    except OSError as error:
        raise TidemillError(f"--payload: cannot read {clean(text[1:] or 'stdin')} ({error.strerror})") from None
    return text


def _read_option(field: str, text: str | bytes) -> dict[str, Any]:
    try:
        return read_object(text.encode() if isinstance(text, str) else text)
    except TidemillError as error:
        raise InvalidRequestError([Problem(_OPTIONS[field], str(error))]) from None


def _name_option(problem: Problem) -> Problem:
    field, dot, below = problem.field.partition(".")
    message = problem.message.replace("delay_sec and not_before", "--delay and --at")
    return Problem(f"{_OPTIONS.get(field, field)}{dot}{below}", message)


class _Way(Protocol):
    """Way to the queue. *max_bytes* is the upper limit of the JSON of one batch."""

    max_bytes: int

    def check(self, checked: CheckedTasks) -> None: ...

    def store_all(self, batch: Batch) -> Sequence[Mapping[str, Any]]: ...


class _Database:
    """The enqueue of `Queue`, on the database of MONGODB_URI."""

    max_bytes = sys.maxsize

    def __init__(self) -> None:
        db = open_database()
        self._directory = Directory(db)
        self._name = db.name
        self._service = EnqueueService(db, clock=ServerClock(db), directory=self._directory)

    def check(self, checked: CheckedTasks) -> None:
        self._service.check(checked.tasks, rules=EnqueueRules())

    def store(self, task: NewTask) -> Mapping[str, Any]:
        try:
            [accepted] = self._service.submit([task], rules=EnqueueRules(is_single=True))
        except InvalidRequestError as error:
            raise type(error)([_name_option(problem) for problem in error.problems]) from None
        self._warn_if_nothing_is_registered()
        return _describe_accepted(accepted)

    def store_all(self, batch: Batch) -> Sequence[Mapping[str, Any]]:
        checked = batch.check()
        accepted = self._service.submit(checked.tasks, payloads=checked.payloads, rules=EnqueueRules())
        self._warn_if_nothing_is_registered()
        return [_describe_accepted(task) for task in accepted]

    def _warn_if_nothing_is_registered(self) -> None:
        """Warn once in a database where no executor has run: its name may be mistyped."""
        if self._name and not self._directory.read_declarations().types:
            warn(f"warning: no executor has registered a task function in {self._name} yet: the task waits for one")
            self._name = ""


class _Function:
    """Direct invocations of the enqueue function."""

    max_bytes = MAX_EVENT_BYTES

    def __init__(self, function: str) -> None:
        self._function = function

    def check(self, checked: CheckedTasks) -> None:
        """Do nothing: the function checks names and times."""

    def store(self, task: NewTask) -> Mapping[str, Any]:
        return self._read_tasks(self._invoke(_build_event(task)), count=None)[0]

    def store_all(self, batch: Batch) -> Sequence[Mapping[str, Any]]:
        try:
            return self._read_tasks(self._invoke({"tasks": batch.tasks}), count=len(batch.tasks))
        except RefusedEventError as error:
            raise RefusedEventError(batch.describe_answer(str(error))) from None

    def _invoke(self, event: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any JSON
        return invoke_function(self._function, event, refusals=_REFUSALS)

    def _read_tasks(self, answer: Any, *, count: int | None) -> Sequence[Mapping[str, Any]]:  # noqa: ANN401 - as above
        tasks: object = answer
        if isinstance(answer, dict):
            tasks = [answer] if count is None else answer.get("tasks")
        if (
            not isinstance(tasks, list)
            or len(tasks) != (count or 1)
            or not all(isinstance(task, dict) and "id" in task for task in tasks)
        ):
            raise InvokeError(f"unexpected answer from {self._function}: is it the enqueue function?")
        return tasks


def _build_event(task: NewTask) -> dict[str, Any]:
    """Return *task* as the enqueue function takes it."""
    event: dict[str, Any] = json.loads(task.model_dump_json(exclude_unset=True))
    return event


def _describe_accepted(accepted: Accepted) -> Mapping[str, Any]:
    return {"id": str(accepted.id), "status": accepted.status, "is_new": accepted.is_new}


def _print_task(task: Mapping[str, Any]) -> None:
    if is_json_wanted():
        print_json(dict(task))
    elif task.get("is_new", True):
        print_text(clean(str(task["id"])))
    else:
        print_text(clean(str(task["id"])))
        warn(f"the task is not new: an equal request with this key enqueued it before, and it is {task['status']}")


def _print_stored(way: _Way, batches: Iterator[Batch]) -> None:
    """Store *batches* and print their tasks.

    Raises:
        TidemillError: A batch failed; the message says which lines are stored.
    """
    count = repeats = 0
    for batch in batches:
        try:
            stored = way.store_all(batch)
        except (DuplicateKeyError, InvalidRequestError) as error:
            raise TidemillError(_explain_end("; ".join(batch.describe(error)), batch, count)) from None
        except TidemillError as error:
            is_unknown = isinstance(error, UnavailableError) or (
                isinstance(error, InvokeError) and not isinstance(error, NotInvokedError | RefusedEventError)
            )
            raise TidemillError(_explain_end(str(error), batch, count, is_unknown=is_unknown)) from None
        count += len(stored)
        repeats += sum(not task.get("is_new", True) for task in stored)
        if is_json_wanted():
            for number, task in zip(batch.numbers, stored, strict=True):
                print_text(json.dumps({"line": number, **task}))
    if not is_json_wanted():
        known = f", {repeats} of them by an earlier request with the same key" if repeats else ""
        print_text(f"{count} {'task is' if count == 1 else 'tasks are'} enqueued{known}")


def _explain_end(reason: str, batch: Batch, count: int, *, is_unknown: bool = False) -> str:
    fate = "may be stored or not, so repeat them only if they have keys" if is_unknown else "are not stored"
    before = f", the {count} tasks before are" if count else ""
    return f"{reason}; {batch.place} {fate}{before}, and the lines after are not"
