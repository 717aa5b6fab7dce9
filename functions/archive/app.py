"""Moves failed tasks to the dead letters, and copies these to S3."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import Any

from aws_lambda_powertools import Logger
from aws_lambda_powertools.utilities.typing import LambdaContext

from tidemill import bootstrap
from tidemill.archive import ArchiveError, Report, archive
from tidemill.requests import SweepRequest, parsed

MARGIN = timedelta(seconds=40)

logger = Logger(service="tidemill-archive")


def lambda_handler(event: object, context: LambdaContext | None) -> dict[str, Any]:
    """Archive; return the counts.

    Raises:
        InvalidRequestError: The event asks for something else.
        TidemillError: MongoDB failed, or refused something; the next tick goes on.
    """
    logger.structure_logs(request_id=bootstrap.owner(context))
    parsed(SweepRequest, event)
    try:
        report = archive(bootstrap.archives(), until=bootstrap.until(context, margin=MARGIN))
    except ArchiveError as error:
        _log(error.report, reason=str(error))
        raise error.troubles[0] from None
    return _log(report)


def _log(report: Report, **reason: str) -> dict[str, Any]:
    counts = asdict(report)
    tell = logger.warning if reason or report.export_trouble is not None else logger.info
    tell("archived", extra=counts | reason)
    return counts
