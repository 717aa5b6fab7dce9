"""Takes tasks in: over HTTP, where it also tells of them and cancels them, directly, and from schedules."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Final

import pymongo
from aws_lambda_powertools import Logger
from aws_lambda_powertools.event_handler import APIGatewayRestResolver, Response
from aws_lambda_powertools.event_handler.exceptions import NotFoundError
from aws_lambda_powertools.event_handler.openapi.exceptions import RequestValidationError
from aws_lambda_powertools.event_handler.openapi.params import Body, Header, Path
from aws_lambda_powertools.utilities.typing import LambdaContext

from tidemill import bootstrap, gateway, trouble
from tidemill.enqueueing import Accepted
from tidemill.errors import (
    DuplicateKeyError,
    InvalidRequestError,
    Problem,
    TaskNotFoundError,
    TidemillError,
    UnavailableError,
)
from tidemill.gateway import AcceptedTask, AcceptedTasks, Batch, HttpError, HttpTask, TaskAnswer
from tidemill.model import Task
from tidemill.requests import MAX_KEY_CHARS, NewTask, Occurrence, below, is_single, read_direct

PATIENCE_SEC: Final = 4.0
"""MongoDB may take so long over a whole request; the caller waits 5 s at most."""

MAX_LOGGED: Final = 20
"""So many ids of a batch are in its line of the log."""

TaskIdInPath = Annotated[str, Path(description="The id that the enqueue answered: 24 hex digits.")]
Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=MAX_KEY_CHARS,
        description="What makes a repeat of this request the same task; your own for each task.",
        examples=["order-7"],
    ),
]

logger = Logger(service="tidemill-enqueue", use_rfc3339=True)
trouble.hush_libraries()
app = APIGatewayRestResolver(
    debug=False,  # else POWERTOOLS_DEV prints every event, payload and all
    enable_validation=True,
    response_validation_error_http_code=500,
    json_body_deserializer=gateway.json_value,
    serializer=partial(json.dumps, allow_nan=False),
)
bootstrap.get_ready_to_wake()


@trouble.without_text()
def lambda_handler(event: Any, context: LambdaContext | None) -> dict[str, Any]:  # noqa: ANN401 - of three kinds
    """Answer one request of the REST API, which never raises; or take in what is invoked directly.

    Raises:
        TidemillError: What was invoked directly is not stored. Lambda repeats an asynchronous invocation twice and
            then keeps the event in the queue of failures: nowhere else it would be told.
    """
    logger.structure_logs(request_id=bootstrap.owner(context))
    with pymongo.timeout(PATIENCE_SEC):
        if gateway.is_direct(event):
            request_id = bootstrap.owner(context)
            told = _taken(event, request_id=request_id)
            _make_up()
            return told
        if not gateway.is_http(event):
            logger.warning("invalid_event")
            return gateway.plain(HttpError(400, "invalid_event", "this is no event of the REST API"))
        answered = _answered(event, context)
    _make_up()
    return answered


def _answered(event: dict[str, Any], context: LambdaContext | None) -> dict[str, Any]:
    def resolved() -> dict[str, Any]:
        found: dict[str, Any] = app.resolve(gateway.cleaned(event), context)  # type: ignore[arg-type]
        return found

    try:
        return bootstrap.with_current_secret(resolved)
    except TidemillError as error:
        return gateway.plain(_refusal(error, event))


@app.post("/tasks", **gateway.POST)
def enqueue(task: Annotated[HttpTask, Body()], idempotency_key: Key = None) -> Response[AcceptedTask]:
    """Take one task in."""
    event = _event()
    request = gateway.requested(task, key=idempotency_key, caller=gateway.caller(event))
    [one] = _stored([request], refuse=_refuse_what_http_may_not, trace=gateway.trace(event), is_one=True)
    headers = gateway.HEADERS | {"Location": gateway.location(event, one.id)}
    return Response(status_code=202 if one.is_new else 200, body=gateway.accepted(one), headers=headers)


@app.post("/tasks/batch", **gateway.POST_BATCH)
def enqueue_batch(batch: Annotated[Batch, Body()]) -> Response[AcceptedTasks]:
    """Take many tasks in, all or none."""
    event = _event()
    if gateway.idempotency_key(event) is not None:
        raise InvalidRequestError([Problem("Idempotency-Key", "is for one task: give each an idempotency_key")])
    requests = gateway.all_requested(batch.tasks, caller=gateway.caller(event))
    several = _stored(requests, refuse=_refuse_what_http_may_not, trace=gateway.trace(event))
    status = 202 if any(one.is_new for one in several) else 200
    return Response(status_code=status, body=gateway.all_accepted(several), headers=dict(gateway.HEADERS))


@app.get("/tasks/<task_id>", **gateway.GET)
def get(task_id: TaskIdInPath) -> Response[TaskAnswer]:
    """Tell how a task is doing."""
    return _told(_own(task_id), "looked_up")


@app.delete("/tasks/<task_id>", **gateway.CANCEL)
def cancel(task_id: TaskIdInPath) -> Response[TaskAnswer]:
    """Cancel a task."""
    task = bootstrap.queue().cancel(_own(task_id).id)
    if not isinstance(task, Task):
        raise TaskNotFoundError(task_id)
    return _told(task, "cancelled")


@app.exception_handler(Exception)  # type: ignore[untyped-decorator]
def refuse(error: Exception) -> Response[Any]:
    """Turn what nobody expected into an answer; of what is ours the secret may be the reason, and the handler looks."""
    if isinstance(error, TidemillError):
        raise error
    return _refused(_refusal(error, _event()))


@app.not_found
def no_route(_: NotFoundError) -> Response[Any]:
    """Answer what no route takes."""
    return _refused(_refusal(HttpError(404, "not_found", "there is no such resource"), _event()))


def _event() -> dict[str, Any]:
    event: dict[str, Any] = app.current_event.raw_event
    return event


def _refuse_what_http_may_not(requests: Sequence[NewTask]) -> None:
    gateway.refuse(requests, directory=bootstrap.directory(), max_timeout=bootstrap.chosen().max_task_timeout)


def _refuse_what_never_fits(requests: Sequence[NewTask]) -> None:
    gateway.refuse_too_long(requests, max_timeout=bootstrap.chosen().max_task_timeout)


def _taken(event: Any, *, request_id: str) -> dict[str, Any]:  # noqa: ANN401 - of any kind
    try:
        return bootstrap.with_current_secret(lambda: _stored_directly(event, request_id=request_id))
    except Exception as error:
        level = logger.warning if isinstance(error, UnavailableError) else logger.error
        level("failed", extra=trouble.told(error))
        raise


def _stored_directly(event: Any, *, request_id: str) -> dict[str, Any]:  # noqa: ANN401 - of any kind
    """Store what was invoked directly; without a key, the request id is one: Lambda's own repeats have the same."""
    request, trace = read_direct(event), gateway.direct_trace(request_id)
    if request.occurrence is not None:
        return _stored_once(request.occurrence, request.tasks, trace=trace, is_one=is_single(event))
    requests = gateway.keyed_directly(request.tasks, request_id=request_id)
    several = _stored(requests, refuse=_refuse_what_never_fits, trace=trace, is_one=is_single(event))
    told = gateway.all_accepted(several).model_dump()
    return told["tasks"][0] if is_single(event) else told


