"""The executor: claims due tasks and runs them until none is left or its time is up."""

from __future__ import annotations

import contextlib
import logging
import os
import sys

from aws_lambda_powertools import Logger
from aws_lambda_powertools.utilities.typing import LambdaContext

from tidemill import bootstrap
from tidemill.errors import UnavailableError
from tidemill.executor.attendance import attend, shortage
from tidemill.requests import ExecuteRequest, parsed

logger = Logger(service="tidemill-execute")


def lambda_handler(event: object, context: LambdaContext | None) -> dict[str, int | str]:
    """Run due tasks; return the counts, and ``skipped`` where nothing was looked for.

    Raises:
        InvalidRequestError: The event asks for something else.
        UnavailableError: MongoDB failed; what it did not confirm is left to the leases.
    """
    logger.structure_logs(request_id=bootstrap.owner(context))
    life = bootstrap.remaining(context)
    request = parsed(ExecuteRequest, event)
    runtime, summoner = bootstrap.runtime(), bootstrap.summoner(context)
    report = attend(runtime, bootstrap.order(request, context), seats=bootstrap.seats(), summoner=summoner)
    logging.disable(logging.NOTSET)  # a function may have switched it off, for all
    logger.info("executed", extra={"source": request.source, **report.as_dict()})
    _warn("short_of_time", shortage(runtime.settings, life=life))
    _warn("not_summoned", None if summoner is None else summoner.listen())
    if report["leftovers"]:
        _recycle()
    if report["unknown"]:
        raise UnavailableError(f"MongoDB did not confirm the outcome of {report['unknown']} tasks")
    return report.as_dict()


def _warn(message: str, reason: str | None) -> None:
    if reason is not None:
        logger.warning(message, reason=reason)


def _recycle() -> None:
    """End the process, and with it the functions that ran past their timeout and would not stop.

    Inside the handler, so that the next invocation starts in a clean one; the outcomes are settled already.
    """
    logger.warning("recycled")
    logging.shutdown()
    with contextlib.suppress(AttributeError, OSError, ValueError):  # a function may have put anything there
        sys.stdout.flush()
    os._exit(1)
