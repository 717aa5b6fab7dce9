"""The archive function: moves failed tasks to the dead letters, and exports dead letters to S3."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta
from typing import Any

from aws_lambda_powertools.utilities.typing import LambdaContext

from tidemill.aws import lambda_functions, logging
from tidemill.aws.metrics import Counts, counting
from tidemill.bootstrap import deployment
from tidemill.dead_letters.archive import ArchiveError, Report, archive
from tidemill.errors import CredentialsError
from tidemill.requests.events import SweepRequest
from tidemill.requests.validation import parse_request

MARGIN = timedelta(seconds=40)

logger = logging.FunctionLogger(service="tidemill-archive", use_rfc3339=True)
logging.quiet_libraries()


@logging.without_text()
def lambda_handler(event: object, context: LambdaContext | None) -> dict[str, Any]:
    """Archive failed tasks; return the counts.

    Raises:
        InvalidRequestError: The event asks for something else, or the context is unusable.
        TidemillError: MongoDB failed or refused something; the next tick continues.
    """
    with counting() as counts:
        try:
            logging.begin_invocation(logger, context)
            parse_request(SweepRequest, event)
            until = lambda_functions.get_deadline(context, margin=MARGIN)
            report = deployment().with_current_secret(lambda: _archive(until=until))
            return _log_report(report, counts)
        except ArchiveError as error:
            _log_report(error.report, counts, reason=str(error))
            raise error.errors[0] from None
        except Exception as error:
            logging.log_failure(logger, error)
            raise


def _archive(*, until: float) -> Report:
    try:
        return archive(deployment().archive_context, until=until)
    except ArchiveError as error:
        if isinstance(error.errors[0], CredentialsError):
            raise error.errors[0] from None
        raise


def _log_report(report: Report, counts: Counts, **reason: str) -> dict[str, Any]:
    fields = asdict(report)
    counts.count_report(fields)
    log = logger.warning if reason or report.export_error is not None else logger.info
    log("archived", extra=fields | reason)
    return fields