def _stored_once(
    occurrence: Occurrence, requests: Sequence[NewTask], *, trace: Mapping[str, str], is_one: bool
) -> dict[str, Any]:
    with _placing(is_one=is_one):
        _refuse_what_never_fits(requests)
        several = bootstrap.queue().accept_occurrence(occurrence, requests, trace=trace)
    _report(requests, several, trace=trace)
    return {"tasks": [{"id": str(one.id)} for one in several], "is_new": several[0].is_new}


def _stored(
    requests: Sequence[NewTask],
    *,
    refuse: Callable[[Sequence[NewTask]], None],
    trace: Mapping[str, str],
    is_one: bool = False,
) -> list[Accepted]:
    queue = bootstrap.queue()

    def store() -> list[Accepted]:
        refuse(requests)
        return [queue.accept(requests[0], trace=trace)] if is_one else queue.accept_many(requests, trace=trace)

    with _placing(is_one=is_one):
        several = queue.unless_known(requests, store)
    _report(requests, several, trace=trace)
    return several


def _report(requests: Sequence[NewTask], several: Sequence[Accepted], *, trace: Mapping[str, str]) -> None:
    """Log what was taken in, and have what is due run now, not at the next tick."""
    new = [request for request, one in zip(requests, several, strict=True) if one.is_new]
    said = {
        "count": len(several),
        "new": len(new),
        "task_ids": [str(one.id) for one in several[:MAX_LOGGED]],
        "task_names": sorted({one.name for one in requests})[:MAX_LOGGED],
    }
    logger.info("accepted", extra=said | dict(trace))
    now = bootstrap.queue().now()
    if any(request.starts_at(now) is None for request in new):
        waker = bootstrap.waker()
        _tell(None if waker is None else waker.wake())


