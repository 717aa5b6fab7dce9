"""Takes back what vanished executors held: each minute, and at once when the platform reports a death."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, Final

from aws_lambda_powertools import Logger
from aws_lambda_powertools.utilities.typing import LambdaContext

from tidemill import bootstrap, trouble
from tidemill.clock import ServerClock
from tidemill.errors import TidemillError, UnavailableError
from tidemill.executor import attempts
from tidemill.metrics import Counts, Gauge, counting
from tidemill.reclaim import reclaim
from tidemill.requests import SweepRequest, dead_owner, parsed
from tidemill.settlement import Settlement

MARGIN = timedelta(seconds=5)
PATIENCE_SEC = 2.0
"""How long to wait for an executor to be summoned: a first call makes its client and its connection."""

GAUGES: Final[Mapping[Gauge, str]] = {
    "due_fresh": "due_fresh",
    "due_retry": "due_retry",
    "oldest_due_age_seconds": "oldest_due_sec",
    "dead_letters": "dead_letters",
}
"""What the report calls what is told as a metric."""

logger = Logger(service="tidemill-reclaim", use_rfc3339=True)
trouble.hush_libraries()


@trouble.without_text()
def lambda_handler(event: Any, context: LambdaContext | None) -> dict[str, Any]:  # noqa: ANN401 - two kinds of event
    """Reclaim, expire, adopt, quarantine; return the counts.

    Raises:
        InvalidRequestError: The event is neither a tick nor the failure of an executor.
        TidemillError: MongoDB failed, or refused something; the next tick goes on.
    """
    logger.structure_logs(request_id=bootstrap.owner(context))
    with counting() as counts:
        try:
            return _swept(event, context, counts)
        except Exception as error:
            level = logger.warning if isinstance(error, UnavailableError) else logger.error
            level("failed", extra=trouble.told(error))
            raise


def _swept(event: Any, context: LambdaContext | None, counts: Counts) -> dict[str, Any]:  # noqa: ANN401 - as above
    owner = dead_owner(event)
    if owner is None:
        parsed(SweepRequest, event)
    missing, report = bootstrap.with_current_secret(lambda: _reclaimed(owner, context, counts))
    _count(report, counts)
    tell = logger.warning if missing else logger.info
    tell("reclaimed", extra={"dead_owner": owner, "missing_indexes": list(missing), **report})
    # Whatever has become of what it held, others waited for it to be done with that.
    has_left_any = any(report[count] for count in ("reclaimed", "failed", "cancelled"))
    if owner is not None and (has_left_any or _was_turned_away()):
        _summon(event["requestContext"]["functionArn"])
    return report | {"missing_indexes": list(missing)}


def _was_turned_away() -> bool:
    try:
        return bootstrap.turned_away()
    except TidemillError:  # nobody knows: one executor too many finds nothing to do, and leaves
        return True


def _reclaimed(
    owner: str | None, context: LambdaContext | None, counts: Counts
) -> tuple[tuple[str, ...], dict[str, int]]:
    missing = bootstrap.missing_indexes()
    keeper = replace(bootstrap.keeper(), observe=partial(_tell, counts))
    return missing, reclaim(keeper, until=bootstrap.until(context, margin=MARGIN), dead_owner=owner)


def _tell(counts: Counts, settlement: Settlement) -> None:
    counts.attempt(settlement)
    if attempts.is_told(settlement):
        level = logger.warning if attempts.is_failure(settlement) else logger.info
        level("attempt", extra=attempts.line(settlement))


def _count(report: Mapping[str, int], counts: Counts) -> None:
    counts.reported(report)
    for gauge, name in GAUGES.items():
        if name in report:  # else MongoDB did not count
            counts.gauge(gauge, report[name])
    clock = bootstrap.keeper().clock
    skew = clock.skew if isinstance(clock, ServerClock) else None
    if skew is not None:
        counts.gauge("clock_skew_seconds", skew.total_seconds())


def _summon(function: object) -> None:
    """Start an executor in the place of the dead one: of the same function, which its failure names."""
    summoner = bootstrap.summoner_of(function)
    if summoner is not None and not summoner.summon(patience_sec=PATIENCE_SEC):
        logger.warning("not_summoned", reason=summoner.trouble)
