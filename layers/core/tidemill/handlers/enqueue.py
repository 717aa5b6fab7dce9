"""The enqueue function: its HTTP API, direct invocations, schedules, and messages of its queue of retries."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Final

import pymongo
from aws_lambda_powertools.event_handler import APIGatewayRestResolver, Response
from aws_lambda_powertools.event_handler.exceptions import NotFoundError
from aws_lambda_powertools.event_handler.openapi.exceptions import RequestValidationError
from aws_lambda_powertools.event_handler.openapi.params import Body, Header, Path
from aws_lambda_powertools.utilities.typing import LambdaContext

from tidemill.aws import lambda_functions, logging
from tidemill.aws.lambda_functions import SendError
from tidemill.bootstrap import deployment, prepare_wake
from tidemill.enqueue.documents import Accepted
from tidemill.enqueue.rules import DIRECT, EnqueueRules, Invocation, make_direct_rules, make_http_rules, refuse_too_old
from tidemill.errors import (
    CredentialsError,
    DuplicateKeyError,
    InvalidRequestError,
    MissingIndexError,
    Problem,
    SettingsError,
    TaskNotFoundError,
    TidemillError,
    TooOldError,
    UnavailableError,
    UnsupportedServerError,
)
from tidemill.http import events, models, openapi
from tidemill.http.models import (
    KEY_HEADER,
    AcceptedTask,
    AcceptedTasks,
    Batch,
    HttpError,
    HttpTask,
    QueueAnswer,
    TaskAnswer,
)
from tidemill.model import Task
from tidemill.requests.events import DirectRequest, SingleDirectRequest, is_redelivery, read_direct, read_redelivery
from tidemill.requests.tasks import Key, NewTask

MONGODB_REQUEST_BUDGET_SEC: Final = 4.0
"""Limit of MongoDB's time over one request; the caller waits at most 5 s."""

MIN_REMAINING_SEC: Final = 3.0
"""Time of the invocation that the next message of a batch needs."""

MENDED_BY_TIME: Final = (UnavailableError, CredentialsError, SettingsError, MissingIndexError, UnsupportedServerError)
"""Errors that end by themselves or with an operator's help. Until then every message would fail."""

NEVER_MENDED: Final = (InvalidRequestError, DuplicateKeyError, TooOldError)
"""Errors that every repeat of a message has again."""

MAX_LOGGED: Final = 20
"""Limit of the task ids in one log line."""

logger = logging.FunctionLogger(service="tidemill-enqueue", use_rfc3339=True)
logging.quiet_libraries()
prepare_wake()

TaskIdInPath = Annotated[str, Path(description="The id from the answer to the enqueue: 24 hex digits.")]
QueueInPath = Annotated[str, Path(description="The name of a queue.")]
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


@logging.without_text()
def lambda_handler(
    event: Any,  # noqa: ANN401 - of three kinds
    context: LambdaContext | None,
    *,
    request_budget_sec: float = MONGODB_REQUEST_BUDGET_SEC,
) -> dict[str, Any]:
    """Answer an HTTP request, messages of the queue of retries, or a direct event; only the last can raise.

    Args:
        event: The request, the messages or the tasks.
        context: The Lambda context.
        request_budget_sec: Limit of MongoDB's time over the event.

    Raises:
        TidemillError: A direct event is not stored. Lambda repeats an asynchronous invocation twice and then sends the
            event to the queue of retries.
        InvalidRequestError: The context is unusable. SQS delivers its messages again.
    """
    try:
        logging.begin_invocation(logger, context)
    except InvalidRequestError as error:
        logging.log_failure(logger, error)
        raise
    with pymongo.timeout(request_budget_sec):
        answer = _answer(event, context)
    _retry_wake()
    return answer


def _answer(event: Any, context: LambdaContext | None) -> dict[str, Any]:  # noqa: ANN401 - as above
    if is_redelivery(event):
        return _enqueue_redelivered(event["Records"], context)
    if events.is_direct(event):
        # Repeats of an invocation have its id; a call without a context has no repeats.
        return _enqueue_direct(event, request_id=str(uuid.uuid4()) if context is None else context.aws_request_id)
    if events.is_http(event):
        return _answer_request(event, context)
    logger.warning("invalid_event")
    return models.encode_error(HttpError(400, "invalid_event", "this is no event of the REST API"))


