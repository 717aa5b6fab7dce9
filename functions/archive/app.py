"""Moves failed tasks to the dead letters, and copies these to S3."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import Any

from aws_lambda_powertools import Logger
from aws_lambda_powertools.utilities.typing import LambdaContext

from tidemill import bootstrap, trouble
from tidemill.archive import ArchiveError, Report, archive
from tidemill.errors import CredentialsError, UnavailableError
from tidemill.metrics import Counts, counting
from tidemill.requests import SweepRequest, parsed

MARGIN = timedelta(seconds=40)

logger = Logger(service="tidemill-archive", use_rfc3339=True)
trouble.hush_libraries()


@trouble.without_text()
def lambda_handler(event: object, context: LambdaContext | None) -> dict[str, Any]:
    """Archive; return the counts.

    Raises:
        InvalidRequestError: The event asks for something else.
        TidemillError: MongoDB failed, or refused something; the next tick goes on.
    """
    logger.structure_logs(request_id=bootstrap.owner(context))
    with counting() as counts:
        try:
            parsed(SweepRequest, event)
            return _log(bootstrap.with_current_secret(lambda: _archived(context)), counts)
        except ArchiveError as error:
            _log(error.report, counts, reason=str(error))
            raise error.troubles[0] from None
        except Exception as error:
            level = logger.warning if isinstance(error, UnavailableError) else logger.error
            level("failed", extra=trouble.told(error))
            raise


def _archived(context: LambdaContext | None) -> Report:
    try:
        return archive(bootstrap.archives(), until=bootstrap.until(context, margin=MARGIN))
    except ArchiveError as error:
        if isinstance(error.troubles[0], CredentialsError):
            raise error.troubles[0] from None
        raise


def _log(report: Report, counts: Counts, **reason: str) -> dict[str, Any]:
    told = asdict(report)
    counts.reported(told)
    tell = logger.warning if reason or report.export_trouble is not None else logger.info
    tell("archived", extra=told | reason)
    return told
