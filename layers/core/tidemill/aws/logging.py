"""Log lines of the functions: their loggers and their fields."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from aws_lambda_powertools import Logger
from aws_lambda_powertools.logging.formatter import LambdaPowertoolsFormatter
from aws_lambda_powertools.utilities.typing import LambdaContext

from tidemill.aws import lambda_functions
from tidemill.errors import InvalidRequestError, TidemillError, UnavailableError, UnexpectedError

MAX_FRAMES: Final = 5
"""Number of the innermost frames in the stack of a logged error."""

_LEVEL_NAMES: Final = {
    logging.DEBUG: "DEBUG",
    logging.INFO: "INFO",
    logging.WARNING: "WARNING",
    logging.ERROR: "ERROR",
}
"""Levels as queries of the log name them: `logging.addLevelName` changes the names of the process."""


class _FunctionLogger(logging.Logger):
    """Makes records that a factory of records and level names of task code do not change."""

    def makeRecord(self, *args: Any) -> logging.LogRecord:  # noqa: ANN401, N802 - logging's
        """Return a record of the standard class; `logging` passes all arguments by position."""
        *given, extra, stack = args
        record = logging.LogRecord(*(*given, stack))
        record.levelname = _LEVEL_NAMES.get(record.levelno, record.levelname)
        vars(record).update(extra or {})
        return record


_MANAGER: Final = logging.Manager(logging.RootLogger(logging.WARNING))
"""Loggers of the functions. ``logging.config``, ``basicConfig`` and ``disable`` change those of the process only."""

_MANAGER.setLoggerClass(_FunctionLogger)


class FunctionLogger(Logger):
    """Logger of a Lambda function, out of reach of whatever task code and libraries configure."""

    def _get_logger(self) -> logging.Logger:
        return _MANAGER.getLogger(self.service)


def begin_invocation(logger: Logger, context: LambdaContext | None) -> None:
    """Give the lines of *logger* the request id of *context*, in place of an earlier one.

    Raises:
        InvalidRequestError: *context* has no request id.
    """
    try:
        logger.structure_logs(request_id=lambda_functions.get_owner(context))
    except InvalidRequestError:
        logger.structure_logs()
        raise


def error_fields(error: BaseException) -> dict[str, str]:
    """Return the fields of a line about *error*.

    Texts of Tidemill's errors quote no data, except `InvalidRequestError`: it names fields, which callers choose.
    Texts of other errors may hold any data, so the line has their stack instead.
    """
    kind = {"error_type": type(error).__name__}
    if isinstance(error, InvalidRequestError):
        return kind
    if isinstance(error, TidemillError):
        return kind | {"reason": str(error)}
    return kind | {"stack": "".join(traceback.format_tb(error.__traceback__, limit=-MAX_FRAMES))}


def log_failure(logger: Logger, error: BaseException, **fields: object) -> None:
    """Log that a function failed: as a warning if MongoDB did not answer, which a repeat mends."""
    log = logger.warning if isinstance(error, UnavailableError) else logger.error
    log("failed", extra=error_fields(error) | fields, stacklevel=3)  # the line of the caller


def quiet_libraries() -> None:
    """Let libraries log warnings and errors only, as Python does by default: Lambda's JSON format lowers the level."""
    logging.getLogger().setLevel(logging.WARNING)
    logging.getLogger("aws_lambda_powertools").setLevel(
        logging.WARNING
    )  # with POWERTOOLS_DEBUG it would log every payload


@contextmanager
def without_text() -> Iterator[None]:
    """Replace exceptions of other packages: Lambda logs the text of an exception that a handler raises.

    Raises:
        UnexpectedError: Another package raised an exception; this has its class and its stack.
    """
    try:
        yield
    except TidemillError:
        raise
    except Exception as error:  # noqa: BLE001 - any exception is raised again, without its text
        raise UnexpectedError(type(error).__name__).with_traceback(error.__traceback__) from None


class NewlineFormatter(LambdaPowertoolsFormatter):
    """Begins lines with a newline: a task function may have printed half a line, which would spoil the next line.

    `tidemill.aws.metrics.counting` has the price of the empty line. An invocation that claimed nothing needs no
    newline, unless it is the first: modules may print while they are imported.
    """

    _is_first = True

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of *record*."""
        is_idle = getattr(record, "claimed", None) == 0 and not self._is_first
        self._is_first = False
        return super().format(record) if is_idle else "\n" + super().format(record)
