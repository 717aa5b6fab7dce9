"""Failures: the failure that an exception means, and the fingerprint that groups failures. Pure."""

from __future__ import annotations

import hashlib
import re
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from pathlib import PurePath
from types import CodeType
from typing import Final, TypeAlias

from tidemill.errors import MAX_RETRY_AFTER, Fail, Retry, Snooze
from tidemill.model import EARLIEST, LATEST, Failure, Snoozed

FINGERPRINT_VERSION: Final = "2"
"""Changes whenever a release folds differently: no group mixes the fingerprints of two foldings."""

NOT_RETRIED = frozenset({"ValidationError", "NotFoundError", "UnauthorizedError", "ForbiddenError", "SyntaxError"})

MAX_FOLDED_CHARS: Final = 500
MAX_MESSAGE_CHARS = 2000
MAX_LOCATION_CHARS = 200
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
        return _describe_failure(error, rules)
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


def find_snooze_request(error: BaseException) -> datetime | timedelta | None:
    """Return the time or the delay that *error* asks for, or ``None`` if it is no `Snooze`; never raises.

    The value is a plain UTC datetime or a plain timedelta, within the calendar. The result is also ``None`` for a
    `Snooze` with an unusable ``until``: it is a failure like any other exception.
    """
    if not issubclass(type(error), Snooze):
        return None
    try:
        return _to_plain(getattr(error, "until", None))
    except BaseException:  # noqa: BLE001 - attributes of a hostile subclass may raise anything, exits included
        return None


def plan_snooze(until: datetime | timedelta, *, now: datetime) -> Snoozed:
    """Return the snooze until *until*, within the calendar and at least ``MIN_SNOOZE`` after *now*."""
    if isinstance(until, timedelta):
        return Snoozed(until=now + min(max(until, MIN_SNOOZE), LATEST - now))
    return Snoozed(until=min(max(until, now + MIN_SNOOZE), LATEST))


def describe(error: BaseException) -> str:
    """Return ``Type: message (file:line in function)`` in storable, bounded text.

    The location is the innermost frame of the user's code, or the innermost frame if none is the user's.
    """
    name = type_name(error) or "exception without a name"
    try:
        text = str.__str__(str(error))  # a plain str: a subclass of str may do anything
    except BaseException as broken:  # noqa: BLE001 - a hostile __str__ may raise anything, exits included
        text = f"(its text cannot be read: {type_name(broken)})"
    return truncate_text(
        f"{name}: {text}" if text else name, MAX_MESSAGE_CHARS - MAX_LOCATION_CHARS
    ) + _describe_location(error)


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


def fingerprint(*, name: str, code: str, message: str) -> str:
    """Return 16 hexadecimal digits that all failures of task *name* for the same reason share.

    *message* is folded: URLs, quoted text, addresses, times, ids, numbers and the amount of white space do not count.
    Short numbers that state the reason count: ``HTTP 404``, ``Errno 13``, ``exit code 1``.
    """
    text = "\x1f".join((FINGERPRINT_VERSION, name, code, fold_message(message)))
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:16]


def fold_message(message: str) -> str:
    """Return *message* with marks for the parts that vary between failures of one reason."""
    text = message[: MAX_FOLDED_CHARS * 4]
    for pattern, mark in _FOLDS:
        text = pattern.sub(mark, text)
    return text.strip()[:MAX_FOLDED_CHARS]


