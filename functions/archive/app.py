"""Moves failed tasks to the dead letters."""

from __future__ import annotations

from datetime import timedelta

from aws_lambda_powertools import Logger
from aws_lambda_powertools.utilities.typing import LambdaContext

from tidemill import bootstrap
from tidemill.archive import archive
from tidemill.requests import SweepRequest, parsed

MARGIN = timedelta(seconds=40)

logger = Logger(service="tidemill-archive")


def lambda_handler(event: object, context: LambdaContext | None) -> dict[str, int]:
    """Archive; return the counts.

    Raises:
        InvalidRequestError: The event asks for something else.
        UnavailableError: MongoDB failed; the next tick goes on.
    """
    logger.structure_logs(request_id=bootstrap.owner(context))
    parsed(SweepRequest, event)
    tasks, dead, clock = bootstrap.archives()
    report = archive(tasks, dead, clock=clock, until=bootstrap.until(context, margin=MARGIN))
    logger.info("archived", extra=report)
    return report
