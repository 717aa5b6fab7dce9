"""The operator's function: queues, tasks, dead letters and statistics, invoked directly with ``{"op": ...}``."""

from __future__ import annotations

import logging
from typing import Any, Final

import pymongo
from aws_lambda_powertools import Logger
from aws_lambda_powertools.utilities.typing import LambdaContext

from tidemill import bootstrap, trouble
from tidemill.errors import TidemillError
from tidemill.metrics import counting
from tidemill.operations import OPERATIONS, Desk, Refusal, operate, read, refusal
from tidemill.store import translated

PATIENCE_SEC: Final = 4.0
"""MongoDB may take so long over a whole operation; the operator waits 5 s at most."""

EXPORT_SEC: Final = 12.0
"""The same where S3 is waited for, too, which may take 7 s over a put."""

_LEVELS: Final = {"unavailable": logging.WARNING, "misconfigured": logging.ERROR, "internal": logging.ERROR}

logger = Logger(service="tidemill-operate", use_rfc3339=True)
trouble.hush_libraries()


def lambda_handler(event: object, context: LambdaContext | None) -> dict[str, Any]:
    """Carry out one operation and return its answer, or ``{"error": {...}}``; never raises."""
    logger.structure_logs(request_id=bootstrap.owner(context))
    try:
        request = read(event)
        with pymongo.timeout(EXPORT_SEC if request.op == "dlq.export" else PATIENCE_SEC):
            answer = operate(request, bootstrap.with_current_secret(_desk))
    except TidemillError as error:
        return _refused(event, refusal(error))
    except Exception as error:  # noqa: BLE001 - whoever operates at 3 a.m. gets an answer, not a stack of ours
        return _unexpected(event, error)
    if request.op == "dlq.export":
        with counting() as counts:
            counts.count("failed_exports", answer["refused"] + answer["failed"])
    _log(event, outcome="done")
    return answer


def _desk() -> Desk:
    """Return what to work with once MongoDB has shown that it knows us: no operation is carried out twice for that."""
    desk = bootstrap.desk()
    with translated():
        desk.db.queues.find_one({}, {"_id": 1})
    return desk


def _refused(event: object, refused: Refusal) -> dict[str, Any]:
    # What is not allowed is told in words that may hold what was asked for: the log names the operation only.
    reason = {"reason": refused.message} if refused.code in _LEVELS else {}
    _log(event, outcome=refused.code, **reason)
    return refused.document()


def _unexpected(event: object, error: Exception) -> dict[str, Any]:
    _log(event, outcome="internal", **trouble.told(error))
    message = f"an unexpected error ({type(error).__name__}); the log of the function says where"
    return Refusal(code="internal", message=message).document()


def _log(event: object, *, outcome: str, **extra: str) -> None:
    asked = event.get("op") if isinstance(event, dict) else None
    tell = {logging.WARNING: logger.warning, logging.ERROR: logger.error}.get(_LEVELS.get(outcome, 0), logger.info)
    tell("operated", extra={"op": asked if asked in OPERATIONS else "unknown", "outcome": outcome, **extra})
