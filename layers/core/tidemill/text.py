"""Texts that several modules print: times, durations, suggestions for misspelt words."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final, Literal

_MAX_WORD_CHARS: Final = 100
_MAX_NAMES: Final = 5
_MIN_SIMILARITY: Final = 0.7
_MINUTE: Final = timedelta(minutes=1)
_EXTRAS: Final = {
    "click": "cli", "rich": "cli", "aws_lambda_powertools": "lambda", "boto3": "lambda", "botocore": "lambda",
    "watchfiles": "dev", "werkzeug": "dev",
}  # fmt: skip
"""Extra of the distribution that brings a module."""

_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the end of a sentence about the unknown *word*: the closest of *known*, or ``""`` if none is close."""
    candidates = [name for name in known if name != word]
    close = difflib.get_close_matches(word[:_MAX_WORD_CHARS], candidates, n=1, cutoff=_MIN_SIMILARITY)
    return f", did you mean {close[0]}?" if close else ""


def describe_missing_extra(subject: str, module: str | None) -> str | None:
    """Return the sentence that names the extra with *module*, which *subject* needs; ``None`` if no extra has it."""
    extra = _EXTRAS.get((module or "").partition(".")[0])
    if extra is None:
        return None
    return f"{subject} needs the extra {extra}, which is not installed: pip install 'tidemill[{extra}]'"


def add_article(name: str) -> str:
    """Return the *name* of a type with its article, for a sentence: ``a Decimal``, ``an object``."""
    return f"{'an' if name[:1] in {*'aeioAEIO'} else 'a'} {name[:_MAX_WORD_CHARS]}"


def format_error(code: str, message: str) -> str:
    """Return *message* after its *code*, which stands there once: many messages begin with the name of their error."""
    rest = message.removeprefix(code)
    if not code or not message or (rest != message and not rest[:1].isalnum()):
        return message or code
    return f"{code}: {message}"


def describe_not_archived(counted: Mapping[str, int]) -> str:
    """Return the number of failed tasks that are no dead letters yet, with the number of each name."""
    total = sum(counted.values())
    largest = sorted(counted, key=lambda name: (-counted[name], name))
    names = [f"{name[:_MAX_WORD_CHARS]} {counted[name]}" for name in largest[:_MAX_NAMES]]
    more = [f"{len(counted) - _MAX_NAMES} more"] if len(counted) > _MAX_NAMES else []
    tasks = "failed task is no dead letter" if total == 1 else "failed tasks are no dead letters"
    return f"{total} {tasks} yet ({', '.join(names + more)})"


def name_attempt(number: int) -> str:
    """Return the name of an attempt for people, by its number from 1: ``Initial``, ``Retry #1``, ``Retry #2``."""
    return "Initial" if number <= 1 else f"Retry #{number - 1}"


def format_time(at: datetime, *, timespec: Literal["seconds", "milliseconds"] = "seconds") -> str:
    """Return a time in UTC for display, without the zone."""
    return at.astimezone(UTC).replace(tzinfo=None).isoformat(sep=" ", timespec=timespec)


def format_time_and_distance(at: datetime, *, now: datetime) -> str:
    """Return a time in UTC, and its distance from *now*."""
    distance = f"in {format_duration(at - now)}" if at > now else f"{format_duration(now - at)} ago"
    return f"{format_time(at)} UTC ({distance})"


def iso_timestamp(at: datetime | None) -> str | None:
    """Return a time for JSON, in ISO 8601 with milliseconds and ``Z``."""
    return None if at is None else at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def format_duration(length: timedelta) -> str:
    """Return a duration in its two largest units; below a minute with one decimal: 250ms, 4.2s, 5m 3s, 2d 4h."""
    if length < timedelta(seconds=1):
        return f"{round(length / timedelta(milliseconds=1))}ms" if length else "0s"
    if round(length.total_seconds(), 1) < _MINUTE.total_seconds():
        return f"{round(length.total_seconds(), 1):g}s"
    parts, rest = [], round(length.total_seconds())
    for size, unit in _UNITS:
        count, rest = divmod(rest, size)
        parts.append((count, unit))
    first = next(index for index, (count, _) in enumerate(parts) if count)
    return " ".join(f"{count}{unit}" for count, unit in parts[first : first + 2] if count)
