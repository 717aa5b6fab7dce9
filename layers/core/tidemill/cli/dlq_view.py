"""Text of ``tidemill dlq``: groups and dead letters, and summaries of changes."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

from tidemill.admin import responses
from tidemill.cli import tasks
from tidemill.cli.output import (
    ABSENT,
    MAX_ID,
    clean,
    cut_end,
    format_facts,
    format_points,
    format_table,
    read_line_width,
    shorten,
)
from tidemill.store.counts import COUNT_LIMIT
from tidemill.text import describe_not_archived, format_duration, format_error, format_time_and_distance

Lines: TypeAlias = Iterator[str]
Restored: TypeAlias = dict[str, Any]
"""Result of the restore of one file: ``file``, ``restored``, and the ``id`` and ``redrives`` of a restored one."""

_BARS: Final = "·▁▂▃▄▅▆▇█"
_PLAIN_BARS: Final = ".:-=+*#%@"
"""Bars for zero and for the smallest to the largest count; plain bars if stdout cannot encode the first set."""

MAX_NAME: Final = 60
"""Cells of a name or a code in a row on a terminal: longer texts were written by hand."""

_MAX_WORD: Final = 20
"""Cells of a fingerprint or a reason in a row on a terminal."""

_UNKNOWN: Final = "unknown reason"
_INCLUDED: Final = "without --dry-run, each of them that matches is redriven, too"
_LEFT: Final = "archive moves them every 5 minutes, then run the same command again"
_MAX_EXAMPLES: Final = 5
_MEANINGS: Final = {
    "unregistered": "no executor has registered their function",
    "malformed": "no executor could run them as they are stored",
    "expired": "they are past their expiry time, or will be when they are due; --drop-expiry starts them anyway",
    "in_progress": "a redrive of them is in progress or was interrupted; archive completes it after a minute",
    "conflict": "another task has their id or holds their idempotency key",
    "too_far_ahead": "at this --rate they would become due in more than a year",
    "write_rejected": "MongoDB rejects the change, probably because of a validator",
}
"""Explanations of the codes of refusals."""


def describe_groups(response: responses.GroupsResponse) -> str:
    """Return two lines for each group, numbers and times and a sample, and the totals."""
    if response.groups:
        return f"{_format_groups(response)}\n\n{_format_total(response)}"
    newest = response.sampled_newest
    among = "in" if newest is None else f"among the newest {newest} dead letters of"
    return f"there are no open dead letters {among} {response.database}"


def _format_groups(response: responses.GroupsResponse) -> str:
    headings = {"fingerprint": "word", "count": "number", "first": "number", "last": "number"}
    table = format_table(
        {**headings, "last 24 h, by hour": "word"},  # type: ignore[dict-item]
        [_format_group(group, response.now) for group in response.groups],
    )
    heading, rule, *rows = table.splitlines()
    samples = map(_format_sample, response.groups)
    return "\n".join([heading, rule, *(line for pair in zip(rows, samples, strict=True) for line in pair)])


def _format_group(group: responses.GroupRow, now: datetime) -> tuple[str, ...]:
    return (
        shorten(clean(group.fingerprint), _MAX_WORD) or ABSENT,
        str(group.dead_letters),
        _format_age(group.first_at, now),
        _format_age(group.last_at, now),
        draw_sparkline(group.trend),
    )


def _format_sample(group: responses.GroupRow) -> str:
    sample = group.sample
    if sample is None:
        return "    (no longer there)"
    name = shorten(clean(sample.name or "malformed"), MAX_NAME)
    text = f"{name}: {clean(_format_error(sample))}"
    return f"    {cut_end(text, max(read_line_width() or 0, 40) - 4)}"


def _format_total(response: responses.GroupsResponse) -> str:
    length = len(response.groups)
    of_all = f" of {response.total_groups}" if length < response.total_groups else ""
    groups = f"{length}{of_all} {'group' if length == 1 and not of_all else 'groups'}"
    dead_letters = f"{response.dead_letters} open dead {'letter' if response.dead_letters == 1 else 'letters'} in total"
    hint = "list a group with --fingerprint F"
    if response.sampled_newest is None:
        return f"{groups}, {dead_letters}; {hint}"
    newest = f"only the newest {response.sampled_newest} dead letters are counted"
    return f"{newest}:\n{groups}, at least {dead_letters}\n{hint}"


def draw_sparkline(counts: Sequence[int]) -> str:
    """Return a bar for each of *counts*, in proportion to the largest count."""
    bars = _BARS if _can_encode(_BARS) else _PLAIN_BARS
    largest = max(counts, default=0)
    steps = len(bars) - 1
    return "".join(bars[-(-count * steps // largest)] if count else bars[0] for count in counts)


def _can_encode(text: str) -> bool:
    try:
        text.encode((sys.stdout and sys.stdout.encoding) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def format_dead_letters(page: responses.DeadLetterPage) -> str:
    """Return a row for each dead letter of a list."""
    return format_table(
        {"task": "id", "failed at": "word", "name": "text", "error": "text", "exported": "word", "state": "word"},
        [_format_row(dead_letter, page.now) for dead_letter in page.dead_letters],
    )


def _format_row(letter: responses.AnyDeadLetter, now: datetime) -> tuple[str, ...]:
    if isinstance(letter, responses.MalformedDeadLetterView):
        name, code = ABSENT, letter.reason or ABSENT
    else:
        name, code = letter.name, letter.error.code if letter.error else letter.reason or ABSENT
    return (
        shorten(clean(letter.id), MAX_ID),
        _format_age(letter.dead_lettered_at, now),
        shorten(clean(name), MAX_NAME),
        shorten(clean(code), MAX_NAME),
        "no" if letter.archived_at is None else "yes",
        "redriven" if letter.redriven_at else "in progress" if letter.redrive_started_at else "open",
    )


def describe_dead_letter(response: responses.DeadLetterResponse) -> str:
    """Return the facts about a dead letter, its execution log, and the other dead letters of its task."""
    blocks = [format_facts(_list_facts(response)), tasks.format_log(response.letter.attempt_log)]
    if response.other_failures:
        blocks += ["other dead letters of the task:", _format_other_failures(response)]
    return "\n\n".join(blocks)


def _list_facts(response: responses.DeadLetterResponse) -> dict[str, str]:
    letter, now = response.letter, response.now
    return tasks.list_task_facts(letter, response) | {
        "kept": f"among the dead letters of {response.database}",
        "failed at": _format_time(letter.dead_lettered_at, now),
        "redrives": f"{letter.redrives} before this failure",
        "fingerprint": letter.fingerprint or "none",
        "exported": _format_export(letter, now),
        "redriven": _format_redrive(letter, now),
    }


def _format_other_failures(response: responses.DeadLetterResponse) -> str:
    return format_table(
        {"redrives": "number", "failed at": "word", "reason": "word", "error": "text", "state": "word"},
        [
            (
                str(failure.redrives),
                _format_age(failure.dead_lettered_at, response.now),
                shorten(clean(failure.reason or ABSENT), _MAX_WORD),
                _format_error(failure),
                "open" if failure.redriven_at is None else "redriven",
            )
            for failure in response.other_failures
        ],
    )


def describe_redrive(total: responses.RedriveResponse | None, *, rate: float | None, is_dry_run: bool) -> Lines:
    """Yield the lines on a redrive with the response *total*, which is ``None`` if no call was answered."""
    if total is None:
        yield "nothing was redriven"
        return
    if not total.examined and not total.not_archived:
        yield f"no open dead letter matches in {total.database}"
        return
    verb = "would be redriven" if is_dry_run else "redriven"
    pace = ""
    if rate is not None and total.redriven:
        pace = f", due one by one over {format_duration(timedelta(seconds=total.redriven / rate))}"
    yield f"{_count_letters(total.redriven)} of {total.database} {verb}{pace}"
    if total.not_archived:
        later = _INCLUDED if is_dry_run else _LEFT
        yield f"{describe_not_archived(total.not_archived)}: {later}"
    yield from _list_refusals(total)


def _count_letters(number: int) -> str:
    return f"{number} dead {'letter' if number == 1 else 'letters'}"


def _list_refusals(total: responses.RedriveResponse) -> Lines:
    if not total.refused:
        return
    yield "\nrefused and left unchanged:\n"
    yield format_points(_format_refusal(code, number, total) for code, number in sorted(total.refused.items()))
    yield "\nexamples:\n"
    examples = total.examples[:_MAX_EXAMPLES]
    yield format_points(f"{shorten(clean(example.id), MAX_ID)}: {example.message}" for example in examples)


def _format_refusal(code: str, number: int, total: responses.RedriveResponse) -> str:
    names = ""
    if code == "unregistered":
        names = ": " + ", ".join(f"{name} ({n})" for name, n in sorted(total.unregistered.items()))
    return f"{number} {code}: {_MEANINGS.get(code, 'see the examples')}{names}"


def describe_purge(total: responses.PurgeResponse | None, verb: str) -> Lines:
    """Yield the lines on a purge with the response *total*, which is ``None`` if no call was answered."""
    if total is None or not total.examined:
        yield "nothing was destroyed" if total is None else f"no dead letter matches in {total.database}"
        return
    copies = "all of them exported"
    if total.unexported:
        copies = f"{total.unexported} of them not exported, so no copy is left"
    yield f"{_count_letters(total.purged)} of {total.database} {verb}" + (f": {copies}" if total.purged else "")
    if total.in_progress:
        yield f"{total.in_progress} kept: a redrive is in progress or was interrupted; archive completes it"


def describe_export(total: responses.ExportResponse) -> str:
    """Return a sentence on the exported dead letters."""
    return f"{_count_letters(total.exported)} of {total.database} exported"


def describe_unexported(total: responses.ExportResponse) -> str:
    """Return a sentence on the dead letters that an export left, with the reasons."""
    left = f"{total.left} or more" if total.left >= COUNT_LIMIT else str(total.left)
    dead_letters = "dead letter is" if total.left == 1 else "dead letters are"
    reasons = "; ".join(_list_export_reasons(total))
    return f"{left} {dead_letters} not exported and only in {total.database}: {reasons}"


def _list_export_reasons(total: responses.ExportResponse) -> Lines:
    if total.last_error is not None:
        yield f"S3 answered {total.last_error}"
    elif not total.refused:
        yield f"the bucket refused {'it' if total.left == 1 else 'them'} before"
    if total.refused:
        yield f"the bucket refused {total.refused} now"
    if total.refused or total.last_error is None:
        yield "`tidemill dlq show ID` shows the reason"


def describe_restored(result: Restored) -> str:
    """Return a sentence on the restore of one file."""
    if not result["restored"]:
        return f"{clean(result['file'])}: already among the dead letters"
    redrives = f", redriven {result['redrives']} times before" if result["redrives"] else ""
    return f"{clean(result['file'])}: task {clean(result['id'])} is a dead letter again{redrives}"


def _format_export(letter: responses.AnyDeadLetter, now: datetime) -> str:
    if letter.archived_at is not None:
        return _format_time(letter.archived_at, now)
    if not letter.export_attempts:
        return "not yet"
    again = "" if letter.export_retry_at is None else f"; next attempt {_format_time(letter.export_retry_at, now)}"
    return f"refused {letter.export_attempts} times, {letter.export_error or _UNKNOWN}{again}"


def _format_redrive(letter: responses.AnyDeadLetter, now: datetime) -> str:
    if letter.redriven_at is not None:
        return _format_time(letter.redriven_at, now)
    if letter.redrive_started_at is None:
        is_malformed = isinstance(letter, responses.MalformedDeadLetterView)
        return "no" if is_malformed else "no: `tidemill dlq redrive ID` runs it again"
    since = _format_time(letter.redrive_started_at, now)
    return f"in progress since {since}; if it was interrupted, archive completes it"


def _format_error(failure: responses.OtherFailure | responses.Sample) -> str:
    error: responses.ErrorView | None = failure.error
    if error is None:
        return failure.reason or _UNKNOWN
    return format_error(error.code, error.message)


def _format_age(at: datetime | None, now: datetime) -> str:
    """Return roughly the time from *at* to *now*."""
    return ABSENT if at is None else f"{format_duration(max(now - at, timedelta())).split()[0]} ago"


def _format_time(at: datetime | None, now: datetime) -> str:
    return ABSENT if at is None else format_time_and_distance(at, now=now)
