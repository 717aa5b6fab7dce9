"""What an exception says about the attempt it ended: the rules, pure."""

from __future__ import annotations

from datetime import timedelta
from pathlib import PurePath

from tidemill.errors import MAX_RETRY_AFTER, Fail, Retry
from tidemill.model import Failure

NOT_RETRIED = frozenset({"ValidationError", "NotFoundError", "UnauthorizedError", "ForbiddenError", "SyntaxError"})
MAX_MESSAGE = 2000
MAX_WHERE = 200
MAX_CODE = 100


def classify(error: BaseException) -> Failure:
    """Describe *error* as a failure; never raises, however hostile the exception object is.

    Not retried: ``Fail``, and an exception of a class that is called, or inherits from one that is called,
    as in ``NOT_RETRIED``.
    """
    try:
        return _judged(error)
    except BaseException:  # noqa: BLE001 - a hostile object may raise anything when it is looked at, exits included
        return Failure(message="an exception that cannot be looked at", code="Exception")


def describe(error: BaseException) -> str:
    """Return ``Type: message (file:line in function)`` of the innermost frame, in storable, bounded text."""
    name = type_name(error) or "exception without a name"
    try:
        text = str(error)
    except BaseException as broken:  # noqa: BLE001 - a hostile __str__ may raise anything, exits included
        text = f"(its text cannot be had: {type_name(broken)})"
    return bounded(f"{name}: {text}" if text else name, MAX_MESSAGE - MAX_WHERE) + _where(error)


def type_name(value: object) -> str:
    """Return the name of the class of *value*, also where a metaclass says something else."""
    return str(type.__dict__["__name__"].__get__(type(value)))


def bounded(text: str, limit: int) -> str:
    """Return *text* with at most *limit* characters, surrogates and NULs made visible.

    The middle goes: the first line says what, the end often says why.
    """
    if len(text) > limit:
        tail = limit // 4
        text = f"{text[: limit - tail - 5]} ... {text[-tail:]}"
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\x00", "\\x00")[:limit]


def _judged(error: BaseException) -> Failure:
    if isinstance(error, Retry):
        return Failure(message=_said(error), code=_given_code(error), retry_after=_wait(error))
    if isinstance(error, Fail):
        return Failure(message=_said(error), code=_given_code(error), retryable=False)
    names = {base.__name__ for base in type(error).__mro__}
    return Failure(message=describe(error), code=_code(error), retryable=not names & NOT_RETRIED)


def _said(error: Retry | Fail) -> str:
    # Raised on purpose: what it says is all there is to say, and where it was raised is no news.
    return bounded(str(error), MAX_MESSAGE) or describe(error)


def _where(error: BaseException) -> str:
    frame = error.__traceback__
    if frame is None:
        return ""
    while frame.tb_next is not None:
        frame = frame.tb_next
    code = frame.tb_frame.f_code
    return bounded(f" ({PurePath(code.co_filename).name}:{frame.tb_lineno} in {code.co_name})", MAX_WHERE)


def _given_code(error: Retry | Fail) -> str:
    # Heirs may set anything, or skip our constructor.
    return bounded(str(getattr(error, "code", "")), MAX_CODE) or _code(error)


def _wait(error: Retry) -> timedelta | None:
    after = getattr(error, "after", None)
    return min(max(after, timedelta(0)), MAX_RETRY_AFTER) if isinstance(after, timedelta) else None


def _code(error: BaseException) -> str:
    return bounded(type_name(error) or "Exception", MAX_CODE)
