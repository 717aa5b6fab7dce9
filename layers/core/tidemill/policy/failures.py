"""Failures: the failure that an exception means, with its causes. Pure."""

from __future__ import annotations

import sysconfig
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from pathlib import PurePath
from types import CodeType
from typing import Final, TypeAlias

from tidemill.errors import MAX_RETRY_AFTER, Fail, Retry, Snooze
from tidemill.model import EARLIEST, LATEST, MAX_DELAY, Failure, Snoozed
from tidemill.policy.fingerprint import CAUSED_BY, fold_message

NOT_RETRIED = frozenset({"ValidationError", "NotFoundError", "UnauthorizedError", "ForbiddenError", "SyntaxError"})

MAX_MESSAGE_CHARS = 2000
MAX_LOCATION_CHARS = 200
MAX_NOTE_CHARS: Final = 200
"""Characters of each part of a note in the execution log: the error, and the note of the function."""

MAX_CAUSES: Final = 3
MAX_CAUSE_CHARS: Final = 300
MAX_CAUSES_CHARS: Final = 1000
MAX_LISTED_CAUSES: Final = 100
"""Causes that are looked at: a group may have any number of members."""

MAX_CODE_CHARS = 100
MIN_SNOOZE = timedelta(seconds=1)
"""A snooze spends no attempt: without a minimum, an executor could claim one task again and again."""

Kind: TypeAlias = type[BaseException] | str
"""An exception class or a class name. A name needs no import and matches every class of that name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Exceptions beside ``NOT_RETRIED``: ``fail_on`` end a task, ``retry_on`` are retried."""

    fail_on: frozenset[Kind] = frozenset()
    retry_on: frozenset[Kind] = frozenset()


COMMON: Final = Rules()


def classify(error: BaseException, rules: Rules = COMMON) -> Failure:
    """Return the failure that *error* means; never raises, not even for a hostile exception object.

    ``Retry`` and ``Fail`` carry their own decision; `is_retried` decides about all other exceptions. A `Snooze` is
    no failure; the caller handles it before.
    """
    try:
        return _describe_failure(find_single(error), rules)
    except BaseException:  # noqa: BLE001 - attributes of a hostile object may raise anything, exits included
        return Failure(message="the exception raised another one when its text was read", code=_get_code(error))


def is_retried(kind: type[BaseException], rules: Rules = COMMON) -> bool:
    """Return True if a task is retried after an exception of class *kind*.

    The search goes from the class along its bases. The first class in *rules* or ``NOT_RETRIED`` decides; *rules*
    come first.
    """
    for base in type.__dict__["__mro__"].__get__(kind):
        name = _get_class_name(base)
        known = {base, name}
        if known & rules.fail_on:
            return False
        if known & rules.retry_on:
            return True
        if name in NOT_RETRIED:
            return False
    return True


def find_single(error: BaseException) -> BaseException:
    """Return the only member of an exception group, which decides in its place, or *error* itself.

    ``asyncio.TaskGroup`` raises a group even if only one of its tasks has failed.
    """
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        [error] = error.exceptions
    return error


def find_snooze_request(error: BaseException) -> datetime | timedelta | None:
    """Return the time or the delay that *error* asks for, or ``None`` if it is no `Snooze`; never raises.

    The value is a plain UTC datetime or a plain timedelta, within the calendar. The result is also ``None`` for a
    `Snooze` with an unusable ``until``: it is a failure like any other exception.
    """
    try:
        error = find_single(error)
        return _to_plain(getattr(error, "until", None)) if issubclass(type(error), Snooze) else None
    except BaseException:  # noqa: BLE001 - attributes of a hostile subclass may raise anything, exits included
        return None


def plan_snooze(until: datetime | timedelta, *, now: datetime) -> Snoozed:
    """Return the snooze until *until*: from ``MIN_SNOOZE`` to ``MAX_DELAY`` after *now*."""
    delay = until if isinstance(until, timedelta) else until - now
    return Snoozed(until=now + min(max(delay, MIN_SNOOZE), MAX_DELAY))


