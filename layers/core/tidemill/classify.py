"""What an exception says about the attempt it ended: the rules, pure."""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from pathlib import PurePath
from types import CodeType
from typing import Final, TypeAlias

from tidemill.errors import MAX_RETRY_AFTER, Fail, Retry, Snooze
from tidemill.model import EARLIEST, LATEST, Failure, Snoozed

NOT_RETRIED = frozenset({"ValidationError", "NotFoundError", "UnauthorizedError", "ForbiddenError", "SyntaxError"})
MAX_MESSAGE = 2000
MAX_WHERE = 200
MAX_CODE = 100
MIN_SNOOZE = timedelta(seconds=1)
"""A snooze costs no attempt, so one that ended at once would go round for as long as its executor lives."""

_NOT_WRITTEN_BY_USERS: Final = (
    "<",  # frozen modules, and code that was generated
    *(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib")),
    f"{PurePath(__file__).parent}/",
)
_INSTALLED: Final = ("/site-packages/", "/dist-packages/")

Kind: TypeAlias = type[BaseException] | str
"""An exception class, or the name of one: a name needs no import and holds for every class so called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a registration adds to ``NOT_RETRIED``: classes that end a task, and classes that do not."""

    fail_on: frozenset[Kind] = frozenset()
    retry_on: frozenset[Kind] = frozenset()


COMMON: Final = Rules()


def classify(error: BaseException, rules: Rules = COMMON) -> Failure:
    """Describe *error* as a failure; never raises, however hostile the exception object is.

    ``Retry`` and ``Fail`` decide for themselves; of any other exception `is_retried` says. See `asked_snooze` for
    what is no failure.
    """
    try:
        return _judged(error, rules)
    except BaseException:  # noqa: BLE001 - a hostile object may raise anything when it is looked at, exits included
        return Failure(message="an exception that cannot be looked at", code=_code(error))


def is_retried(kind: type[BaseException], rules: Rules = COMMON) -> bool:
    """Tell whether an exception of class *kind* is tried again.

    From the class along its bases, the first that *rules* or ``NOT_RETRIED`` know decides, *rules* first.
    """
    for base in type.__dict__["__mro__"].__get__(kind):
        name = _class_name(base)
        known = {base, name}
        if known & rules.fail_on:
            return False
        if known & rules.retry_on:
            return True
        if name in NOT_RETRIED:
            return False
    return True


def asked_snooze(error: BaseException) -> datetime | timedelta | None:
    """Return when *error* asks to be run again, or ``None`` where it is no `Snooze`; never raises.

    A plain moment in UTC, or a plain span, within the calendar. One that was changed to say nonsense is none: then
    it is a failure like any other exception.
    """
    if not issubclass(type(error), Snooze):
        return None
    try:
        return _plain(getattr(error, "until", None))
    except BaseException:  # noqa: BLE001 - a hostile heir may raise anything when it is looked at, exits included
        return None


def snoozed(until: datetime | timedelta, *, now: datetime) -> Snoozed:
    """Return the snooze that was asked for, within the calendar and never shorter than ``MIN_SNOOZE``."""
    if isinstance(until, timedelta):
        return Snoozed(until=now + min(max(until, MIN_SNOOZE), LATEST - now))
    return Snoozed(until=min(max(until, now + MIN_SNOOZE), LATEST))


def describe(error: BaseException) -> str:
    """Return ``Type: message (file:line in function)`` in storable, bounded text.

    The place is that of the innermost frame of the user's own code; where there is none, of the innermost frame.
    """
    name = type_name(error) or "exception without a name"
    try:
        text = str.__str__(str(error))  # plain: an heir of str may do anything
    except BaseException as broken:  # noqa: BLE001 - a hostile __str__ may raise anything, exits included
        text = f"(its text cannot be had: {type_name(broken)})"
    return bounded(f"{name}: {text}" if text else name, MAX_MESSAGE - MAX_WHERE) + _where(error)


def located(error: BaseException) -> str:
    """Return ``Type (file:line in function)`` as `describe` does: for where the words of others may hold anything."""
    return bounded(type_name(error) or "exception without a name", MAX_CODE) + _where(error)


def type_name(value: object) -> str:
    """Return the name of the class of *value*, also where a metaclass says something else."""
    return _class_name(type(value))


def bounded(text: str, limit: int) -> str:
    """Return *text* with at most *limit* characters, surrogates and NULs made visible.

    The middle goes: the first line says what, the end often says why.
    """
    text = str.__str__(text)  # plain: an heir of str may do anything
    if len(text) > limit:
        tail = limit // 4
        text = f"{text[: limit - tail - 5]} ... {text[-tail:]}"
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\x00", "\\x00")[:limit]


def _class_name(kind: type) -> str:
    return str(type.__dict__["__name__"].__get__(kind))


def _judged(error: BaseException, rules: Rules) -> Failure:
    if isinstance(error, Retry):
        return Failure(message=_said(error), code=_given_code(error), retry_after=_wait(error))
    if isinstance(error, Fail):
        return Failure(message=_said(error), code=_given_code(error), retryable=False)
    return Failure(message=describe(error), code=_code(error), retryable=is_retried(type(error), rules))


def _said(error: Retry | Fail) -> str:
    # Raised on purpose: what it says is all there is to say, and where it was raised is no news.
    return bounded(str(error), MAX_MESSAGE) or describe(error)


def _where(error: BaseException) -> str:
    frame, innermost, own = error.__traceback__, None, None
    while frame is not None:
        innermost = frame
        if _is_own(frame.tb_frame.f_code):
            own = frame
        frame = frame.tb_next
    place = own or innermost
    if place is None:
        return ""
    code = place.tb_frame.f_code
    return bounded(f" ({PurePath(code.co_filename).name}:{place.tb_lineno} in {code.co_name})", MAX_WHERE)


def _is_own(code: CodeType) -> bool:
    """Tell whether *code* is the user's: neither Python's nor Tidemill's, nor of an installed package."""
    file = code.co_filename
    return not file.startswith(_NOT_WRITTEN_BY_USERS) and not any(folder in file for folder in _INSTALLED)


def _given_code(error: Retry | Fail) -> str:
    # Heirs may set anything, or skip our constructor.
    return bounded(str(getattr(error, "code", "")), MAX_CODE) or _code(error)


def _wait(error: Retry) -> timedelta | None:
    after = getattr(error, "after", None)
    return min(max(_span(after), timedelta(0)), MAX_RETRY_AFTER) if isinstance(after, timedelta) else None


def _plain(until: object) -> datetime | timedelta | None:
    """Return *until* as a value of the class itself: heirs of it may do anything when they are reckoned with."""
    if isinstance(until, timedelta):
        return min(_span(until), LATEST - EARLIEST)
    if not isinstance(until, datetime) or (offset := until.utcoffset()) is None:
        return None
    clock = (until.hour, until.minute, until.second, until.microsecond)
    there = datetime(until.year, until.month, until.day, *clock, tzinfo=timezone(_span(offset)))
    return min(max(there, EARLIEST), LATEST).astimezone(UTC)


def _span(span: timedelta) -> timedelta:
    return timedelta(span.days, span.seconds, span.microseconds)


def _code(error: BaseException) -> str:
    return bounded(type_name(error) or "Exception", MAX_CODE)
