"""Which dead letters, on the command line."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final

from tidemill.cli.ops.asking import Document
from tidemill.wording import stamp

ID: Final = "a task's id as `dlq ls` shows it, or in JSON; one that begins with - goes last, behind --"

_TEXTS: Final = ("fingerprint", "name", "queue")
_TIMES: Final = ("since", "until")
_UNITS: Final = {
    "s": timedelta(seconds=1), "m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1)
}  # fmt: skip


def add_filters_to(parser: argparse.ArgumentParser) -> None:
    """Let dead letters be told by what they have in common."""
    parser.add_argument("--fingerprint", metavar="F", help="of this group only, as `dlq ls` shows it")
    parser.add_argument("--name", metavar="NAME", help="of this task function only")
    parser.add_argument("--queue", metavar="QUEUE", help="of this queue only")
    ago = "30m, 6h or 7d ago, or a time in UTC as 2026-07-01T09:00"
    parser.add_argument("--since", type=_moment, metavar="TIME", help=f"moved to the dead letters then or later: {ago}")
    parser.add_argument("--until", type=_moment, metavar="TIME", help="moved before then")


def add_choice_to(parser: argparse.ArgumentParser) -> None:
    """Let one, some or expressly all dead letters be chosen, to do something with them."""
    parser.add_argument("ids", nargs="*", metavar="ID", help=f"{ID}: its newest letter that is open")
    add_filters_to(parser)
    parser.add_argument("--redrives", type=count, metavar="N", help="of one ID, the letter that died after N redrives")
    parser.add_argument("--all", action="store_true", help="all there are: needed where nothing else says which")
    parser.add_argument("--dry-run", action="store_true", help="say what would happen, and change nothing")
    parser.add_argument("--limit", type=_positive, metavar="N", help="no more than N of them, the oldest first")


def given(chosen: argparse.Namespace) -> Document:
    """Return the fields of an operation for the filters that were given."""
    texts = {name: getattr(chosen, name) for name in _TEXTS}
    times = {name: stamp(getattr(chosen, name)) for name in _TIMES}
    return {name: value for name, value in (texts | times).items() if value is not None}


def requested(chosen: argparse.Namespace, *, refuse: Callable[[str], object]) -> list[Document]:
    """Return the fields of each operation that is needed for what was chosen.

    What makes no choice, or two, is told to *refuse*, which does not return.
    """
    filters = given(chosen)
    if not (chosen.ids or filters or chosen.all):
        refuse("say which dead letters: by ID, by --fingerprint, --name, --queue, --since or --until, or --all")
    if bool(chosen.ids) + bool(filters) + chosen.all > 1:
        refuse("IDs, filters and --all exclude each other")
    if chosen.redrives is not None and len(chosen.ids) != 1:
        refuse("--redrives goes with one ID")
    number = {} if chosen.redrives is None else {"redrives": chosen.redrives}
    if chosen.ids:
        return [{"id": one, **number} for one in dict.fromkeys(chosen.ids)]
    return [filters or {"all": True}]


def _moment(text: str) -> datetime:
    with suppress(ValueError, OverflowError):
        if ago := re.fullmatch("([0-9]{1,5})([smhd])", text):
            return datetime.now(UTC) - int(ago[1]) * _UNITS[ago[2]]
        at = datetime.fromisoformat(text)
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    raise argparse.ArgumentTypeError("must be like 30m, 6h or 7d, or a time like 2026-07-01T09:00")


def count(text: str) -> int:
    """Return the whole number that was given."""
    if not re.fullmatch("[0-9]{1,9}", text):
        raise argparse.ArgumentTypeError("must be a whole number")
    return int(text)


def _positive(text: str) -> int:
    number = count(text)
    if not number:
        raise argparse.ArgumentTypeError("must be above 0")
    return number
