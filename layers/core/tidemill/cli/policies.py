"""``tidemill policy``: the retry presets and their delays. Needs no database."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any, Final

import click

from tidemill.cli.commands import Command, Group, build_json_option, is_json_wanted
from tidemill.cli.output import ABSENT, format_table, print_json, print_text
from tidemill.errors import InvalidRequestError, Problem
from tidemill.model import Backoff, RetryPolicy
from tidemill.policy.retry import PRESETS, backoff
from tidemill.text import did_you_mean, format_duration

_LATEST_DRAW = math.nextafter(1, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Delay before the *retry*-th retry: *wait* without jitter, and its bounds with jitter.

    ``latest_total`` is the latest start of the retry after the first failure, without the run times in between.
    """

    retry: int
    wait: timedelta
    earliest: timedelta
    latest: timedelta
    latest_total: timedelta


policy: Final = Group("policy", "Show the retry presets and their delays.")


def compute_waits(policy: RetryPolicy) -> Iterator[Wait]:
    """Yield the delays of *policy* in order."""
    total = timedelta()
    without_jitter = replace(policy.backoff, jitter="none")
    for retry in range(1, policy.max_retries + 1):
        latest = backoff(policy.backoff, failures=retry, draw=_LATEST_DRAW)
        total += latest
        yield Wait(
            retry=retry,
            wait=backoff(without_jitter, failures=retry, draw=0),
            earliest=backoff(policy.backoff, failures=retry, draw=0),
            latest=latest,
            latest_total=total,
        )


@policy.command("ls", cls=Command, params=[build_json_option()], example="tidemill policy ls")
def _list() -> None:
    """List the presets."""
    if is_json_wanted():
        print_json([_encode_policy(name, policy) for name, policy in PRESETS.items()])
        return
    print_text(
        format_table(
            {
                "preset": "word", "strategy": "word", "base": "number", "factor": "number", "cap": "number",
                "jitter": "word", "max_retries": "number",
            },
            [_format_row(name, policy) for name, policy in PRESETS.items()],
        )
    )  # fmt: skip


@policy.command("show", cls=Command, params=[build_json_option()], example="tidemill policy show patient")
@click.argument("name", metavar="NAME")
def _show(name: str) -> None:
    """Show the retry delays of the preset NAME."""
    preset = _find_preset(name)
    waits = list(compute_waits(preset))
    if is_json_wanted():
        print_json(_encode_policy(name, preset) | {"retries": waits})
    elif preset.max_retries == 0:
        print_text(f"{name}: one run, no retries")
    else:
        print_text(f"{name}: {_describe(preset)}\n")
        print_text(
            format_table(
                dict.fromkeys(("retry", "before jitter", "earliest", "latest", "latest since first failure"), "number"),
                [
                    (str(wait.retry), *map(format_duration, (wait.wait, wait.earliest, wait.latest, wait.latest_total)))
                    for wait in waits
                ],
            )
        )


def _find_preset(name: str) -> RetryPolicy:
    if name in PRESETS:
        return PRESETS[name]
    sentence = f"there is no preset {name}{did_you_mean(name, PRESETS) or ';'} the presets are {', '.join(PRESETS)}"
    raise InvalidRequestError([Problem("policy", sentence)])


def _describe(policy: RetryPolicy) -> str:
    options = policy.backoff
    base, cap = (format_duration(timedelta(seconds=sec)) for sec in (options.base_sec, options.max_sec))
    growth = f" x {options.factor:g}" if options.strategy == "exponential" else ""
    retries = "1 retry" if policy.max_retries == 1 else f"{policy.max_retries} retries"
    return f"{retries}, {options.strategy} from {base}{growth} up to {cap}, jitter {_format_jitter(options)}"


def _format_row(name: str, policy: RetryPolicy) -> tuple[str, ...]:
    if policy.max_retries == 0:
        return (name, *[ABSENT] * 5, "0")
    options = policy.backoff
    return (
        name,
        options.strategy,
        format_duration(timedelta(seconds=options.base_sec)),
        f"{options.factor:g}" if options.strategy == "exponential" else ABSENT,
        format_duration(timedelta(seconds=options.max_sec)),
        _format_jitter(options),
        str(policy.max_retries),
    )


def _format_jitter(options: Backoff) -> str:
    return f"proportional {options.jitter_factor:g}" if options.jitter == "proportional" else options.jitter


def _encode_policy(name: str, policy: RetryPolicy) -> dict[str, Any]:
    delays = asdict(policy.backoff)
    return {
        "name": name,
        "max_retries": policy.max_retries,
        **(delays if policy.max_retries else dict.fromkeys(delays)),
    }
