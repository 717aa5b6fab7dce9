"""Fingerprint: groups failures of one reason. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Final

FINGERPRINT_VERSION: Final = "2"
"""Changes whenever a release folds differently: no group mixes the fingerprints of two foldings."""

MAX_FOLDED_CHARS: Final = 500
"""Upper limit of the folded text of an error, and of each of its causes."""

CAUSED_BY: Final = "; caused by "
"""Stands in a message before each cause of the error."""


def fingerprint(*, name: str, code: str, message: str) -> str:
    """Return 16 hexadecimal digits that all failures of task *name* for the same reason share.

    *message* is folded: URLs, quoted text, addresses, times, ids, numbers and the amount of white space do not count.
    Short numbers that state the reason count: ``HTTP 404``, ``Errno 13``, ``exit code 1``.
    """
    text = "\x1f".join((FINGERPRINT_VERSION, name, code, fold_message(message)))
    return hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:16]


def fold_message(message: str) -> str:
    """Return *message* with marks for the parts that vary between failures of one reason.

    The error and each of its causes are folded by themselves, so that a long error does not hide its causes.
    """
    return CAUSED_BY.join(map(_fold_part, message[: MAX_FOLDED_CHARS * 4].split(CAUSED_BY)))


def _fold_part(text: str) -> str:
    for pattern, mark in _FOLDS:
        text = pattern.sub(mark, text)
    return text.strip()[:MAX_FOLDED_CHARS]


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