def describe(error: BaseException) -> str:
    """Return ``Type: message (file:line in function)``, with notes and causes, in storable, bounded text.

    The location is the innermost frame of the user's code, or the innermost frame if none is the user's. The causes
    are the members of an exception group, ``raise ... from``, and the exception that was being handled.
    """
    causes = _describe_causes(error, _list_causes)
    return _describe_alone(error, MAX_MESSAGE_CHARS - len(causes)) + causes


def describe_without_causes(error: BaseException) -> str:
    """Return ``Type: message (file:line in function)``, for exceptions whose causes may contain secrets."""
    return _describe_alone(error, MAX_MESSAGE_CHARS)


def describe_without_message(error: BaseException) -> str:
    """Return ``Type (file:line in function)``, for exceptions whose message may contain secrets."""
    return truncate_text(type_name(error) or "exception without a name", MAX_CODE_CHARS) + _describe_location(error)


def type_name(value: object) -> str:
    """Return the name of the class of *value*; a metaclass cannot change it."""
    return _get_class_name(type(value))


def truncate_text(text: str, limit: int) -> str:
    """Return *text* in at most *limit* characters, with surrogates and NULs escaped.

    The middle is cut out: the beginning of a message names the error, the end often the cause.
    """
    text = str.__str__(text)  # a plain str: a subclass of str may do anything
    if len(text) > limit:
        tail = limit // 4
        text = f"{text[: limit - tail - 5]} ... {text[-tail:]}"
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\x00", "\\x00")[:limit]


