"""The operate function: queues, tasks, dead letters and statistics, invoked directly with ``{"op": ...}``."""

from __future__ import annotations

import logging
from typing import Any, Final

import pymongo
from aws_lambda_powertools.utilities.typing import LambdaContext

from tidemill.admin.api import OPERATIONS, Refusal, bound_answer, build_refusal, operate, read_operation
from tidemill.admin.context import AdminContext
from tidemill.admin.responses import ExportResponse
from tidemill.aws import logging as aws_logging
from tidemill.aws.metrics import counting
from tidemill.bootstrap import deployment
from tidemill.errors import TidemillError
from tidemill.store.connection import translate_errors

MONGODB_REQUEST_BUDGET_SEC: Final = 4.0
"""Limit of MongoDB's time over one operation; the operator waits at most 5 s."""

EXPORT_BUDGET_SEC: Final = 12.0
"""Limit of an export, which also waits for S3: up to 7 s for one put."""

_LEVELS: Final = {"unavailable": logging.WARNING, "misconfigured": logging.ERROR, "internal": logging.ERROR}

logger = aws_logging.FunctionLogger(service="tidemill-operate", use_rfc3339=True)
aws_logging.quiet_libraries()


def lambda_handler(
    event: object, context: LambdaContext | None, *, request_budget_sec: float = MONGODB_REQUEST_BUDGET_SEC
) -> dict[str, Any]:
    """Do one operation and return its answer, or ``{"error": {...}}``; raise nothing.

    Args:
        event: The operation.
        context: The Lambda context.
        request_budget_sec: Limit of MongoDB's time over an operation other than an export.
    """
    try:
        aws_logging.begin_invocation(logger, context)
        request = read_operation(event)
        with pymongo.timeout(EXPORT_BUDGET_SEC if request.op == "dlq.export" else request_budget_sec):
            response = operate(request, deployment().with_current_secret(_open_context))
            answer = bound_answer(response.document())
    except TidemillError as error:
        return _answer_refusal(event, build_refusal(error))
    except Exception as error:  # noqa: BLE001 - an operator gets an answer, not a stack
        return _answer_unexpected(event, error)
    if isinstance(response, ExportResponse):
        with counting() as counts:
            counts.count("failed_exports", response.refused + response.failed)
    _log(event, outcome="done")
    return answer


def _open_context() -> AdminContext:
    """Return the context of operations after a first read: a new password must not repeat an operation."""
    context = deployment().admin_context
    with translate_errors():
        context.db.queues.find_one({}, {"_id": 1})
    return context


def _answer_refusal(event: object, refused: Refusal) -> dict[str, Any]:
    # A refusal of the request may quote the request: the log names the operation only.
    reason = {"reason": refused.message} if refused.code in _LEVELS else {}
    _log(event, outcome=refused.code, **reason)
    return refused.document()


def _answer_unexpected(event: object, error: Exception) -> dict[str, Any]:
    _log(event, outcome="internal", **aws_logging.error_fields(error))
    message = f"an unexpected error ({type(error).__name__}); the log of the function says where"
    return Refusal(code="internal", message=message).document()


def _log(event: object, *, outcome: str, **extra: str) -> None:
    op = event.get("op") if isinstance(event, dict) else None
    log = {logging.WARNING: logger.warning, logging.ERROR: logger.error}.get(_LEVELS.get(outcome, 0), logger.info)
    log("operated", extra={"op": op if op in OPERATIONS else "unknown", "outcome": outcome, **extra})
