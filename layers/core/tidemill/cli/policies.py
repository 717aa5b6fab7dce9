"""``tidemill policy``: what the presets are, and which waits they lead to. Needs no database."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from tidemill.cli.tables import ABSENT, Commands, add_json_to, say, say_json, table
from tidemill.errors import InvalidRequestError, Problem
from tidemill.policies import Backoff, RetryPolicy
from tidemill.retry import PRESETS, backoff
from tidemill.wording import guess, span

_LATEST_DRAW = math.nextafter(1, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """The wait before the *retry*-th retry: *plain* without jitter, and within which limits jitter leaves it.

    ``total`` is how long after the first failure the retry starts at the latest, the runs in between left out.
    """

    retry: int
    plain: timedelta
    earliest: timedelta
    latest: timedelta
    total: timedelta


def add_to(commands: Commands) -> None:
    """Add ``policy`` with its sub-commands."""
    policy = commands.add_parser("policy", help="show the retry presets and the waits they lead to")
    actions = policy.add_subparsers(required=True, metavar="ACTION")
    listing = actions.add_parser("ls", help="list the presets")
    add_json_to(listing)
    listing.set_defaults(command=_list)
    showing = actions.add_parser("show", help="show when a preset retries")
    showing.add_argument("name", metavar="NAME", help=f"one of {', '.join(PRESETS)}")
    add_json_to(showing)
    showing.set_defaults(command=_show)


def waits(policy: RetryPolicy) -> Iterator[Wait]:
    """Yield the waits of *policy* in order."""
    total = timedelta()
    without_jitter = replace(policy.backoff, jitter="none")
    for retry in range(1, policy.max_retries + 1):
        latest = backoff(policy.backoff, failures=retry, draw=_LATEST_DRAW)
        total += latest
        yield Wait(
            retry=retry,
            plain=backoff(without_jitter, failures=retry, draw=0),
            earliest=backoff(policy.backoff, failures=retry, draw=0),
            latest=latest,
            total=total,
        )


def _list(chosen: argparse.Namespace) -> None:
    if chosen.json:
        say_json([_document(name, policy) for name, policy in PRESETS.items()])
        return
    say(
        table(
            {
                "preset": "word",
                "strategy": "word",
                "base": "number",
                "factor": "number",
                "cap": "number",
                "jitter": "word",
                "max_retries": "number",
            },
            [_row(name, policy) for name, policy in PRESETS.items()],
        )
    )


def _show(chosen: argparse.Namespace) -> None:
    policy = _preset(chosen.name)
    if chosen.json:
        say_json(_document(chosen.name, policy) | {"retries": [_wait_document(wait) for wait in waits(policy)]})
    elif policy.max_retries == 0:
        say(f"{chosen.name}: one run, no retries")
    else:
        say(f"{chosen.name}: {_in_words(policy)}\n")
        say(
            table(
                {
                    "retry": "number",
                    "before jitter": "number",
                    "earliest": "number",
                    "latest": "number",
                    "latest since first failure": "number",
                },
                [
                    (str(one.retry), *map(span, (one.plain, one.earliest, one.latest, one.total)))
                    for one in waits(policy)
                ],
            )
        )


def _preset(name: str) -> RetryPolicy:
    if name in PRESETS:
        return PRESETS[name]
    sentence = f"there is no preset {name}{guess(name, PRESETS) or ';'} the presets are {', '.join(PRESETS)}"
    raise InvalidRequestError([Problem("policy", sentence)])


def _in_words(policy: RetryPolicy) -> str:
    waiting = policy.backoff
    base, cap = (span(timedelta(seconds=sec)) for sec in (waiting.base_sec, waiting.max_sec))
    growth = f" x {waiting.factor:g}" if waiting.strategy == "exponential" else ""
    retries = "1 retry" if policy.max_retries == 1 else f"{policy.max_retries} retries"
    return f"{retries}, {waiting.strategy} from {base}{growth} up to {cap}, jitter {_jitter(waiting)}"


def _row(name: str, policy: RetryPolicy) -> tuple[str, ...]:
    if policy.max_retries == 0:
        return (name, *[ABSENT] * 5, "0")
    waiting = policy.backoff
    return (
        name,
        waiting.strategy,
        span(timedelta(seconds=waiting.base_sec)),
        f"{waiting.factor:g}" if waiting.strategy == "exponential" else ABSENT,
        span(timedelta(seconds=waiting.max_sec)),
        _jitter(waiting),
        str(policy.max_retries),
    )


def _jitter(waiting: Backoff) -> str:
    return f"proportional {waiting.jitter_factor:g}" if waiting.jitter == "proportional" else waiting.jitter


def _document(name: str, policy: RetryPolicy) -> dict[str, Any]:
    waiting = policy.backoff if policy.max_retries else None
    fields = ("strategy", "base_sec", "factor", "max_sec", "jitter", "jitter_factor")
    return {
        "name": name,
        "max_retries": policy.max_retries,
        **{field: None if waiting is None else getattr(waiting, field) for field in fields},
    }


def _wait_document(wait: Wait) -> dict[str, Any]:
    return {
        "retry": wait.retry,
        "wait_sec": wait.plain.total_seconds(),
        "earliest_sec": wait.earliest.total_seconds(),
        "latest_sec": wait.latest.total_seconds(),
        "latest_total_sec": wait.total.total_seconds(),
    }
