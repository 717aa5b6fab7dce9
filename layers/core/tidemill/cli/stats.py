"""``tidemill stats``: how retries went, from the counters that executors keep."""

from __future__ import annotations

import argparse
import re
from datetime import timedelta
from typing import Final

from tidemill.cli.database import database
from tidemill.cli.tables import ABSENT, Commands, add_json_to, clean, say, say_json, span, table
from tidemill.clock import ServerClock
from tidemill.status import RetryStatistics, retry_statistics

_UNITS: Final = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1)}


def add_to(commands: Commands) -> None:
    """Add ``stats``."""
    counting = commands.add_parser("stats", help="show how retries went")
    counting.add_argument("--queue", metavar="QUEUE", help="of this queue only")
    counting.add_argument(
        "--since", type=_since, default="24h", metavar="TIME", help="how far back: 30m, 6h or 7d (default 24h)"
    )
    add_json_to(counting)
    counting.set_defaults(command=_show)


def _since(text: str) -> timedelta:
    given = re.fullmatch("([0-9]{1,4})([mhd])", text)
    if given is None or not int(given[1]):
        raise argparse.ArgumentTypeError("must be like 30m, 6h or 7d")
    return int(given[1]) * _UNITS[given[2]]


def _show(chosen: argparse.Namespace) -> None:
    db = database()
    found = retry_statistics(db, since=ServerClock(db).now() - chosen.since)
    wanted = [one for one in found if chosen.queue in (None, one.queue)]
    if chosen.json:
        say_json([one.document() for one in wanted])
    elif not wanted:
        where = "" if chosen.queue is None else f" in queue {clean(chosen.queue)}"
        say(f"nothing was counted{where} in the last {span(chosen.since)}")
    else:
        say(f"retries of the last {span(chosen.since)}\n")
        say(_table(wanted))


def _table(statistics: list[RetryStatistics]) -> str:
    return table(
        {
            "queue": "text",
            "retries": "number",
            "succeeded": "number",
            "exhausted": "number",
            "mean\nback-off": "number",
            "back-off\nin all": "number",
            "retry\nqueue": "number",
            "time saved\n(estimate)": "number",
        },
        [
            (
                one.queue,
                str(one.retries),
                _succeeded(one),
                str(one.exhausted),
                ABSENT if one.mean_backoff is None else span(one.mean_backoff),
                span(one.time_in_backoff),
                str(one.depth),
                span(one.time_saved),
            )
            for one in statistics
        ],
    )


def _succeeded(one: RetryStatistics) -> str:
    return str(one.successful) if one.success_rate is None else f"{one.successful} ({one.success_rate:.1%})"
