"""The enqueue function: its HTTP API, direct invocations, schedules, and messages of its queue of retries."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pymongo
from aws_lambda_powertools.utilities.typing import LambdaContext

from tidemill.aws import lambda_context, logging
from tidemill.aws.launcher import SendError
from tidemill.bootstrap import deployment, prepare_wake
from tidemill.enqueue.rules import Invocation, make_direct_rules, refuse_too_old
from tidemill.errors import (
    CredentialsError,
    DuplicateKeyError,
    InvalidRequestError,
    MissingIndexError,
    SettingsError,
    TidemillError,
    TooOldError,
    UnavailableError,
    UnsupportedServerError,
)
from tidemill.handlers.routes import answer_request, app
from tidemill.handlers.submission import logger, retry_wake, submit_tasks
from tidemill.http import events, models
from tidemill.http.models import HttpError
from tidemill.requests.events import DirectRequest, SingleDirectRequest, is_redelivery, read_direct, read_redelivery

__all__ = ["app", "lambda_handler", "logger"]

MONGODB_REQUEST_BUDGET_SEC: Final = 4.0
"""Limit of MongoDB's time over one request; the caller waits at most 5 s."""

MIN_REMAINING_SEC: Final = 3.0
"""Time of the invocation that the next message of a batch needs."""

MENDED_BY_TIME: Final = (UnavailableError, CredentialsError, SettingsError, MissingIndexError, UnsupportedServerError)
"""Errors that end by themselves or with an operator's help. Until then every message would fail."""

NEVER_MENDED: Final = (InvalidRequestError, DuplicateKeyError, TooOldError)
"""Errors that every repeat of a message has again."""

logging.quiet_libraries()
prepare_wake()


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
    """
    logger.structure_logs(request_id=lambda_context.get_owner(context))
    with pymongo.timeout(request_budget_sec):
        answer = _answer(event, context)
    retry_wake()
    return answer


def _answer(event: Any, context: LambdaContext | None) -> dict[str, Any]:  # noqa: ANN401 - as above
    if is_redelivery(event):
        return _enqueue_redelivered(event["Records"], context)
    if events.is_direct(event):
        return _enqueue_direct(event, request_id=_get_request_id(context))
    if events.is_http(event):
        return answer_request(event, context)
    logger.warning("invalid_event")
    return models.encode_error(HttpError(400, "invalid_event", "this is no event of the REST API"))


def _get_request_id(context: LambdaContext | None) -> str:
    """Return the id of the invocation, which its repeats have too; a call without a context has no repeats."""
    return str(uuid.uuid4()) if context is None else context.aws_request_id


def _enqueue_direct(event: Any, *, request_id: str) -> dict[str, Any]:  # noqa: ANN401 - of any kind
    def submit() -> dict[str, Any]:
        invocation = Invocation(request_id=request_id, may_be_repeat=lambda_context.may_be_repeat())
        return _submit_direct(read_direct(event), invocation)

    try:
        return deployment().with_current_secret(submit)
    except Exception as error:
        _log_failure(error)
        raise


def _enqueue_redelivered(messages: Sequence[Mapping[str, Any]], context: LambdaContext | None) -> dict[str, Any]:
    """Store the events of *messages*, which failed before; return the messages that SQS must deliver again.

    An error that every message would have ends the batch. A fault of one message does not delay the rest.
    """
    left: list[str] = []
    is_sqs_away = False
    for index, message in enumerate(messages):
        rest = [message["messageId"] for message in messages[index:]]
        if lambda_context.get_remaining(context).total_seconds() < MIN_REMAINING_SEC:
            left += rest
            break
        try:
            deployment().with_current_secret(lambda message=message: _submit_redelivered(message))  # type: ignore[misc]
        except MENDED_BY_TIME as error:
            _log_failure(error, left=len(rest))
            left += rest
            break
        except NEVER_MENDED as error:
            is_sqs_away = is_sqs_away or not _move_to_failures(message, error)
            left += rest[:1] if is_sqs_away else []
        except Exception as error:  # noqa: BLE001 - it must not delay the rest
            _log_failure(error, message_id=message["messageId"])
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
    accepted = submit_tasks(request.tasks, rules=rules, trace=events.build_direct_trace(invocation.request_id))
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


def _log_failure(error: Exception, **fields: object) -> None:
    log = logger.warning if isinstance(error, UnavailableError) else logger.error
    log("failed", extra=logging.error_fields(error) | fields)
