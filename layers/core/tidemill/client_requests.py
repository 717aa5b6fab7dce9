"""Requests from the arguments of `Queue`: durations are timedeltas there, and retries are policies or presets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypedDict

import pymongo
from pymongo.client_session import ClientSession

from tidemill.enqueue.documents import Accepted
from tidemill.errors import InvalidRequestError, Problem, SettingsError
from tidemill.model import RetryPolicy
from tidemill.policy.retry import PRESET_EXPECTED
from tidemill.references import Reference
from tidemill.requests.tasks import NewTask, new_task
from tidemill.requests.validation import limit_problems
from tidemill.text import add_article

if TYPE_CHECKING:
    from tidemill.aws.waking import ApplicationWaker

ASYNC_VERSION: Final = (4, 13)
"""First version of pymongo whose async client is not a beta."""


class ManyOptions(TypedDict, total=False):
    """Options of tasks that are enqueued together; `Queue.enqueue` says what they mean."""

    queue: str
    priority: int
    delay: timedelta | None
    not_before: datetime | None
    expires_at: datetime | None
    retry: RetryPolicy | str | None
    max_retries: int | None
    timeout: timedelta | None


class Options(ManyOptions, total=False):
    """Options of a task; `Queue.enqueue` says what they mean."""

    idempotency_key: str | None
    session: ClientSession | None


def make_request(
    *,
    delay: object = None,
    timeout: object = None,
    retry: object = None,
    **fields: Any,  # noqa: ANN401 - any value
) -> NewTask:
    """Return the request for one task; *fields* are its fields that need no conversion.

    Raises:
        InvalidRequestError: With every problem found, under the names of the caller's arguments.
    """
    with _rename_fields():
        return new_task(
            delay_sec=None if delay is None else require_seconds(delay, field="delay"),
            retry=_require_policy(retry),
            timeout_sec=None if timeout is None else require_seconds(timeout, field="timeout"),
            **fields,
        )


def make_requests(reference: Reference, payloads: Iterable[object], options: ManyOptions) -> list[dict[str, Any]]:
    """Return a request for each payload, all with the same *options*.

    Raises:
        InvalidRequestError: An option is not allowed, or payloads do not fit; their problems begin with their index.
    """
    given: dict[str, Any] = dict(options)
    unknown = given.keys() - ManyOptions.__annotations__.keys()
    if unknown:
        raise TypeError(f"enqueue_many() got an unexpected keyword argument {min(unknown)!r}")
    shared = make_request(name=reference.name, payload={}, **given)
    fields = shared.model_dump(include=shared.model_fields_set - {"name", "payload", "retry"})
    fields |= {"retry": shared.retry}
    requests: list[dict[str, Any]] = []
    found: list[Problem] = []
    for index, payload in enumerate(payloads):
        try:
            requests.append({"name": reference.name, "payload": reference.dump(payload), **fields})
        except InvalidRequestError as error:
            found += [Problem(f"{index}.{problem.field}", problem.message) for problem in error.problems]
    if found:
        raise InvalidRequestError(limit_problems(found))
    return requests


@contextmanager
def _rename_fields() -> Iterator[None]:
    """Raise problems under the caller's parameters: ``delay`` and ``timeout`` instead of ``..._sec``."""
    try:
        yield
    except InvalidRequestError as error:
        raise InvalidRequestError(
            [
                Problem(problem.field.removesuffix("_sec"), problem.message.replace("delay_sec", "delay"))
                if problem.field in {"delay_sec", "timeout_sec", "task"}
                else problem
                for problem in error.problems
            ]
        ) from None


def make_waker(function: str) -> ApplicationWaker:
    """Return the waker of executors for queues that wake *function*, the name or ARN of the execute function.

    Raises:
        SettingsError: *function* is no name of a function, or boto3 is not installed.
    """
    from tidemill.aws.waking import get_waker  # noqa: PLC0415 - most applications wake nothing

    return get_waker(function)


def has_new_due(requests: Sequence[NewTask], accepted: Sequence[Accepted], *, now: datetime) -> bool:
    """Return whether *requests* have stored a task that is due *now*; *accepted* has their results, in order."""
    new = (request for request, task in zip(requests, accepted, strict=True) if task.is_new)
    return any(request.starts_at(now) is None for request in new)


def require_database(
    db: object, kind: type, *, queue: str, version: tuple[int | str, ...] = pymongo.version_tuple
) -> None:
    """Refuse a *db* that is not of the *kind* that the class called *queue* needs.

    Raises:
        TypeError: It is of another kind; often the database of the other client.
        SettingsError: The driver is too old.
    """
    is_async = queue.startswith("Async")
    if is_async and version < ASYNC_VERSION:
        found, needed = ".".join(map(str, version)), ".".join(map(str, ASYNC_VERSION))
        raise SettingsError(
            f"an AsyncQueue needs pymongo {needed}, and this is {found}: pip install 'pymongo>={needed}'"
        )
    if isinstance(db, kind):
        return
    client = "AsyncMongoClient" if is_async else "MongoClient"
    counterpart = {"Database": "Queue", "AsyncDatabase": "AsyncQueue"}.get(type(db).__name__)
    raise TypeError(
        f'{add_article(queue)} needs {add_article(kind.__name__)} of pymongo, as in {queue}({client}(...)["app"]), '
        f"not {add_article(type(db).__name__)}" + (f"; for that one there is {counterpart}" if counterpart else "")
    )


def require_seconds(duration: object, *, field: str) -> float:
    """Return the seconds of a *duration*.

    Raises:
        InvalidRequestError: It is no timedelta.
    """
    if not isinstance(duration, timedelta):
        raise InvalidRequestError([Problem(field, "must be a timedelta, such as timedelta(seconds=10)")])
    return duration.total_seconds()


def _require_policy(policy: object) -> RetryPolicy | str | None:
    if policy is None or isinstance(policy, str | RetryPolicy):
        return policy
    raise InvalidRequestError([Problem("retry", f"{PRESET_EXPECTED}, or a RetryPolicy")])
