"""Moves failed tasks to the dead letters, and copies these to S3."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import Any

from aws_lambda_powertools import Logger
from aws_lambda_powertools.utilities.typing import LambdaContext

from tidemill import bootstrap
from tidemill.archive import archive
from tidemill.requests import SweepRequest, parsed

MARGIN = timedelta(seconds=40)

logger = Logger(service="tidemill-archive")


def lambda_handler(event: object, context: LambdaContext | None) -> dict[str, Any]:
    """Archive; return the counts.

    Raises:
        InvalidRequestError: The event asks for something else.
        UnavailableError: MongoDB failed; the next tick goes on.
    """
    logger.structure_logs(request_id=bootstrap.owner(context))
    parsed(SweepRequest, event)
    report = asdict(archive(bootstrap.archives(), until=bootstrap.until(context, margin=MARGIN)))
    tell = logger.info if report["export_trouble"] is None else logger.warning
    tell("archived", extra=report)
    return report
