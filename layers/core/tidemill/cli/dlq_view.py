"""Output of ``tidemill dlq``: groups and dead letters in lines of 80 columns, and summaries of changes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

from tidemill.cli import task_view
from tidemill.cli.operations import Document
from tidemill.cli.output import ABSENT, clean, format_points, format_table, measure_width, pad, read_line_width, shorten
from tidemill.cli.task_view import MAX_ID
from tidemill.store.counts import COUNT_LIMIT
from tidemill.text import format_duration, format_time_and_distance

_BARS: Final = "·▁▂▃▄▅▆▇█"
_PLAIN_BARS: Final = ".:-=+*#%@"
"""Bars for zero and for the smallest to the largest count; plain bars if stdout cannot encode the first set."""

MAX_NAME: Final = 60
"""Cells of a name or a code in a row: longer texts were written by hand."""

_MAX_FINGERPRINT: Final = 20
_MAX_REASON: Final = 20
_UNKNOWN: Final = "unknown reason"
_MAX_EXAMPLES: Final = 5
_MEANINGS: Final = {
    "unregistered": "no executor has registered their function",
    "malformed": "no executor could run them as they are stored",
    "expired": "their expiry time is over, or will be when they are due; --drop-expiry starts them anyway",
    "in_progress": "a redrive of them is in progress or was interrupted; archive completes it after a minute",
    "conflict": "another task has their id or holds their idempotency key",
    "too_far_ahead": "at this --rate they would become due in more than a year",
    "write_rejected": "MongoDB rejects the change, probably because of a validator",
}
"""Explanations of the codes of refusals."""
_HEADINGS: Final = ("fingerprint", "count", "first", "last", "failed in each of the last 24 h")


def format_groups(answer: Document) -> str:
    """Return two lines for each group: numbers and times, and a sample."""
    now = datetime.fromisoformat(answer["now"])
    rows = [_HEADINGS, *(_format_group(group, now) for group in answer["groups"])]
    widths = [max(measure_width(row[index]) for row in rows) for index in range(len(_HEADINGS) - 1)]
    lines = [_align(row, widths) for row in rows]
    samples = ["-" * min(max(map(measure_width, lines)), read_line_width()), *map(_format_sample, answer["groups"])]
    return "\n".join(line for pair in zip(lines, samples, strict=True) for line in pair)


def format_total(answer: Document) -> str:
    """Return the numbers of shown groups, of all groups, and of their dead letters."""
    length, total_length = len(answer["groups"]), answer["total_groups"]
    of_all = f" of {total_length}" if length < total_length else ""
    groups = f"{length}{of_all} {'group' if length == 1 and not of_all else 'groups'}"
    dead_letters = (
        f"{answer['dead_letters']} open dead {'letter' if answer['dead_letters'] == 1 else 'letters'} in total"
    )
    hint = "list a group with --fingerprint F"
    if answer["sampled_newest"] is None:
        return f"{groups}, {dead_letters}; {hint}"
    newest = f"only the newest {answer['sampled_newest']} dead letters are counted"
    return f"{newest}:\n{groups}, at least {dead_letters}\n{hint}"


def draw_sparkline(counts: Sequence[int]) -> str:
    """Return a bar for each of *counts*, in proportion to the largest count."""
    bars = _BARS if _can_encode(_BARS) else _PLAIN_BARS
    largest = max(counts, default=0)
    steps = len(bars) - 1
    return "".join(bars[-(-count * steps // largest)] if count else bars[0] for count in counts)


def format_dead_letters(answer: Document) -> str:
    """Return a row for each dead letter of a list; ids longer than `MAX_ID` cells are cut."""
    now = datetime.fromisoformat(answer["now"])
    return format_table(
        {"task": "id", "failed at": "word", "name": "text", "error": "text", "exported": "word", "state": "word"},
        [_format_row(dead_letter, now) for dead_letter in answer["dead_letters"]],
    )


def has_cut_id(answer: Document) -> bool:
    """Return whether an id is too long for its row."""
    return any(measure_width(clean(dead_letter["id"])) > MAX_ID for dead_letter in answer["dead_letters"])


def describe_dead_letter(answer: Document) -> dict[str, str]:
    """Return the facts about a dead letter, without its execution log and the other dead letters of its task."""
    dead_letter, now = answer["letter"], datetime.fromisoformat(answer["now"])
    failed_at = {
        "failed at": _format_time(dead_letter["dead_lettered_at"], now),
        "redrives": f"{dead_letter['redrives']} before this failure",
        "fingerprint": dead_letter["fingerprint"] or "none",
    }
    states = {"exported": _format_export(dead_letter, now), "redriven": _format_redrive(dead_letter, now)}
    collection = {"kept": f"among the dead letters of {answer['database']}"}
    return task_view.describe_task(answer | {"task": dead_letter}) | collection | failed_at | states


def format_other_dead_letters(answer: Document) -> str:
    """Return a row for each other dead letter of a task."""
    now = datetime.fromisoformat(answer["now"])
    return format_table(
        {"redrives": "number", "failed at": "word", "reason": "word", "error": "text", "state": "word"},
        [_format_other_row(dead_letter, now) for dead_letter in answer["other_failures"]],
    )


def describe_redrive(total: Document, *, rate: float | None, is_dry_run: bool) -> Iterator[str]:
    """Yield the lines on a redrive with the answer *total*, which is empty if no call was answered."""
    if not total.get("examined"):
        yield f"no open dead letter matches in {total['database']}" if total else "nothing was redriven"
        return
    redriven = total["redriven"]
    dead_letters = "dead letter" if redriven == 1 else "dead letters"
    verb = "would be redriven" if is_dry_run else "redriven"
    pace = (
        ""
        if rate is None or not redriven
        else f", due one by one over {format_duration(timedelta(seconds=redriven / rate))}"
    )
    yield f"{redriven} {dead_letters} of {total['database']} {verb}{pace}"
    yield from _list_refusals(total)


def describe_purge(total: Document, verb: str) -> Iterator[str]:
    """Yield the lines on a purge with the answer *total*, which is empty if no call was answered."""
    if not total:
        yield "nothing was destroyed"
        return
    if not total["examined"]:
        yield f"no dead letter matches in {total['database']}"
        return
    purged, unexported = total["purged"], total["unexported"]
    copies = "all of them exported" if not unexported else f"{unexported} of them not exported, so no copy is left"
    dead_letters = "dead letter" if purged == 1 else "dead letters"
    yield f"{purged} {dead_letters} of {total['database']} {verb}" + (f": {copies}" if purged else "")
    if total["in_progress"]:
        yield f"{total['in_progress']} kept: a redrive is in progress or was interrupted; archive completes it"


def describe_unexported(total: Document) -> str:
    """Return a sentence on the dead letters that an export left, with the reasons."""
    left = f"{total['left']} or more" if total["left"] >= COUNT_LIMIT else str(total["left"])
    dead_letters = "dead letter is" if total["left"] == 1 else "dead letters are"
    reasons = "; ".join(_list_export_reasons(total))
    return f"{left} {dead_letters} not exported and only in {total['database']}: {reasons}"


def describe_restored(result: Document) -> str:
    """Return a sentence on the restore of one file."""
    if not result["restored"]:
        return f"{clean(result['file'])}: already among the dead letters"
    redrives = f", redriven {result['redrives']} times before" if result["redrives"] else ""
    return f"{clean(result['file'])}: task {clean(result['id'])} is a dead letter again{redrives}"


def _list_refusals(total: Document) -> Iterator[str]:
    if not total["refused"]:
        return
    yield "\nrefused and left unchanged:\n"
    yield format_points(_format_refusal(code, number, total) for code, number in sorted(total["refused"].items()))
    yield "\nexamples:\n"
    examples = total["examples"][:_MAX_EXAMPLES]
    yield format_points(f"{shorten(clean(example['id']), MAX_ID)}: {example['message']}" for example in examples)


def _format_refusal(code: str, number: int, total: Document) -> str:
    names = ""
    if code == "unregistered":
        names = ": " + ", ".join(f"{name} ({n})" for name, n in sorted(total["unregistered"].items()))
    return f"{number} {code}: {_MEANINGS.get(code, 'see the examples')}{names}"


def _list_export_reasons(total: Document) -> Iterator[str]:
    if total["last_error"] is not None:
        yield f"S3 answered {total['last_error']}"
    elif not total["refused"]:
        yield f"the bucket refused {'it' if total['left'] == 1 else 'them'} before"
    if total["refused"]:
        yield f"the bucket refused {total['refused']} now"
    if total["refused"] or total["last_error"] is None:
        yield "`tidemill dlq show ID` shows the reason"


def _format_group(group: Document, now: datetime) -> tuple[str, ...]:
    first, last = (_format_age(group[name], now) for name in ("first_at", "last_at"))
    return (
        shorten(clean(group["fingerprint"]), _MAX_FINGERPRINT) or ABSENT,
        str(group["dead_letters"]),
        first,
        last,
        draw_sparkline(group["trend"]),
    )


def _align(row: Sequence[str], widths: Sequence[int]) -> str:
    fingerprint, *numbers, trend = row
    cells = [cell.rjust(room) for cell, room in zip(numbers, widths[1:], strict=True)]
    return "  ".join([pad(fingerprint, widths[0]), *cells, trend])


def _format_sample(group: Document) -> str:
    sample = group["sample"]
    if sample is None:
        return "    (no longer there)"
    name = _shorten(sample["name"] or "malformed")
    return f"    {shorten(': '.join([name, clean(_format_error(sample))]), max(read_line_width(), 40) - 4)}"


def _format_row(dead_letter: Document, now: datetime) -> tuple[str, ...]:
    task_id, failed_at = shorten(clean(dead_letter["id"]), MAX_ID), _format_age(dead_letter["dead_lettered_at"], now)
    name = ABSENT if "malformed" in dead_letter else dead_letter["name"]
    code = dead_letter["error"]["code"] if dead_letter.get("error") else dead_letter["reason"] or ABSENT
    return (
        task_id,
        failed_at,
        _shorten(name),
        _shorten(code),
        "no" if dead_letter["archived_at"] is None else "yes",
        _name_state(dead_letter),
    )


def _format_other_row(dead_letter: Document, now: datetime) -> tuple[str, ...]:
    failed_at = _format_age(dead_letter["dead_lettered_at"], now)
    reason = shorten(clean(dead_letter["reason"] or ABSENT), _MAX_REASON)
    return str(dead_letter["redrives"]), failed_at, reason, _format_error(dead_letter), _name_state(dead_letter)


def _shorten(text: str) -> str:
    return shorten(clean(text), MAX_NAME)


def _name_state(dead_letter: Document) -> str:
    if dead_letter["redriven_at"] is not None:
        return "redriven"
    return "open" if dead_letter.get("redrive_started_at") is None else "in progress"


def _format_export(dead_letter: Document, now: datetime) -> str:
    if dead_letter["archived_at"] is not None:
        return _format_time(dead_letter["archived_at"], now)
    if not dead_letter["export_attempts"]:
        return "not yet"
    again = (
        f"; next attempt {_format_time(dead_letter['export_retry_at'], now)}"
        if dead_letter["export_retry_at"] is not None
        else ""
    )
    return f"refused {dead_letter['export_attempts']} times, {dead_letter['export_error'] or _UNKNOWN}{again}"


def _format_redrive(dead_letter: Document, now: datetime) -> str:
    if dead_letter["redriven_at"] is not None:
        return _format_time(dead_letter["redriven_at"], now)
    if dead_letter["redrive_started_at"] is None:
        return "no" if "malformed" in dead_letter else "no: `tidemill dlq redrive ID` runs it again"
    since = _format_time(dead_letter["redrive_started_at"], now)
    return f"in progress since {since}; if it was interrupted, archive completes it"


def _format_error(dead_letter: Document) -> str:
    error = dead_letter["error"]
    if error is None:
        return dead_letter["reason"] or _UNKNOWN
    code, message = error["code"], error["message"]
    return message if message.startswith(code) else f"{code}: {message}"


def _format_age(stamp: str | None, now: datetime) -> str:
    """Return roughly the time from *stamp* to *now*."""
    if stamp is None:
        return ABSENT
    return f"{format_duration(max(now - datetime.fromisoformat(stamp), now - now)).split()[0]} ago"


def _format_time(stamp: str | None, now: datetime) -> str:
    return ABSENT if stamp is None else format_time_and_distance(datetime.fromisoformat(stamp), now=now)


def _can_encode(text: str) -> bool:
    try:
        text.encode((sys.stdout and sys.stdout.encoding) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
