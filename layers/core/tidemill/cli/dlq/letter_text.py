"""Dead letters and their groups in lines that fit into 80 columns."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from tidemill.cli.cells import padded, shortened, width
from tidemill.cli.ops import task_text
from tidemill.cli.ops.asking import Document
from tidemill.cli.ops.task_lists import MAX_ID
from tidemill.cli.tables import ABSENT, clean, line_width, table
from tidemill.wording import moment_from, span

_BARS: Final = "·▁▂▃▄▅▆▇█"
_PLAIN_BARS: Final = ".:-=+*#%@"
"""For nothing, and from the fewest to the most: the plain ones where stdout cannot say the others."""

MAX_NAME: Final = 60
"""Cells of a name, a code or a reason in a row, and of a fingerprint: longer ones were written by hand."""

_MAX_FINGERPRINT: Final = 20
_MAX_REASON: Final = 20
_UNKNOWN: Final = "for no reason that is known"
_HEADINGS: Final = ("fingerprint", "letters", "first", "last", "died in each of the last 24 h")


def groups(answer: Document) -> str:
    """Return two lines for each group: how many, when, and one of them."""
    now = datetime.fromisoformat(answer["now"])
    rows = [_HEADINGS, *(_group(one, now) for one in answer["groups"])]
    widths = [max(width(row[index]) for row in rows) for index in range(len(_HEADINGS) - 1)]
    lines = [_aligned(row, widths) for row in rows]
    samples = ["-" * min(max(map(width, lines)), line_width()), *map(_sample, answer["groups"])]
    return "\n".join(line for pair in zip(lines, samples, strict=True) for line in pair)


def total(answer: Document) -> str:
    """Return how many groups are shown, and of how many letters that is."""
    shown, in_all, letters = len(answer["groups"]), answer["groups_in_all"], answer["letters"]
    of_all = f" of {in_all}" if shown < in_all else ""
    groups = "group" if shown == 1 and not of_all else "groups"
    more = "--fingerprint F lists those of one"
    if answer["newest_only"] is None:
        return f"{shown}{of_all} {groups}, {letters} open dead letters in all; {more}"
    newest = f"of the newest {answer['newest_only']} dead letters only, for there are too many to count"
    return f"{newest}:\n{shown}{of_all} {groups}, at least {letters} open dead letters in all\n{more}"


def sparkline(counts: Sequence[int]) -> str:
    """Return one character for each of *counts*, the higher the more, the highest for the largest of them."""
    bars = _BARS if _can_say(_BARS) else _PLAIN_BARS
    most = max(counts, default=0)
    steps = len(bars) - 1
    return "".join(bars[-(-count * steps // most)] if count else bars[0] for count in counts)


def letters(answer: Document) -> str:
    """Return a row for each letter of a list; ids are cut where `is_cut` says so."""
    now = datetime.fromisoformat(answer["now"])
    return table(
        {"task": "id", "died": "word", "name": "text", "error": "text", "exported": "word", "state": "word"},
        [_row(one, now) for one in answer["letters"]],
    )


def is_cut(answer: Document) -> bool:
    """Tell whether an id is too long for its row."""
    return any(width(clean(one["id"])) > MAX_ID for one in answer["letters"])


def header(answer: Document) -> dict[str, str]:
    """Return what is to be said of one letter, but for its execution log and its task's other deaths."""
    letter, now = answer["letter"], datetime.fromisoformat(answer["now"])
    died = {
        "died": _moment(letter["dead_lettered_at"], now),
        "redrives": f"{letter['redrives']} before this death",
        "fingerprint": letter["fingerprint"] or "none",
    }
    ways = {"exported": _export(letter, now), "redriven": _way_back(letter, now)}
    place = {"kept": f"among the dead letters of {answer['database']}"}
    return task_text.header(answer | {"task": letter}) | place | died | ways


def deaths(answer: Document) -> str:
    """Return a row for each other death of a task."""
    now = datetime.fromisoformat(answer["now"])
    return table(
        {"redrives": "number", "died": "word", "reason": "word", "error": "text", "state": "word"},
        [_death(one, now) for one in answer["deaths"]],
    )


def _group(group: Document, now: datetime) -> tuple[str, ...]:
    first, last = (_age(group[name], now) for name in ("first_at", "last_at"))
    return (
        shortened(clean(group["fingerprint"]), _MAX_FINGERPRINT) or ABSENT,
        str(group["letters"]),
        first,
        last,
        sparkline(group["trend"]),
    )


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    fingerprint, *numbers, trend = row
    cells = [cell.rjust(room) for cell, room in zip(numbers, widths[1:], strict=True)]
    return "  ".join([padded(fingerprint, widths[0]), *cells, trend])


def _sample(group: Document) -> str:
    sample = group["sample"]
    if sample is None:
        return "    (has just gone)"
    name = _short(sample["name"] or "malformed")
    return f"    {shortened(': '.join([name, clean(_error(sample))]), max(line_width(), 40) - 4)}"


def _row(letter: Document, now: datetime) -> tuple[str, ...]:
    task_id, died = shortened(clean(letter["id"]), MAX_ID), _age(letter["dead_lettered_at"], now)
    name = ABSENT if "malformed" in letter else letter["name"]
    code = letter["error"]["code"] if letter.get("error") else letter["reason"] or ABSENT
    return task_id, died, _short(name), _short(code), "no" if letter["archived_at"] is None else "yes", _state(letter)


def _death(one: Document, now: datetime) -> tuple[str, ...]:
    died = _age(one["dead_lettered_at"], now)
    reason = shortened(clean(one["reason"] or ABSENT), _MAX_REASON)
    return str(one["redrives"]), died, reason, _error(one), _state(one)


def _short(text: str) -> str:
    return shortened(clean(text), MAX_NAME)


def _state(letter: Document) -> str:
    if letter["redriven_at"] is not None:
        return "redriven"
    return "open" if letter.get("redrive_started_at") is None else "on its way"


def _export(letter: Document, now: datetime) -> str:
    if letter["archived_at"] is not None:
        return _moment(letter["archived_at"], now)
    if not letter["export_attempts"]:
        return "not yet"
    again = f"; again {_moment(letter['export_retry_at'], now)}" if letter["export_retry_at"] is not None else ""
    return f"refused {letter['export_attempts']} times, {letter['export_error'] or _UNKNOWN}{again}"


def _way_back(letter: Document, now: datetime) -> str:
    if letter["redriven_at"] is not None:
        return _moment(letter["redriven_at"], now)
    if letter["redrive_started_at"] is None:
        return "no" if "malformed" in letter else "no: `tidemill dlq redrive ID` runs it again"
    since = _moment(letter["redrive_started_at"], now)
    return f"begun {since}, and not ended: if it was cut short, archive completes it"


def _error(one: Document) -> str:
    error = one["error"]
    if error is None:
        return one["reason"] or _UNKNOWN
    code, message = error["code"], error["message"]
    return message if message.startswith(code) else f"{code}: {message}"


def _age(stamp: str | None, now: datetime) -> str:
    """Return roughly how long before *now* that was."""
    if stamp is None:
        return ABSENT
    return f"{span(max(now - datetime.fromisoformat(stamp), now - now)).split()[0]} ago"


def _moment(stamp: str | None, now: datetime) -> str:
    return ABSENT if stamp is None else moment_from(datetime.fromisoformat(stamp), now=now)


def _can_say(text: str) -> bool:
    try:
        text.encode((sys.stdout and sys.stdout.encoding) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