def _enqueue_direct(event: Any, *, request_id: str) -> dict[str, Any]:  # noqa: ANN401 - of any kind
    def submit() -> dict[str, Any]:
        invocation = Invocation(request_id=request_id, may_be_repeat=lambda_functions.may_be_repeat())
        return _submit_direct(read_direct(event), invocation)

    try:
        return deployment().with_current_secret(submit)
    except Exception as error:
        logging.log_failure(logger, error)
        raise


def _enqueue_redelivered(messages: Sequence[Mapping[str, Any]], context: LambdaContext | None) -> dict[str, Any]:
    """Store the events of *messages*, which failed before; return the messages that SQS must deliver again.

    An error that every message would have ends the batch. A fault of one message does not delay the rest.
    """
    try:
        lambda_functions.get_remaining(context)
    except InvalidRequestError as error:
        logging.log_failure(logger, error)
        raise
    left: list[str] = []
    is_sqs_away = False
    for index, message in enumerate(messages):
        rest = [message["messageId"] for message in messages[index:]]
        if lambda_functions.get_remaining(context).total_seconds() < MIN_REMAINING_SEC:
            left += rest
            break
        try:
            deployment().with_current_secret(lambda message=message: _submit_redelivered(message))  # type: ignore[misc]
        except MENDED_BY_TIME as error:
            logging.log_failure(logger, error, left=len(rest))
            left += rest
            break
        except NEVER_MENDED as error:
            is_sqs_away = is_sqs_away or not _move_to_failures(message, error)
            left += rest[:1] if is_sqs_away else []
        except Exception as error:  # noqa: BLE001 - it must not delay the rest
            logging.log_failure(logger, error, message_id=message["messageId"])
            left += rest[:1]
    return {"batchItemFailures": [{"itemIdentifier": message_id} for message_id in left]}


def _submit_redelivered(message: Mapping[str, Any]) -> None:
    redelivery = read_redelivery(message)
    request = read_direct(redelivery.event)
    kept, now = deployment().settings.retention, deployment().enqueue_service.now()
    refuse_too_old(request.occurrence, failed_at=redelivery.failed_at, kept=kept, now=now)
    _submit_direct(request, Invocation(request_id=redelivery.request_id, may_be_repeat=True))


def _submit_direct(request: DirectRequest | SingleDirectRequest, invocation: Invocation) -> dict[str, Any]:
    origin, max_timeout = request.occurrence or invocation, deployment().settings.max_task_timeout
    rules = make_direct_rules(origin, is_single=request.is_single, max_timeout=max_timeout)
    trace = {"source": DIRECT, "correlation_id": invocation.request_id}
    accepted = _submit_tasks(request.tasks, rules=rules, trace=trace)
    if request.occurrence is not None:
        return {"tasks": [{"id": str(task.id)} for task in accepted], "is_new": any(task.is_new for task in accepted)}
    answer = models.build_all_accepted(accepted).model_dump()
    return answer["tasks"][0] if request.is_single else answer


def _move_to_failures(message: Mapping[str, Any], error: TidemillError) -> bool:
    """Send *message* to the queue of failures, which an alarm watches; return false if SQS must deliver it again."""
    code = "too_old" if isinstance(error, TooOldError) else models.convert_error(error).code
    fields = logging.error_fields(error) | {"code": code, "message_id": message["messageId"]}
    queue = deployment().failures_queue
    not_sent: str | None = None if queue else "FAILURES_QUEUE_URL is missing"
    if queue is not None:
        try:
            queue.send(message["body"], message.get("messageAttributes") or {})
        except SendError as send_error:
            not_sent = str(send_error)
    logger.warning("refused", extra=fields | ({} if not_sent is None else {"not_sent": not_sent}))
    return not_sent is None


