"""The executor: claims due tasks and runs them until none is left or its time is up."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import IO, Final, NoReturn, cast

from aws_lambda_powertools import Logger
from aws_lambda_powertools.utilities.typing import LambdaContext

from tidemill import bootstrap, trouble
from tidemill.errors import TidemillError, UnavailableError
from tidemill.executor import Report, attempts
from tidemill.executor.attendance import attend, shortage
from tidemill.metrics import Counts, counting
from tidemill.output import Apart, Output
from tidemill.requests import ExecuteRequest, parsed
from tidemill.settlement import Settlement
from tidemill.slots.leftovers import LEFTOVERS

RECURSION_LIMIT: Final = sys.getrecursionlimit()


logger = Logger(service="tidemill-execute", stream=cast("IO[str]", Output()), logger_formatter=Apart(use_rfc3339=True))
trouble.hush_libraries()


def lambda_handler(event: object, context: LambdaContext | None) -> dict[str, int | str]:
    """Run due tasks; return the counts, and ``skipped`` where nothing was looked for.

    The process ends inside the handler where functions still run that nobody waits for, since others may run the same
    tasks by then, and where it failed in a way that may fail the next invocation, too.

    Raises:
        InvalidRequestError: The event asks for something else.
        UnavailableError: MongoDB failed; what it did not confirm is left to the leases.
    """
    with counting(apart=True) as counts:
        return _executed(event, context, counts)


def _executed(event: object, context: LambdaContext | None, counts: Counts) -> dict[str, int | str]:
    try:
        report = _attended(event, context, counts)
    except BaseException as error:
        if not isinstance(error, TidemillError) or LEFTOVERS.task_ids():
            _recycle(counts, error)
        level = logger.warning if isinstance(error, UnavailableError) else logger.error
        _log(level, "failed", **trouble.told(error))
        raise
    unsure = _unsure(report)
    if report.spent or LEFTOVERS.task_ids():
        _recycle(counts, unsure)
    if unsure is not None:
        raise unsure
    return report.as_dict()


def _unsure(report: Report) -> UnavailableError | None:
    unknown = report["unknown"]
    return UnavailableError(f"MongoDB did not confirm the outcome of {unknown} tasks") if unknown else None


def _attended(event: object, context: LambdaContext | None, counts: Counts) -> Report:
    logger.structure_logs(request_id=bootstrap.owner(context))
    life = bootstrap.remaining(context)
    request = parsed(ExecuteRequest, event)
    summoner = bootstrap.summoner(context)

    def work() -> Report:
        runtime = replace(bootstrap.runtime(), observe=partial(_tell, counts), watch=counts.reported)
        return attend(runtime, bootstrap.order(request, context), seats=bootstrap.seats(), summoner=summoner)

    try:
        report = bootstrap.with_current_secret(work)
    finally:
        _restore()
    level = logger.warning if report["unknown"] else logger.info
    _log(level, "executed", source=request.source, **report.as_dict())
    _warn("short_of_time", shortage(bootstrap.runtime().settings, life=life))
    _warn("not_started", report.not_started)
    _warn("not_summoned", None if summoner is None else summoner.listen())
    return report


def _tell(counts: Counts, settlement: Settlement) -> None:
    counts.attempt(settlement)
    if attempts.is_told(settlement):
        logging.disable(logging.NOTSET)  # some function may have
        level = logger.warning if attempts.is_failure(settlement) else logger.info
        _log(level, "attempt", **attempts.line(settlement))


def _restore() -> None:
    """Undo what a function may have set for all: what is still to be logged, and the next invocation, need it."""
    logging.disable(logging.NOTSET)
    sys.setrecursionlimit(RECURSION_LIMIT)


def _warn(message: str, reason: str | None) -> None:
    if reason is not None:
        _log(logger.warning, message, reason=reason)


def _log(level: Callable[..., None], message: str, **extra: object) -> None:
    """Log a line, or do without it: a function may have put anything in the place of handlers and streams."""
    with contextlib.suppress(Exception):
        level(message, extra=extra)


def _recycle(counts: Counts, error: BaseException | None = None) -> NoReturn:
    """End the process, whatever state it is in; the platform starts a clean one for the next invocation.

    An *error* that ended the invocation stays one, to the metrics and their alarm, too.
    """
    try:
        if error is None:
            counts.count("recycled")
        counts.emit()
        if error is None:
            _log(logger.warning, "recycled")
        else:
            _log(logger.error, "recycled", **trouble.told(error))
        sys.stdout.flush()  # each line of the log has been
    finally:
        os._exit(1)
