"""``tidemill ops stats``: how retries went, from the counters that executors keep."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from tidemill.cli.ops.asking import Document, add_action, answered, said
from tidemill.cli.tables import ABSENT, Commands, clean, say, table
from tidemill.wording import span

_UNITS: Final = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1)}


def add_to(topics: Commands) -> None:
    """Add ``stats``."""
    counting = add_action(topics, "stats", "show how retries went")
    counting.add_argument("--queue", metavar="QUEUE", help="of this queue only")
    counting.add_argument(
        "--since", type=_since, default="24h", metavar="TIME", help="how far back: 30m, 6h or 7d (default 24h)"
    )
    counting.set_defaults(command=_show)


def _since(text: str) -> timedelta:
    given = re.fullmatch("([0-9]{1,4})([mhd])", text)
    if given is None or not int(given[1]):
        raise argparse.ArgumentTypeError("must be like 30m, 6h or 7d")
    return int(given[1]) * _UNITS[given[2]]


def _show(chosen: argparse.Namespace) -> None:
    only = {} if chosen.queue is None else {"queue": chosen.queue}
    answer = answered(chosen, {"op": "stats", "since_sec": chosen.since.total_seconds(), **only})
    if said(chosen, answer):
        return
    if not answer["statistics"]:
        where = "" if chosen.queue is None else f"queue {clean(chosen.queue)} of "
        say(f"nothing was counted in {where}{answer['database']} in the last {span(chosen.since)}")
    else:
        say(f"retries of the last {span(chosen.since)}\n")
        say(_table(answer["statistics"]))


def _table(statistics: Sequence[Document]) -> str:
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
                one["queue"],
                str(one["total_retries"]),
                _succeeded(one),
                str(one["retries_exhausted"]),
                _span(one["backoff_sec_mean"]),
                _span(one["backoff_sec_sum"]),
                str(one["retry_queue_size"]),
                _span(one["time_saved_sec_estimate"]),
            )
            for one in statistics
        ],
    )


def _succeeded(one: Document) -> str:
    successful, rate = one["successful_retries"], one["retry_success_rate"]
    return str(successful) if rate is None else f"{successful} ({rate:.1%})"


def _span(seconds: float | None) -> str:
    return ABSENT if seconds is None else span(timedelta(seconds=seconds))
