"""What failures have in common: a short name for the reason, pure and stable across releases.

Where it is not clear whether a piece of a message differs from case to case, it is kept: two groups for one reason
are a nuisance, but one group for two reasons hides the second, and redrives it with the first.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Final

VERSION: Final = "2"
"""Another one for a release that folds otherwise: no group holds what two releases made of it."""

MAX_FOLDED: Final = 500

_HEX: Final = "[0-9a-fA-F]"
_LETTER: Final = r"[\w\u00c0-\u1fff]"
_ALONE: Final = "(?<![A-Za-z0-9])"
_ENDED: Final = "(?![A-Za-z0-9])"

_CLOCK: Final = r"\d{1,2}:\d\d(?::\d\d(?:[.,]\d+)?)?"
_ZONE: Final = r"(?: ?(?:Z|UTC|GMT|[+-]\d\d:?\d\d)\b)?"
_DAY: Final = "(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),? )?"
_MONTH: Final = "(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_IN_WORDS: Final = rf"(?:\d\d?[ -]{_MONTH}|{_MONTH} {{1,2}}\d\d?,?)"
_TIMES: Final = (
    rf"{_ALONE}\d{{4}}-\d\d-\d\d(?:[T ]{_CLOCK}{_ZONE})?{_ENDED}",
    rf"{_ALONE}{_DAY}{_IN_WORDS}(?:[ -]\d{{4}})?(?: {_CLOCK}{_ZONE})?(?: \d{{4}})?{_ENDED}",
    rf"{_ALONE}\d{{1,2}}:\d\d:\d\d(?:[.,]\d+)?{_ENDED}",
)

_GROUPS: Final = rf"{_HEX}{{1,4}}(?::{_HEX}{{1,4}})"
_IPV6: Final = (
    rf"(?={_HEX}{{0,4}}(?::{_HEX}{{0,4}}){{0,7}}\d)"  # Foo::Bar and dead::beef have none
    rf"(?:{_GROUPS}{{7}}|(?:{_GROUPS}{{0,6}})?::(?:{_GROUPS}{{0,6}})?)(?:(?:\.\d{{1,3}}){{3}})?(?:%\w+)?"
)
_PORT: Final = r"(?::\d{1,5}\b)?"
_ADDRESSES: Final = (
    rf"(?<![\w:.])\[?{_IPV6}(?:\]{_PORT})?(?!:?\w|::)",
    rf"{_ALONE}{_HEX}{{2}}(?:[:-]{_HEX}{{2}}){{5}}{_ENDED}",
    rf"{_ALONE}\d{{1,3}}(?:\.\d{{1,3}}){{3}}{_PORT}",
)

_UUID: Final = rf"{_ALONE}{_HEX}{{8}}-(?:{_HEX}{{4}}-){{3}}{_HEX}{{12}}{_ENDED}"
_POD: Final = "[bcdfghjklmnpqrstvwxz2456789]"
_IDS: Final = (
    rf"(?<=[a-z0-9]-){_POD}{{6,10}}-{_POD}{{5}}{_ENDED}",
    rf"{_ALONE}(?={_HEX}*\d)(?=\d*[a-fA-F]){_HEX}{{8,}}{_ENDED}|{_ALONE}0x{_HEX}+",
    rf"(?<=/)tmp[a-z0-9_]{{8}}{_ENDED}",
)

_PART: Final = r"[\w.~$()-]+"
_TELLING: Final = (
    r"(?i:\b(?:HTTP(?:/\d(?:\.\d)?)?(?: status)?|status(?:[ _]?code)?|(?:error |exit |return )?code|exit status"
    r"|errno|winerror|signal)[ :=-]{0,3}\d{1,3})(?![.,]?\d)"
)
_WORDS: Final = re.compile(r"[A-Z]*(?=[a-z]*[aeiouy])[a-z]{2,}")


def fingerprint(*, name: str, code: str, message: str) -> str:
    """Return 16 hexadecimal digits that failures of task *name* for the same reason share.

    What differs from case to case is folded out of *message*: URLs, quoted text, addresses, times, ids, numbers and
    the amount of white space. Short numbers that tell the reason are kept: ``HTTP 404``, ``Errno 13``, ``exit code 1``.
    """
    told = "\x1f".join((VERSION, name, code, folded(message)))
    return hashlib.sha256(told.encode("utf-8", "backslashreplace")).hexdigest()[:16]


def folded(message: str) -> str:
    """Return *message* without what differs from case to case."""
    text = message[: MAX_FOLDED * 4]
    for pattern, mark in _FOLDS:
        text = pattern.sub(mark, text)
    return text.strip()[:MAX_FOLDED]


def _quoted(mark: str, *, not_after: str, inside: str = r"(?!)") -> str:
    """Return the pattern of text between two of *mark*; what is escaped there, and *inside*, does not end it.

    An HTTP status in words (``'404 Not Found'``) is the reason itself.
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
    _quoted("'", not_after=_LETTER, inside=rf"'(?={_LETTER})"),  # an apostrophe neither opens nor ends
    _quoted('"', not_after=r"\d"),
    _quoted("`", not_after=_LETTER),
    rf"\u2018(?:[^\u2018\u2019]++|\u2019(?={_LETTER}))*+\u2019",
    *(f"{begin}[^{begin}{end}]*[{end}]" for begin, end in _PAIRS),
)


def _without_ids(found: re.Match[str]) -> str:
    """Fold ids of letters and digits, but neither words before them (``cus_``) nor names with a digit."""
    words, rest = found["words"], found["rest"]
    if re.search(r"\d[A-Za-z]", rest) and not _is_in_one_case(rest) and _is_random(rest):
        return f"{words}<id>"
    return words + re.sub("[A-Za-z0-9]{12,}", lambda run: "<id>" if _is_random(run[0]) else run[0], rest)


def _is_random(text: str) -> bool:
    """Tell ``NffrFeUfNV2Hib``, which is less than half of words, from ``S3UploadFailedError``."""
    numbers = re.findall(r"\d+", text)
    if _is_in_one_case(text):
        return len(numbers) > 1
    return bool(numbers) and not text.isdigit() and 2 * sum(map(len, _WORDS.findall(text))) < len(text)


def _is_in_one_case(text: str) -> bool:
    return text.isupper() or text.islower()


def _kept_if_telling(found: re.Match[str]) -> str:
    return found["telling"] or "<n>"


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
        (rf"(?:{_ALONE}[A-Za-z]:[\\/]|\\\\)(?:{_PART}(?: {_PART}){{0,2}}[\\/])*{_PART}", "<path>"),
        ("|".join(_IDS), "<id>"),
        (rf"{_ALONE}(?P<words>(?:[A-Z]?[a-z]+[_-])*)(?P<rest>[A-Za-z0-9_-]{{12,}})", _without_ids),
        (rf"(?P<telling>{_TELLING})|(?:(?<![\w)\]>])[-+])?\d+(?:[.,]\d+)*(?:[eE][-+]?\d+)?", _kept_if_telling),
        (r"(<(?:n|id|text|url|address|time|path)>)(?:, ?\1)+", r"\1"),
    )
)
