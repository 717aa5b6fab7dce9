"""The execute function: claims due tasks and runs them until none is left or its time is up."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import IO, Final, NoReturn, cast

from aws_lambda_powertools.utilities.typing import LambdaContext

from tidemill.aws import lambda_functions
from tidemill.aws import logging as aws_logging
from tidemill.aws.logging import FunctionLogger, NewlineFormatter
from tidemill.aws.metrics import EMIT_INTERVAL_SEC, Counts, counting
from tidemill.bootstrap import deployment
from tidemill.errors import TidemillError, UnavailableError
from tidemill.executor import outcomes
from tidemill.executor.context import ExecutionOptions, Report
from tidemill.executor.invocation import describe_short_timeout, run_invocation
from tidemill.executor.lifetime import TIMING, Timing
from tidemill.model import LANES
from tidemill.module_faults import describe_faults
from tidemill.requests.events import ExecuteRequest
from tidemill.requests.validation import parse_request
from tidemill.runner.output import Output
from tidemill.runner.resources import close_process_resources
from tidemill.runner.worker_thread import ABANDONED_THREADS
from tidemill.store.settle import Settlement

RECURSION_LIMIT: Final = sys.getrecursionlimit()

CLOSE_TIMEOUT_SEC: Final = 1.0
"""Time limit to close resources before the process ends: a part of the time that is kept for the report."""


logger = FunctionLogger(
    service="tidemill-execute", stream=cast("IO[str]", Output()), logger_formatter=NewlineFormatter(use_rfc3339=True)
)
aws_logging.quiet_libraries()


def lambda_handler(
    event: object,
    context: LambdaContext | None,
    *,
    timing: Timing = TIMING,
    on_recycle: Callable[[BaseException | None], object] | None = None,
    emit_interval_sec: float = EMIT_INTERVAL_SEC,
) -> dict[str, int | str]:
    """Run due tasks; return the counts, and ``skipped`` if the function looked for no task.

    The process ends inside the handler if abandoned functions still run: other executors may run their tasks by then.
    It also ends after an error that the next invocation may have too.

    Args:
        event: The request, or nothing.
        context: The Lambda context.
        timing: The times of the executor.
        on_recycle: Called instead of the end of the process, with the error of the invocation.
        emit_interval_sec: Limit of the time that metrics wait in memory.

    Raises:
        InvalidRequestError: The event asks for something else, or the context is unusable.
        UnavailableError: MongoDB failed. Unconfirmed outcomes are left to the leases.
    """
    with counting(apart=True, emit_interval_sec=emit_interval_sec) as counts:
        on_recycle = on_recycle or partial(_recycle_process, counts)
        return _execute(event, context, counts, timing=timing, on_recycle=on_recycle)


def _execute(
    event: object,
    context: LambdaContext | None,
    counts: Counts,
    *,
    timing: Timing,
    on_recycle: Callable[[BaseException | None], object],
) -> dict[str, int | str]:
    try:
        report = _run_tasks(event, context, counts, timing)
    except BaseException as error:
        if not isinstance(error, TidemillError) or ABANDONED_THREADS.task_ids():
            on_recycle(error)
        with contextlib.suppress(Exception):  # as in `_log`
            aws_logging.log_failure(logger, error)
        raise
    unconfirmed = _find_unconfirmed(report)
    if report.spent or ABANDONED_THREADS.task_ids():
        on_recycle(unconfirmed)
    if unconfirmed is not None:
        raise unconfirmed
    return report.as_dict()


def _find_unconfirmed(report: Report) -> UnavailableError | None:
    unknown = report["unknown"]
    return UnavailableError(f"MongoDB did not confirm the outcome of {unknown} tasks") if unknown else None


def _run_tasks(event: object, context: LambdaContext | None, counts: Counts, timing: Timing) -> Report:
    aws_logging.begin_invocation(logger, context)
    lifetime = lambda_functions.get_remaining(context)
    request = parse_request(ExecuteRequest, event)
    launcher = None
    if context is not None and lambda_functions.is_in_lambda():  # a context made by hand may have no ARN
        launcher = deployment().make_launcher(getattr(context, "invoked_function_arn", None))

    def run() -> Report:
        warm = deployment()
        warm.forget_failed_imports()
        faults = warm.runtime.faults
        counts.count("registration_faults", len(faults))
        _warn("registration_faults", describe_faults(faults) or None)
        observe = partial(_report_attempt, counts)
        runtime = replace(warm.runtime, observe=observe, watch=counts.count_report, timing=timing)
        return run_invocation(
            runtime,
            build_options(request, context),
            executor_slots=warm.executor_slots("execute"),
            launcher=launcher,
        )

    try:
        report = deployment().with_current_secret(run)
    finally:
        _restore_process()
    level = logger.warning if report["unknown"] else logger.info
    _log(level, "executed", source=request.source, **report.as_dict())
    _warn("timeout_too_short", describe_short_timeout(deployment().runtime.settings, life=lifetime))
    _warn("task_not_started", report.not_started)
    _warn("launch_failed", None if launcher is None else launcher.poll())
    return report


def build_options(request: ExecuteRequest, context: LambdaContext | None) -> ExecutionOptions:
    """Return the execution options that *request* gives this invocation."""
    return ExecutionOptions(
        owner=lambda_functions.get_owner(context),
        remaining=lambda_functions.get_remaining(context),
        source=request.source,
        queues=tuple(request.queues),
        lanes=LANES if request.lane is None else (request.lane,),
        selection=request.selection,
        concurrency=request.concurrency,
        batch_size=request.batch_size,
    )


def _report_attempt(counts: Counts, settlement: Settlement) -> None:
    counts.attempt(settlement)
    if outcomes.should_log(settlement):
        level = logger.warning if outcomes.is_failure(settlement) else logger.info
        _log(level, "attempt", **outcomes.log_fields(settlement))


def _restore_process() -> None:
    """Undo process-wide changes of task functions, for the following log lines and the next invocation."""
    logging.disable(logging.NOTSET)
    sys.setrecursionlimit(RECURSION_LIMIT)


def _warn(message: str, reason: str | None) -> None:
    if reason is not None:
        _log(logger.warning, message, reason=reason)


def _log(level: Callable[..., None], message: str, **extra: object) -> None:
    """Log a line if possible: a task function may have replaced handlers and streams."""
    with contextlib.suppress(Exception):
        level(message, extra=extra)


def _recycle_process(counts: Counts, error: BaseException | None) -> NoReturn:
    """End the process in any state; the platform starts a new one for the next invocation.

    An *error* that ended the invocation counts as that error in metrics and alarms, not as a recycling.
    """
    try:
        if error is None:
            counts.count("recycled")
        counts.emit()
        if error is None:
            _log(logger.warning, "recycled")
        else:
            _log(logger.error, "recycled", **aws_logging.error_fields(error))
        sys.stdout.flush()  # log lines are flushed already
        close_process_resources(timeout_sec=CLOSE_TIMEOUT_SEC)
    finally:
        os._exit(1)