def _make_up() -> None:
    """Wake for a task of an earlier request whose own wake came to nothing."""
    with suppress(TidemillError):  # without settings, of which the answer has told already
        waker = bootstrap.waker()
        _tell(None if waker is None else waker.make_up())


def _tell(trouble: str | None) -> None:
    if trouble is not None:
        logger.warning("not_woken", reason=trouble)


def _own(task_id: str) -> Task:
    task = bootstrap.queue().get(gateway.object_id(task_id), source=gateway.caller(_event()))
    if not isinstance(task, Task):
        raise TaskNotFoundError(task_id)
    return task


def _told(task: Task, message: str) -> Response[TaskAnswer]:
    logger.info(message, extra={"task_id": str(task.id), "task_name": task.name, "status": task.status})
    return Response(status_code=200, body=gateway.told(task), headers=dict(gateway.HEADERS))


def _refused(error: HttpError) -> Response[Any]:
    answer = gateway.plain(error)
    return Response(status_code=answer["statusCode"], body=answer["body"], headers=answer["headers"])


@contextmanager
def _placing(*, is_one: bool) -> Iterator[None]:
    """Say problems of many tasks of the field ``tasks``, and those of one of nothing but its own."""

    def placed(problems: Sequence[Problem]) -> list[Problem]:
        inner = [Problem(one.field.removeprefix("0."), one.message) for one in problems]
        return inner if is_one else below("tasks", problems)

    try:
        yield
    except InvalidRequestError as error:
        raise type(error)(placed(error.problems)) from None
    except DuplicateKeyError as error:
        raise DuplicateKeyError(error.task_id, problems=placed(error.problems)) from None


def _refusal(error: Exception, event: Mapping[str, Any]) -> HttpError:
    """Return the answer that *error* is, and log it: what is wrong with a request by its code only."""
    trace = gateway.trace(event)
    if not isinstance(error, TidemillError | RequestValidationError):
        logger.error("unexpected", extra=trouble.told(error) | trace)
        message = "an unexpected error; repeat a POST with the same Idempotency-Key, which is safe"
        return HttpError(500, "internal", message)
    if isinstance(error, RequestValidationError):
        refused = gateway.not_allowed(gateway.found_by_routes(error.errors()))
    else:
        refused = gateway.refusal(error)
    if refused.status == HTTPStatus.SERVICE_UNAVAILABLE:
        tell = logger.warning if isinstance(error, UnavailableError) else logger.error
        tell(refused.code, extra=trouble.told(error) | trace)
    else:
        logger.info("refused", extra={"status": int(refused.status), "code": refused.code} | trace)
    return refused
