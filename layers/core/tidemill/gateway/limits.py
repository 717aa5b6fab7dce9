"""What HTTP may ask for beyond what any request may: registered names, declared queues, its caller's keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from itertools import islice
from typing import Any, Final

from tidemill.control import Directory, Known
from tidemill.errors import InvalidRequestError, Problem
from tidemill.gateway.events import DIRECT
from tidemill.gateway.models import MIN_HTTP_BASE_SEC, HttpBatchTask, HttpTask
from tidemill.requests import MAX_PROBLEMS, NewTask, Request, RetryOptions, TaskFields, listed, parsed
from tidemill.requests.problems import foremost
from tidemill.requests.tasks import Key
from tidemill.wording import guess

KEY: Final = "Idempotency-Key"


_NAMES: Final = {*HttpBatchTask.model_fields, *RetryOptions.model_fields, "tasks"}
"""What a field that there is not may have been meant to be."""


class _Keyed(Request):
    idempotency_key: Key | None


def requested(task: HttpTask, *, key: str | None, caller: str) -> NewTask:
    """Return the request for *task*, with *key* as one of its *caller's*.

    Raises:
        InvalidRequestError: The key is none.
    """
    try:
        parsed(_Keyed, {"idempotency_key": key})
    except InvalidRequestError as error:
        raise InvalidRequestError([Problem(KEY, one.message) for one in error.problems]) from None
    return _request(task, key=key, caller=caller)


def all_requested(tasks: Sequence[HttpBatchTask], *, caller: str) -> list[NewTask]:
    """Return the requests for the *tasks* of a batch, each with its own key."""
    return [_request(one, key=one.idempotency_key, caller=caller) for one in tasks]


def refuse(tasks: Sequence[NewTask], *, directory: Directory, max_timeout: timedelta) -> None:
    """Refuse what HTTP may not ask for. *max_timeout* is what executors can grant one attempt.

    Raises:
        InvalidRequestError: Naming the index of each that is not allowed.
    """
    names, queues = {one.name for one in tasks}, {one.queue for one in tasks}
    known = directory.known(names=names, queues=queues, for_http=True)
    _refuse(
        Problem(f"{index}.{problem.field}", problem.message)
        for index, task in enumerate(tasks)
        for problem in _problems(task, known, max_timeout)
    )


def refuse_too_long(tasks: Sequence[NewTask], *, max_timeout: timedelta) -> None:
    """Refuse tasks of a direct invocation that no executor could ever run.

    Raises:
        InvalidRequestError: Naming the index of each.
    """
    _refuse(
        Problem(f"{index}.{problem.field}", problem.message)
        for index, task in enumerate(tasks)
        for problem in _too_long(task, max_timeout)
    )


def keyed_directly(tasks: Sequence[NewTask], *, request_id: str) -> list[NewTask]:
    """Return the *tasks* of a direct invocation with their own keys, or what a repeat of the invocation has again."""
    return [
        _request(one, key=one.idempotency_key or f"{request_id}:{index}", caller=DIRECT)
        for index, one in enumerate(tasks)
    ]


def found_by_routes(errors: Sequence[Any]) -> list[Problem]:
    """Return what the routes' validation found wrong, as Pydantic lists it, by the fields that the caller wrote."""
    return [_said(one) for one in listed(errors, names=_NAMES)]


def _said(problem: Problem) -> Problem:
    place, _, field = problem.field.partition(".")
    if place == "header":
        return Problem(KEY, problem.message)
    if field == "idempotency_key":
        return Problem(field, f"goes into the header {KEY}")
    return Problem(field or "task", problem.message)


def _request(task: TaskFields, *, key: str | None, caller: str) -> NewTask:
    fields: dict[str, Any] = dict(task) | {"idempotency_key": None if key is None else f"{caller}:{key}"}
    return NewTask.model_construct(task.model_fields_set | {"idempotency_key"}, **fields)


def _problems(task: TaskFields, known: Known, max_timeout: timedelta) -> Iterator[Problem]:
    if task.name not in known.types:
        open_ones = [name for name in known.types if known.is_open(name)]
        yield Problem("name", f"no executor has registered a task function of this name{guess(task.name, open_ones)}")
    elif not known.is_open(task.name):
        yield Problem("name", "is not open to HTTP: register it with @task(..., http=True)")
    if task.queue not in known.queues:
        close = guess(task.queue, known.queues)
        yield Problem("queue", f"is not declared{close or ':'} run `tidemill ops queue declare QUEUE` once")
    backoff = task.retry.backoff() if task.retry is not None else None
    if backoff is not None and backoff.base_sec < MIN_HTTP_BASE_SEC:
        yield Problem("retry.base_sec", f"must be at least {MIN_HTTP_BASE_SEC:g}")
    yield from _too_long(task, max_timeout)


def _too_long(task: TaskFields, max_timeout: timedelta) -> Iterator[Problem]:
    longest = max_timeout.total_seconds()
    if task.timeout_sec is not None and task.timeout_sec > longest:
        yield Problem("timeout_sec", f"must be at most {longest:g}, the MAX_TASK_TIMEOUT_SEC of executors")


def _refuse(problems: Iterator[Problem]) -> None:
    found = list(islice(problems, MAX_PROBLEMS + 1))  # a guess at each of a thousand names would take seconds
    if found:
        raise InvalidRequestError(foremost(found))