def _answer_request(event: dict[str, Any], context: LambdaContext | None) -> dict[str, Any]:
    """Return the answer to *event* for API Gateway, also if the request is refused or fails."""
    try:
        return deployment().with_current_secret(lambda: app.resolve(events.clean_event(event), context))  # type: ignore[arg-type]
    except TidemillError as error:
        return models.encode_error(_refuse_request(error, event))


@app.post("/tasks", **openapi.POST)
def enqueue(task: Annotated[HttpTask, Body()], idempotency_key: KeyInHeader = None) -> Response[AcceptedTask]:
    """Enqueue one task."""
    [accepted] = _submit_http([task.add_key(idempotency_key)], is_single=True)
    headers = models.HEADERS | {"Location": events.build_location(_current_event(), accepted.id)}
    status = 202 if accepted.is_new else 200
    return Response(status_code=status, body=models.build_accepted(accepted), headers=headers)


@app.post("/tasks/batch", **openapi.POST_BATCH)
def enqueue_batch(batch: Annotated[Batch, Body()]) -> Response[AcceptedTasks]:
    """Enqueue many tasks, all or none."""
    if events.read_idempotency_key(_current_event()) is not None:
        raise InvalidRequestError([Problem(KEY_HEADER, "is for one task: give each an idempotency_key")])
    accepted = _submit_http(batch.tasks, is_single=False)
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


@app.get("/queues/<queue>", **openapi.GET_QUEUE)
def get_queue(queue: QueueInPath) -> Response[QueueAnswer]:
    """Return the sizes and the running tasks of a queue, to an API key with the right to it."""
    from tidemill.admin.queues import read_status  # noqa: PLC0415 - few requests need it, and it slows a cold start

    if not deployment().caller_rights.has_right(events.read_caller(_current_event()), "queues.read"):
        raise HttpError(403, "missing_right", "this API key may not read queues: ask for the right `queues.read`")
    db, now = deployment().database("enqueue"), deployment().enqueue_service.now()
    try:
        view = read_status(db, queue, now=now)
    except InvalidRequestError:
        raise HttpError(404, "not_found", "there is no such queue") from None
    logger.info("looked_up", extra={"queue": view.queue} | events.build_trace(_current_event()))
    return Response(status_code=200, body=models.build_queue_answer(view), headers=dict(models.HEADERS))


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


def _submit_http(requests: Sequence[NewTask], *, is_single: bool) -> list[Accepted]:
    event, max_timeout = _current_event(), deployment().settings.max_task_timeout
    rules = make_http_rules(events.read_caller(event), is_single=is_single, max_timeout=max_timeout)
    return _submit_tasks(requests, rules=rules, trace=events.build_trace(event))


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


def _submit_tasks(requests: Sequence[NewTask], *, rules: EnqueueRules, trace: Mapping[str, str]) -> list[Accepted]:
    """Store *requests*, log the accepted tasks, and wake an executor if a new task is due.

    Raises:
        TidemillError: As `EnqueueService.submit` raises it.
    """
    accepted = deployment().enqueue_service.submit(requests, rules=rules, trace=trace)
    new = [request for request, task in zip(requests, accepted, strict=True) if task.is_new]
    fields = {
        "count": len(accepted),
        "new": len(new),
        "task_ids": [str(task.id) for task in accepted[:MAX_LOGGED]],
        "task_names": sorted({request.name for request in requests})[:MAX_LOGGED],
    }
    logger.info("accepted", extra=fields | dict(trace))
    now = deployment().enqueue_service.now()
    waker = deployment().waker
    if waker is not None and any(request.starts_at(now) is None for request in new):
        _warn_if_wake_failed(waker.wake())
    return accepted


def _retry_wake() -> None:
    """Repeat a wake of an earlier request that failed."""
    with suppress(TidemillError):  # malformed settings, which the answer reports
        waker = deployment().waker
        _warn_if_wake_failed(None if waker is None else waker.retry_pending_wake())


def _warn_if_wake_failed(error: str | None) -> None:
    if error is not None:
        logger.warning("wake_failed", reason=error)
