"""The executor: claims due tasks and runs them until none is left or its time is up."""

from __future__ import annotations

import logging
import os
import sys

from aws_lambda_powertools import Logger
from aws_lambda_powertools.utilities.typing import LambdaContext

from tidemill import bootstrap
from tidemill.errors import UnavailableError
from tidemill.executor import execute
from tidemill.requests import ExecuteRequest, parsed

logger = Logger(service="tidemill-execute")


def lambda_handler(event: object, context: LambdaContext | None) -> dict[str, int]:
    """Run due tasks; return the counts.

    Raises:
        InvalidRequestError: The event asks for something else.
        UnavailableError: MongoDB failed; what it did not confirm is left to the leases.
    """
    logger.structure_logs(request_id=bootstrap.owner(context))
    request = parsed(ExecuteRequest, event)
    report = execute(bootstrap.runtime(), bootstrap.order(request, context))
    logger.info("executed", extra={"source": request.source, **report.as_dict()})
    if report["leftovers"]:
        _recycle()
    if report["unknown"]:
        raise UnavailableError(f"MongoDB did not confirm the outcome of {report['unknown']} tasks")
    return report.as_dict()


def _recycle() -> None:
    """End the process, and with it the functions that ran past their timeout and would not stop.

    Inside the handler, so that the next invocation starts in a clean one; the outcomes are settled already.
    """
    logger.warning("recycled")
    logging.shutdown()
    sys.stdout.flush()
    os._exit(1)
