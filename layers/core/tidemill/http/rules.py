"""Rules for requests over HTTP and direct invocations: open functions, declared queues, timeouts, scoped keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import islice
from typing import Any, Final

from tidemill.control.task_types import Declarations, Directory
from tidemill.errors import InvalidRequestError, Problem
from tidemill.http.events import DIRECT
from tidemill.http.models import MIN_HTTP_BASE_SEC, HttpBatchTask, HttpTask
from tidemill.requests.tasks import Key, NewTask, RetryOptions, TaskFields
from tidemill.requests.validation import MAX_PROBLEMS, Request, limit_problems, list_problems, parse_request
from tidemill.text import did_you_mean

KEY: Final = "Idempotency-Key"

_NAMES: Final = {*HttpBatchTask.model_fields, *RetryOptions.model_fields, "tasks"}
"""Names of all fields, to suggest one for an unknown field."""


class _Keyed(Request):
    idempotency_key: Key | None


def build_request(task: HttpTask, *, key: str | None, caller: str) -> NewTask:
    """Return the request for *task*, with *key* in the scope of its *caller*.

    Raises:
        InvalidRequestError: The key is invalid.
    """
    try:
        parse_request(_Keyed, {"idempotency_key": key})
    except InvalidRequestError as error:
        raise InvalidRequestError([Problem(KEY, problem.message) for problem in error.problems]) from None
    return _scope_key(task, key=key, caller=caller)


def build_requests(tasks: Sequence[HttpBatchTask], *, caller: str) -> list[NewTask]:
    """Return the requests for the *tasks* of a batch, each with its own key."""
    return [_scope_key(task, key=task.idempotency_key, caller=caller) for task in tasks]


def refuse(tasks: Sequence[NewTask], *, directory: Directory, max_timeout: timedelta) -> None:
    """Refuse tasks that are not allowed over HTTP. *max_timeout* is the longest attempt that executors allow.

    Raises:
        InvalidRequestError: With the index of each refused task.
    """
    names, queues = {task.name for task in tasks}, {task.queue for task in tasks}
    known = directory.read_declarations(names=names, queues=queues, for_http=True)
    _raise_if_any(
        Problem(f"{index}.{problem.field}", problem.message)
        for index, task in enumerate(tasks)
        for problem in _find_problems(task, known, max_timeout)
    )


def refuse_too_long(tasks: Sequence[NewTask], *, max_timeout: timedelta) -> None:
    """Refuse tasks of a direct invocation whose timeout is too long for any executor.

    Raises:
        InvalidRequestError: With the index of each refused task.
    """
    _raise_if_any(
        Problem(f"{index}.{problem.field}", problem.message)
        for index, task in enumerate(tasks)
        for problem in _find_long_timeout(task, max_timeout)
    )


def scope_keys(tasks: Sequence[NewTask]) -> list[NewTask]:
    """Return the *tasks* of a direct invocation with keys in a scope of their own, apart from those of HTTP callers."""
    return [_scope_key(task, key=task.idempotency_key, caller=DIRECT) for task in tasks]


def translate_problems(errors: Sequence[Any]) -> list[Problem]:
    """Return the *errors* of the routes' validation, as Pydantic lists them, for the fields that the caller wrote."""
    return [_locate(problem) for problem in list_problems(errors, names=_NAMES)]


def _locate(problem: Problem) -> Problem:
    place, _, field = problem.field.partition(".")
    if place == "header":
        return Problem(KEY, problem.message)
    if field == "idempotency_key":
        return Problem(field, f"goes into the header {KEY}")
    return Problem(field or "task", problem.message)


def _scope_key(task: TaskFields, *, key: str | None, caller: str) -> NewTask:
    fields: dict[str, Any] = dict(task) | {"idempotency_key": None if key is None else f"{caller}:{key}"}
    return NewTask.model_construct(task.model_fields_set | {"idempotency_key"}, **fields)


def _find_problems(task: TaskFields, known: Declarations, max_timeout: timedelta) -> Iterator[Problem]:
    if task.name not in known.types:
        open_names = [name for name in known.types if known.is_open(name)]
        yield Problem(
            "name", f"no executor has registered a task function of this name{did_you_mean(task.name, open_names)}"
        )
    elif not known.is_open(task.name):
        yield Problem("name", "is not open to HTTP: register it with @task(..., http=True)")
    if task.queue not in known.queues:
        hint = did_you_mean(task.queue, known.queues) or ":"
        yield Problem("queue", f"is not declared{hint} run `tidemill ops queue declare QUEUE` once")
    backoff = task.retry.backoff() if task.retry is not None else None
    if backoff is not None and backoff.base_sec < MIN_HTTP_BASE_SEC:
        yield Problem("retry.base_sec", f"must be at least {MIN_HTTP_BASE_SEC:g}")
    yield from _find_long_timeout(task, max_timeout)


def _find_long_timeout(task: TaskFields, max_timeout: timedelta) -> Iterator[Problem]:
    longest = max_timeout.total_seconds()
    if task.timeout_sec is not None and task.timeout_sec > longest:
        yield Problem("timeout_sec", f"must be at most {longest:g}, the MAX_TASK_TIMEOUT_SEC of executors")


def _raise_if_any(problems: Iterator[Problem]) -> None:
    first_problems = list(islice(problems, MAX_PROBLEMS + 1))  # a guess at each of a thousand names would take seconds
    if first_problems:
        raise InvalidRequestError(limit_problems(first_problems))
