"""The reclaim function: takes back the tasks of lost executors, each minute and when the platform reports a death."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, Final

from aws_lambda_powertools.utilities.typing import LambdaContext

from tidemill.aws import lambda_functions, logging
from tidemill.aws.metrics import Counts, Gauge, counting
from tidemill.bootstrap import deployment
from tidemill.clock import ServerClock
from tidemill.errors import TidemillError
from tidemill.executor import outcomes
from tidemill.reclaim import reclaim
from tidemill.requests.events import Source, SweepRequest, find_dead_owner, is_dropped_launch
from tidemill.requests.validation import parse_request
from tidemill.store.settle import Settlement

MARGIN = timedelta(seconds=5)
LAUNCH_TIMEOUT_SEC = 2.0
"""Limit of the wait for a launch: the first call also makes its client and its connection."""

GAUGES: Final[Mapping[Gauge, str]] = {
    "due_fresh": "due_fresh",
    "due_retry": "due_retry",
    "oldest_due_age_seconds": "oldest_due_sec",
    "dead_letters": "dead_letters",
}
"""The field of the report for each gauge."""

logger = logging.FunctionLogger(service="tidemill-reclaim", use_rfc3339=True)
logging.quiet_libraries()


@logging.without_text()
def lambda_handler(event: Any, context: LambdaContext | None) -> dict[str, Any]:  # noqa: ANN401 - two kinds of event
    """Reclaim, expire, adopt and quarantine tasks; return the counts.

    Raises:
        InvalidRequestError: The event is neither a tick nor the failure of an executor, or the context is unusable.
        TidemillError: MongoDB failed or refused something; the next tick continues.
    """
    with counting() as counts:
        try:
            logging.begin_invocation(logger, context)
            return _sweep(event, context, counts)
        except Exception as error:
            logging.log_failure(logger, error)
            raise


def _sweep(event: Any, context: LambdaContext | None, counts: Counts) -> dict[str, Any]:  # noqa: ANN401 - as above
    owner = find_dead_owner(event)
    if owner is None:
        parse_request(SweepRequest, event)
    until = lambda_functions.get_deadline(context, margin=MARGIN)
    missing, report = deployment().with_current_secret(lambda: _reclaim(owner, counts, until=until))
    _count(report, counts)
    counts.count("missing_indexes", len(missing))
    log = logger.warning if missing else logger.info
    log("reclaimed", extra={"dead_owner": owner, "missing_indexes": list(missing), **report})
    if owner is not None:
        _launch_successor(event, report)
    return report | {"missing_indexes": list(missing)}


def _reclaim(owner: str | None, counts: Counts, *, until: float) -> tuple[tuple[str, ...], dict[str, int]]:
    missing = deployment().create_missing_indexes()
    reclaim_context = replace(deployment().reclaim_context, observe=partial(_report_attempt, counts))
    return missing, reclaim(reclaim_context, until=until, dead_owner=owner)


def _report_attempt(counts: Counts, settlement: Settlement) -> None:
    counts.attempt(settlement)
    if outcomes.should_log(settlement):
        log = logger.warning if outcomes.is_failure(settlement) else logger.info
        log("attempt", extra=outcomes.log_fields(settlement))


def _count(report: Mapping[str, int], counts: Counts) -> None:
    counts.count_report(report)
    for gauge, name in GAUGES.items():
        if name in report:  # absent if MongoDB did not count
            counts.gauge(gauge, report[name])
    clock = deployment().reclaim_context.clock
    skew = clock.skew if isinstance(clock, ServerClock) else None
    if skew is not None:
        counts.gauge("clock_skew_seconds", skew.total_seconds())


def _launch_successor(event: Mapping[str, Any], report: Mapping[str, int]) -> None:
    """Launch an executor in place of the dead one, if tasks or refused executors waited for the dead one."""
    function = event["requestContext"]["functionArn"]
    # Other tasks may have waited for those of the dead executor, which are settled or due again now.
    if any(report[count] for count in ("reclaimed", "failed", "cancelled")) or _was_executor_refused():
        _launch(function, source="backlog")
    elif is_dropped_launch(event) and _is_work_left_alone(report):
        # As a tick: if Lambda drops this launch too, no launch follows, and the schedule continues.
        _launch(function, source="tick")


def _was_executor_refused() -> bool:
    """Return true if an executor found no free slot since the last one left; clear the mark."""
    try:
        return deployment().executor_slots("reclaim").clear_waiter()
    except TidemillError:  # unknown: a needless executor finds nothing to do and leaves
        return True


def _is_work_left_alone(report: Mapping[str, int]) -> bool:
    """Return true if tasks are due and every executor slot is free; false if that is unknown: the next tick comes."""
    if not any(report.get(lane) for lane in ("due_fresh", "due_retry")):
        return False
    try:
        now = deployment().reclaim_context.clock.now()
        return deployment().executor_slots("reclaim").count_free(now=now) == deployment().settings.max_executors
    except TidemillError:
        return False


def _launch(function: object, *, source: Source) -> None:
    """Start an executor of *function*, which the failure of the dead one names."""
    launcher = deployment().make_launcher(function, source=source)
    if launcher is not None and not launcher.launch(timeout_sec=LAUNCH_TIMEOUT_SEC):
        logger.warning("launch_failed", reason=launcher.last_error)
