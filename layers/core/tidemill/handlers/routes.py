"""Routes of the HTTP API: each parses its request, submits tasks or looks one up, and answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any

from aws_lambda_powertools.event_handler import APIGatewayRestResolver, Response
from aws_lambda_powertools.event_handler.exceptions import NotFoundError
from aws_lambda_powertools.event_handler.openapi.exceptions import RequestValidationError
from aws_lambda_powertools.event_handler.openapi.params import Body, Header, Path
from aws_lambda_powertools.utilities.typing import LambdaContext

from tidemill.aws import logging
from tidemill.bootstrap import deployment
from tidemill.enqueue.documents import Accepted
from tidemill.enqueue.rules import make_http_rules
from tidemill.errors import InvalidRequestError, Problem, TaskNotFoundError, TidemillError, UnavailableError
from tidemill.handlers.submission import logger, submit_tasks
from tidemill.http import events, models, openapi
from tidemill.http.models import KEY_HEADER, AcceptedTask, AcceptedTasks, Batch, HttpError, HttpTask, TaskAnswer
from tidemill.model import Task
from tidemill.requests.tasks import Key, NewTask

TaskIdInPath = Annotated[str, Path(description="The id from the answer to the enqueue: 24 hex digits.")]
KeyInHeader = Annotated[
    Key | None,
    Header(
        alias=KEY_HEADER,
        description="What makes a repeat of this request the same task; your own for each task.",
        examples=["order-7"],
    ),
]

app = APIGatewayRestResolver(
    debug=False,  # or POWERTOOLS_DEV prints every event with its payload
    enable_validation=True,
    response_validation_error_http_code=500,
    json_body_deserializer=events.parse_json_object,
    serializer=partial(json.dumps, allow_nan=False),
)


def answer_request(event: dict[str, Any], context: LambdaContext | None) -> dict[str, Any]:
    """Return the answer to *event* for API Gateway, also if the request is refused or fails."""

    def resolve() -> dict[str, Any]:
        answer: dict[str, Any] = app.resolve(events.clean_event(event), context)  # type: ignore[arg-type]
        return answer

    try:
        return deployment().with_current_secret(resolve)
    except TidemillError as error:
        return models.encode_error(_refuse_request(error, event))


@app.post("/tasks", **openapi.POST)
def enqueue(task: Annotated[HttpTask, Body()], idempotency_key: KeyInHeader = None) -> Response[AcceptedTask]:
    """Enqueue one task."""
    [accepted] = _submit([task.add_key(idempotency_key)], is_single=True)
    headers = models.HEADERS | {"Location": events.build_location(_current_event(), accepted.id)}
    status = 202 if accepted.is_new else 200
    return Response(status_code=status, body=models.build_accepted(accepted), headers=headers)


@app.post("/tasks/batch", **openapi.POST_BATCH)
def enqueue_batch(batch: Annotated[Batch, Body()]) -> Response[AcceptedTasks]:
    """Enqueue many tasks, all or none."""
    if events.read_idempotency_key(_current_event()) is not None:
        raise InvalidRequestError([Problem(KEY_HEADER, "is for one task: give each an idempotency_key")])
    accepted = _submit(batch.tasks, is_single=False)
    status = 202 if any(task.is_new for task in accepted) else 200
    return Response(status_code=status, body=models.build_all_accepted(accepted), headers=dict(models.HEADERS))


@app.get("/tasks/<task_id>", **openapi.GET)
def get(task_id: TaskIdInPath) -> Response[TaskAnswer]:
    """Return the state of a task."""
    return _answer_with_task(_find_own_task(task_id), "looked_up")


@app.delete("/tasks/<task_id>", **openapi.CANCEL)
def cancel(task_id: TaskIdInPath) -> Response[TaskAnswer]:
    """Cancel a task."""
    task = deployment().queue.cancel(_find_own_task(task_id).id)
    if not isinstance(task, Task):
        raise TaskNotFoundError(task_id)
    return _answer_with_task(task, "cancelled")


@app.exception_handler(Exception)  # type: ignore[untyped-decorator]
def refuse_unexpected_error(error: Exception) -> Response[Any]:
    """Answer an unexpected error. Raise errors of Tidemill again: the secret may be their cause."""
    if isinstance(error, TidemillError):
        raise error
    return _make_error_response(error)


@app.not_found
def refuse_unknown_route(_: NotFoundError) -> Response[Any]:
    """Answer a request that no route takes."""
    return _make_error_response(HttpError(404, "not_found", "there is no such resource"))


def _current_event() -> dict[str, Any]:
    event: dict[str, Any] = app.current_event.raw_event
    return event


def _submit(requests: Sequence[NewTask], *, is_single: bool) -> list[Accepted]:
    event, max_timeout = _current_event(), deployment().settings.max_task_timeout
    rules = make_http_rules(events.read_caller(event), is_single=is_single, max_timeout=max_timeout)
    return submit_tasks(requests, rules=rules, trace=events.build_trace(event))


def _find_own_task(task_id: str) -> Task:
    task = deployment().queue.get(events.parse_object_id(task_id), source=events.read_caller(_current_event()))
    if not isinstance(task, Task):
        raise TaskNotFoundError(task_id)
    return task


def _answer_with_task(task: Task, message: str) -> Response[TaskAnswer]:
    logger.info(message, extra={"task_id": str(task.id), "task_name": task.name, "status": task.status})
    return Response(status_code=200, body=models.build_task_answer(task), headers=dict(models.HEADERS))


def _make_error_response(error: Exception) -> Response[Any]:
    answer = models.encode_error(_refuse_request(error, _current_event()))
    return Response(status_code=answer["statusCode"], body=answer["body"], headers=answer["headers"])


def _refuse_request(error: Exception, event: Mapping[str, Any]) -> HttpError:
    """Return the answer to *error* and log it; the log has only the code of a fault in the request."""
    trace = events.build_trace(event)
    if not isinstance(error, TidemillError | RequestValidationError):
        logger.error("unexpected", extra=logging.error_fields(error) | trace)
        message = "an unexpected error; repeat a POST with the same Idempotency-Key, which is safe"
        return HttpError(500, "internal", message)
    if isinstance(error, RequestValidationError):
        refusal = models.convert_validation_errors(error.errors())
    else:
        refusal = models.convert_error(error)
    if refusal.status == HTTPStatus.SERVICE_UNAVAILABLE:
        log = logger.warning if isinstance(error, UnavailableError) else logger.error
        log(refusal.code, extra=logging.error_fields(error) | trace)
    else:
        logger.info("refused", extra={"status": int(refusal.status), "code": refusal.code} | trace)
    return refusal
