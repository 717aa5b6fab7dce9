"""The HTTP front: takes tasks in, tells of them, cancels them."""

from __future__ import annotations

import traceback
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pymongo
from aws_lambda_powertools import Logger
from aws_lambda_powertools.event_handler import APIGatewayRestResolver, Response
from aws_lambda_powertools.event_handler.exceptions import NotFoundError
from aws_lambda_powertools.utilities.typing import LambdaContext

from tidemill import bootstrap, gateway
from tidemill.errors import (
    DuplicateKeyError,
    InvalidRequestError,
    TaskNotFoundError,
    TidemillError,
    UnavailableError,
)
from tidemill.gateway import Answer, HttpError
from tidemill.model import Task, TaskId

PATIENCE_SEC = 4.0
"""MongoDB may take so long over a whole request; the caller waits 5 s at most."""

logger = Logger(service="tidemill-enqueue")
app = APIGatewayRestResolver(debug=False)  # else POWERTOOLS_DEV prints every event, payload and all
bootstrap.get_ready_to_wake()


def lambda_handler(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """Answer one request of the REST API; never raises."""
    logger.structure_logs(request_id=bootstrap.owner(context))
    if not gateway.is_api_event(event):
        answer = gateway.refused(HttpError(400, "invalid_event", "this is no event of the REST API"))
        return {"statusCode": answer.status, "headers": dict(answer.headers), "body": answer.body}
    with pymongo.timeout(PATIENCE_SEC):
        answered: dict[str, Any] = app.resolve(event, context)
    _make_up()
    return answered


@app.post("/tasks")
def enqueue() -> Response[str]:
    """Take one task in."""
    event = app.current_event.raw_event
    longest = bootstrap.chosen().max_task_timeout
    request = gateway.requested_task(event, bootstrap.directory(), max_timeout=longest)
    task_id, is_new = bootstrap.queue().accept(request, trace=gateway.trace(event))
    logger.info("accepted", task_id=str(task_id), task_name=request.name, is_new=is_new)
    if is_new and request.starts_at(datetime.now(UTC)) is None:
        _wake()
    return _response(gateway.accepted(task_id, is_new=is_new, event=event))


@app.get("/tasks/<task_id>")
def get(task_id: str) -> Response[str]:
    """Tell how a task is doing."""
    return _response(gateway.told(_own(gateway.object_id(task_id))))


@app.delete("/tasks/<task_id>")
def cancel(task_id: str) -> Response[str]:
    """Cancel a task."""
    _own(gateway.object_id(task_id))
    task = bootstrap.queue().cancel(gateway.object_id(task_id))
    if not isinstance(task, Task):
        raise TaskNotFoundError(task_id)
    return _response(gateway.told(task))


@app.exception_handler(Exception)  # type: ignore[untyped-decorator]
def refuse(error: Exception) -> Response[str]:
    """Turn whatever was raised into an answer."""
    known = _known(error)
    if known is None:
        # Where it was raised, but not its text, which may hold anything.
        stack = "".join(traceback.format_tb(error.__traceback__, limit=-5))
        logger.error("unexpected", error_type=type(error).__name__, stack=stack)
        known = HttpError(500, "internal", "an unexpected error; a repeat with the same Idempotency-Key is safe")
    return _response(gateway.refused(known))


@app.not_found
def no_route(_: NotFoundError) -> Response[str]:
    """Answer what no route takes."""
    return _response(gateway.refused(HttpError(404, "not_found", "there is no such resource")))


def _wake() -> None:
    """Have the task that was just taken in run now, not at the next tick."""
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


def _own(task_id: TaskId) -> Task:
    task = bootstrap.queue().get(task_id)
    if not isinstance(task, Task) or task.source != gateway.caller(app.current_event.raw_event):
        raise TaskNotFoundError(task_id)
    return task


def _known(error: Exception) -> HttpError | None:
    match error:
        case HttpError():
            return error
        case InvalidRequestError(problems=problems):
            return HttpError(422, "not_allowed", "the task is not allowed as it is", problems)
        case DuplicateKeyError():
            return HttpError(409, "key_in_use", "the Idempotency-Key was used with another request")
        case TaskNotFoundError():
            return HttpError(404, "not_found", "there is no such task")
        case UnavailableError():
            logger.warning("unavailable", error_type=type(error).__name__, reason=str(error))
            message = f"{error}; try again, which is safe with the same Idempotency-Key"
            return HttpError(503, "unavailable", message)
        case TidemillError():
            logger.error("misconfigured", error_type=type(error).__name__, reason=str(error))
            return HttpError(503, "misconfigured", "the queue is not set up; its log says what is missing")
        case _:
            return None


def _response(answer: Answer) -> Response[str]:
    return Response(status_code=answer.status, body=answer.body, headers=dict(answer.headers))