_NOT_WRITTEN_BY_USERS: Final = (
    "<",  # frozen modules and generated code
    *(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib")),
    f"{PurePath(__file__).parents[1]}/",
)
_INSTALLED: Final = ("/site-packages/", "/dist-packages/")


def _get_class_name(kind: type) -> str:
    return str(type.__dict__["__name__"].__get__(kind))


def _describe_failure(error: BaseException, rules: Rules) -> Failure:
    if isinstance(error, Retry):
        return Failure(message=_get_message(error), code=_get_own_code(error), retry_after=_get_wait(error))
    if isinstance(error, Fail):
        return Failure(message=_get_message(error), code=_get_own_code(error), retryable=False)
    return Failure(message=describe(error), code=_get_code(error), retryable=is_retried(type(error), rules))


def _get_message(error: Retry | Fail) -> str:
    # The function raised it on purpose: its message is enough, without the location.
    return truncate_text(str(error), MAX_MESSAGE_CHARS) or describe(error)


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
    return truncate_text(
        f" ({PurePath(code.co_filename).name}:{place.tb_lineno} in {code.co_name})", MAX_LOCATION_CHARS
    )


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


_HEX: Final = "[0-9a-fA-F]"
_LETTER: Final = r"[\w\u00c0-\u1fff]"
_WORD_START: Final = "(?<![A-Za-z0-9])"
_WORD_END: Final = "(?![A-Za-z0-9])"

_CLOCK: Final = r"\d{1,2}:\d\d(?::\d\d(?:[.,]\d+)?)?"
_ZONE: Final = r"(?: ?(?:Z|UTC|GMT|[+-]\d\d:?\d\d)\b)?"
_DAY: Final = "(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),? )?"
_MONTH: Final = "(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_MONTH_AND_DAY: Final = rf"(?:\d\d?[ -]{_MONTH}|{_MONTH} {{1,2}}\d\d?,?)"
_TIMES: Final = (
    rf"{_WORD_START}\d{{4}}-\d\d-\d\d(?:[T ]{_CLOCK}{_ZONE})?{_WORD_END}",
    rf"{_WORD_START}{_DAY}{_MONTH_AND_DAY}(?:[ -]\d{{4}})?(?: {_CLOCK}{_ZONE})?(?: \d{{4}})?{_WORD_END}",
    rf"{_WORD_START}\d{{1,2}}:\d\d:\d\d(?:[.,]\d+)?{_WORD_END}",
)

_GROUPS: Final = rf"{_HEX}{{1,4}}(?::{_HEX}{{1,4}})"
_IPV6: Final = (
    rf"(?={_HEX}{{0,4}}(?::{_HEX}{{0,4}}){{0,7}}\d)"  # Foo::Bar and dead::beef contain no digit
    rf"(?:{_GROUPS}{{7}}|(?:{_GROUPS}{{0,6}})?::(?:{_GROUPS}{{0,6}})?)(?:(?:\.\d{{1,3}}){{3}})?(?:%\w+)?"
)
_PORT: Final = r"(?::\d{1,5}\b)?"
_ADDRESSES: Final = (
    rf"(?<![\w:.])\[?{_IPV6}(?:\]{_PORT})?(?!:?\w|::)",
    rf"{_WORD_START}{_HEX}{{2}}(?:[:-]{_HEX}{{2}}){{5}}{_WORD_END}",
    rf"{_WORD_START}\d{{1,3}}(?:\.\d{{1,3}}){{3}}{_PORT}",
)

_UUID: Final = rf"{_WORD_START}{_HEX}{{8}}-(?:{_HEX}{{4}}-){{3}}{_HEX}{{12}}{_WORD_END}"
_POD: Final = "[bcdfghjklmnpqrstvwxz2456789]"
_IDS: Final = (
    rf"(?<=[a-z0-9]-){_POD}{{6,10}}-{_POD}{{5}}{_WORD_END}",
    rf"{_WORD_START}(?={_HEX}*\d)(?=\d*[a-fA-F]){_HEX}{{8,}}{_WORD_END}|{_WORD_START}0x{_HEX}+",
    rf"(?<=/)tmp[a-z0-9_]{{8}}{_WORD_END}",
)

_PATH_PART: Final = r"[\w.~$()-]+"
_REASON_NUMBER: Final = (
    r"(?i:\b(?:HTTP(?:/\d(?:\.\d)?)?(?: status)?|status(?:[ _]?code)?|(?:error |exit |return )?code|exit status"
    r"|errno|winerror|signal)[ :=-]{0,3}\d{1,3})(?![.,]?\d)"
)
_WORDS: Final = re.compile(r"[A-Z]*(?=[a-z]*[aeiouy])[a-z]{2,}")


def _quote_pattern(mark: str, *, not_after: str, inside: str = r"(?!)") -> str:
    """Return the pattern of text between two *mark* characters; an escaped character or *inside* does not end it.

    The pattern leaves out an HTTP status in words (``'404 Not Found'``), which is the reason itself.
    """
    opening = rf"(?:(?<!{_LETTER})[bBfFrRuU]{{1,2}}|(?<!{not_after})){mark}(?![1-5]\d\d [A-Z][A-Za-z -]*{mark})"
    return rf"{opening}(?:[^{mark}\\]++|\\.|{inside})*+{mark}"


_PAIRS: Final = (
    ("\u201c", "\u201d"),
    ("\u201e", "\u201c\u201d"),
    ("\u00ab", "\u00bb"),
    ("\u2039", "\u203a"),
    ("\u300c", "\u300d"),
)
_QUOTES: Final = (
    _quote_pattern("'", not_after=_LETTER, inside=rf"'(?={_LETTER})"),  # an apostrophe is no quotation mark
    _quote_pattern('"', not_after=r"\d"),
    _quote_pattern("`", not_after=_LETTER),
    rf"\u2018(?:[^\u2018\u2019]++|\u2019(?={_LETTER}))*+\u2019",
    *(f"{begin}[^{begin}{end}]*[{end}]" for begin, end in _PAIRS),
)


def _fold_ids(found: re.Match[str]) -> str:
    """Fold ids of letters and digits; keep the words before an id (``cus_``) and names that contain a digit."""
    words, rest = found["words"], found["rest"]
    if re.search(r"\d[A-Za-z]", rest) and not _is_in_one_case(rest) and _is_random(rest):
        return f"{words}<id>"
    return words + re.sub("[A-Za-z0-9]{12,}", lambda run: "<id>" if _is_random(run[0]) else run[0], rest)


def _is_random(text: str) -> bool:
    """Return True if less than half of *text* is words: ``NffrFeUfNV2Hib``, not ``S3UploadFailedError``."""
    numbers = re.findall(r"\d+", text)
    if _is_in_one_case(text):
        return len(numbers) > 1
    return bool(numbers) and not text.isdigit() and 2 * sum(map(len, _WORDS.findall(text))) < len(text)


def _is_in_one_case(text: str) -> bool:
    return text.isupper() or text.islower()


def _fold_number(found: re.Match[str]) -> str:
    return found["reason"] or "<n>"


_FOLDS: Final[tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...]] = tuple(
    (re.compile(pattern, re.ASCII), mark)
    for pattern, mark in (
        (r"\s+", " "),
        (r"[a-zA-Z][a-zA-Z0-9+.-]{1,20}://[^\s'\"<>`\u2018-\u201f\u00ab\u00bb]+", "<url>"),
        ("|".join(_QUOTES), "<text>"),
        (r"\b[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+\b", "<address>"),
        ("|".join(_TIMES), "<time>"),
        (_UUID, "<id>"),
        ("|".join(_ADDRESSES), "<address>"),
        (rf"(?:{_WORD_START}[A-Za-z]:[\\/]|\\\\)(?:{_PATH_PART}(?: {_PATH_PART}){{0,2}}[\\/])*{_PATH_PART}", "<path>"),
        ("|".join(_IDS), "<id>"),
        (rf"{_WORD_START}(?P<words>(?:[A-Z]?[a-z]+[_-])*)(?P<rest>[A-Za-z0-9_-]{{12,}})", _fold_ids),
        (rf"(?P<reason>{_REASON_NUMBER})|(?:(?<![\w)\]>])[-+])?\d+(?:[.,]\d+)*(?:[eE][-+]?\d+)?", _fold_number),
        (r"(<(?:n|id|text|url|address|time|path)>)(?:, ?\1)+", r"\1"),
    )
)