_NOT_WRITTEN_BY_USERS: Final = (
    "<",  # frozen modules and generated code
    *(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib")),
    f"{PurePath(__file__).parents[1]}/",
)
_INSTALLED: Final = ("/site-packages/", "/dist-packages/")


def _describe_alone(error: BaseException, limit: int) -> str:
    name = type_name(error) or "exception without a name"
    try:
        text = str.__str__(str(error))  # a plain str: a subclass of str may do anything
    except BaseException as broken:  # noqa: BLE001 - a hostile __str__ may raise anything, exits included
        text = f"(its text cannot be read: {type_name(broken)})"
    place = _describe_location(error)
    text = f"{name}: {text}" if text else name
    return truncate_text("; ".join((text, *_list_notes(error))), limit - len(place)) + place


def _list_notes(error: BaseException) -> list[str]:
    notes = getattr(error, "__notes__", None)
    return [note for note in notes if type(note) is str][:MAX_CAUSES] if type(notes) is list else []


def _describe_causes(error: BaseException, list_causes: Callable[[BaseException], list[BaseException]]) -> str:
    """Return the distinct causes of *error*, each after `CAUSED_BY`; those of a group in an order without chance."""
    try:
        found = [_describe_alone(cause, MAX_CAUSE_CHARS) for cause in list_causes(error)]
        by_reason: dict[str, str] = {}
        for text in found:
            by_reason.setdefault(fold_message(text), text)
    except BaseException:  # noqa: BLE001 - attributes of a hostile object may raise anything, exits included
        return ""
    texts = (
        [by_reason[key] for key in sorted(by_reason)]
        if isinstance(error, BaseExceptionGroup)
        else [*by_reason.values()]
    )
    if len(texts) > MAX_CAUSES:
        # The last cause of a chain is the first that happened, and often the only one that differs.
        texts = [*texts[: MAX_CAUSES - 1], f"{len(texts) - MAX_CAUSES} more", texts[-1]]
    return truncate_text("".join(CAUSED_BY + text for text in texts), MAX_CAUSES_CHARS)


def _list_causes(error: BaseException) -> list[BaseException]:
    """Return the causes of *error* and theirs, the nearest first; groups are replaced by their members."""
    found: dict[int, BaseException] = {}
    waiting = deque(_list_direct_causes(error))
    while waiting and len(found) < MAX_LISTED_CAUSES:
        cause = waiting.popleft()
        if id(cause) not in found and cause is not error:
            found[id(cause)] = cause
            waiting.extend(_list_direct_causes(cause))
    return [cause for cause in found.values() if not isinstance(cause, BaseExceptionGroup)]


def _list_direct_causes(error: BaseException) -> tuple[BaseException, ...]:
    members = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    chained = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if chained is not None and type_name(chained) == "CancelledError":  # a timeout of asyncio cancels, then raises
        chained = None
    return (*members, *([] if chained is None else [chained]))


def _get_class_name(kind: type) -> str:
    return str(type.__dict__["__name__"].__get__(kind))


def _describe_failure(error: BaseException, rules: Rules) -> Failure:
    if isinstance(error, Retry):
        return Failure(message=_get_message(error), code=_get_own_code(error), retry_after=_get_wait(error))
    if isinstance(error, Fail):
        return Failure(message=_get_message(error), code=_get_own_code(error), retryable=False)
    retryable, waits = is_retried(type(error), rules), list[timedelta | None]()
    if isinstance(error, BaseExceptionGroup) and not _is_ruled(type(error), rules):
        members = _list_members(error)
        is_final = any(isinstance(member, Fail) for member in members)
        retryable = not is_final and any(is_retried(type(member), rules) for member in members)
        waits = [_get_wait(member) for member in members if isinstance(member, Retry)]
    wait = max((wait for wait in waits if wait is not None), default=None)
    return Failure(message=describe(error), code=_get_code(error), retryable=retryable, retry_after=wait)


def _list_members(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """Return the exceptions in *group* and in the groups in it, each once."""
    found: dict[int, BaseException] = {}
    waiting: list[BaseException] = [group]
    while waiting:
        error = waiting.pop()
        if id(error) not in found:
            found[id(error)] = error
            waiting += error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return [error for error in found.values() if not isinstance(error, BaseExceptionGroup)]


def _is_ruled(kind: type[BaseException], rules: Rules) -> bool:
    """Return True if *rules* name *kind* itself, or the name of it."""
    return bool({kind, _get_class_name(kind)} & (rules.fail_on | rules.retry_on))


def _get_message(error: Retry | Fail) -> str:
    # The function raised it on purpose: its message is enough, without the location.
    causes = _describe_causes(error, lambda error: [error.__cause__] if error.__cause__ is not None else [])
    message = truncate_text(str(error), MAX_MESSAGE_CHARS - len(causes))
    return message + causes if message else describe(error)


def _describe_location(error: BaseException) -> str:
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
    file = PurePath(code.co_filename).name
    return truncate_text(f" ({file}:{place.tb_lineno} in {code.co_name})", MAX_LOCATION_CHARS)


def _is_own(code: CodeType) -> bool:
    """Return True for the user's code: not Python's, not Tidemill's, not an installed package's."""
    file = code.co_filename
    return not file.startswith(_NOT_WRITTEN_BY_USERS) and not any(folder in file for folder in _INSTALLED)


def _get_own_code(error: Retry | Fail) -> str:
    # A subclass may set anything, or skip our constructor.
    return truncate_text(str(getattr(error, "code", "")), MAX_CODE_CHARS) or _get_code(error)


def _get_wait(error: Retry) -> timedelta | None:
    after = getattr(error, "after", None)
    return min(max(_to_plain_duration(after), timedelta(0)), MAX_RETRY_AFTER) if isinstance(after, timedelta) else None


def _to_plain(until: object) -> datetime | timedelta | None:
    """Return *until* as a plain datetime or timedelta: arithmetic with a subclass may do anything."""
    if isinstance(until, timedelta):
        return min(_to_plain_duration(until), LATEST - EARLIEST)
    if not isinstance(until, datetime) or (offset := until.utcoffset()) is None:
        return None
    clock = (until.hour, until.minute, until.second, until.microsecond)
    plain = datetime(until.year, until.month, until.day, *clock, tzinfo=timezone(_to_plain_duration(offset)))
    return min(max(plain, EARLIEST), LATEST).astimezone(UTC)


def _to_plain_duration(duration: timedelta) -> timedelta:
    return timedelta(duration.days, duration.seconds, duration.microseconds)


def _get_code(error: BaseException) -> str:
    return truncate_text(type_name(error) or "Exception", MAX_CODE_CHARS)
