"""Takes back what vanished executors held: each minute, and at once when the platform reports a death."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from aws_lambda_powertools import Logger
from aws_lambda_powertools.utilities.typing import LambdaContext

from tidemill import bootstrap
from tidemill.reclaim import reclaim
from tidemill.requests import SweepRequest, dead_owner, parsed

MARGIN = timedelta(seconds=5)
PATIENCE_SEC = 2.0
"""How long to wait for an executor to be summoned: a first call makes its client and its connection."""

logger = Logger(service="tidemill-reclaim")


def lambda_handler(event: Any, context: LambdaContext | None) -> dict[str, Any]:  # noqa: ANN401 - two kinds of event
    """Reclaim, expire, adopt, quarantine; return the counts.

    Raises:
        InvalidRequestError: The event is neither a tick nor the failure of an executor.
        UnavailableError: MongoDB failed; the next tick goes on.
    """
    logger.structure_logs(request_id=bootstrap.owner(context))
    owner = dead_owner(event)
    if owner is None:
        parsed(SweepRequest, event)
    missing = bootstrap.missing_indexes()
    report = reclaim(bootstrap.keeper(), until=bootstrap.until(context, margin=MARGIN), dead_owner=owner)
    logger.info("reclaimed", extra={"dead_owner": owner, "missing_indexes": list(missing), **report})
    # Whatever has become of what it held, others waited for it to be done with that.
    has_left_any = any(report[count] for count in ("reclaimed", "failed", "cancelled"))
    if owner is not None and (has_left_any or bootstrap.turned_away()):
        _summon(event["requestContext"]["functionArn"])
    return report | {"missing_indexes": list(missing)}


def _summon(function: object) -> None:
    """Start an executor in the place of the dead one: of the same function, which its failure names."""
    summoner = bootstrap.summoner_of(function)
    if summoner is not None and not summoner.summon(patience_sec=PATIENCE_SEC):
        logger.warning("not_summoned", reason=summoner.trouble)
