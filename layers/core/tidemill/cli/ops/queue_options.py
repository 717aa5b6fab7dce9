"""What a queue chooses for itself, on the command line: the options of ``queue set``, and the same in words."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from tidemill.errors import InvalidRequestError, Problem
from tidemill.policies import SELECTIONS

DEPLOYMENT: Final = "deployment"
NONE: Final = "none"

_FLAGS: Final = {
    "selection": "--selection",
    "retry_share": "--retry-share",
    "max_in_flight_retries": "--max-in-flight-retries",
    "adaptive": "--adaptive",
    "adaptive.scale": "--adaptive-scale",
    "adaptive.max_sec": "--adaptive-cap",
    "budget": "--budget",
    "budget.per_minute": "--budget-per-minute",
    "budget.factor": "--budget-factor",
}
"""The fields of the operation, and the option for each."""

_NOT_CHOSEN: Final = {
    "selection": "the deployment's",
    "retry share": "the deployment's",
    "retries in flight": "any number",
    "adaptive back-off": "off",
    "retry budget": "off",
}


def add_options_to(parser: argparse.ArgumentParser) -> None:
    """Add an option for each field; what is not used is to be absent from the parsed arguments."""

    def add(field: str, summary: str, **how: Any) -> None:  # noqa: ANN401 - what add_argument takes
        parser.add_argument(_FLAGS[field], dest=field, help=summary, default=argparse.SUPPRESS, **how)

    on_off = ("on", "off")
    share = _number_or(DEPLOYMENT, float, wanted="a number")
    cap = _number_or(NONE, int, wanted="a whole number")
    add("selection", "which lane is served first", choices=(*SELECTIONS, DEPLOYMENT))
    add("retry_share", "the part of the slots that retries hold, 0 to 1, or deployment", type=share, metavar="X")
    add("max_in_flight_retries", "how many retries run at once, or none for any number", type=cap, metavar="N")
    add("adaptive", "longer waits while many tasks are ready", choices=on_off)
    add("adaptive.scale", "how many ready tasks add one more wait; switches it on", type=int, metavar="N")
    add("adaptive.max_sec", "the longest wait this makes; switches it on", type=float, metavar="SEC")
    add("budget", "longer waits once many retries were scheduled in a minute", choices=on_off)
    add("budget.per_minute", "how many are many; switches it on", type=int, metavar="N")
    add("budget.factor", "how many times as long; switches it on", type=float, metavar="X")


def given_in(chosen: argparse.Namespace) -> dict[str, Any]:
    """Return the fields that were given, with their values."""
    return {field: value for field, value in vars(chosen).items() if field in _FLAGS}


def wanted(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the operation ``queue.set`` that say what was *given*.

    Raises:
        InvalidRequestError: What was given contradicts itself.
    """
    plain = {name: given[name] for name in ("selection", "retry_share", "max_in_flight_retries") if name in given}
    cleared = {name: None if value in (DEPLOYMENT, NONE) else value for name, value in plain.items()}
    return cleared | _switched("adaptive", given) | _switched("budget", given)


@contextmanager
def naming_the_option() -> Iterator[None]:
    """Let what is refused be named as it was given."""
    try:
        yield
    except InvalidRequestError as error:
        problems = [Problem(_FLAGS.get(one.field, one.field), one.message) for one in error.problems]
        raise InvalidRequestError(problems) from None


def choices(options: Mapping[str, Any]) -> dict[str, str]:
    """Return in words what *options*, as an answer has them, choose; not what they leave to the deployment or off."""
    adaptive, budget = options["pressure"]["adaptive"], options["pressure"]["budget"]
    words: dict[str, str] = {}
    if options["selection"] is not None:
        words["selection"] = options["selection"]
    if options["retry_share"] is not None:
        words["retry share"] = f"{options['retry_share']:g}"
    if options["max_in_flight_retries"] is not None:
        words["retries in flight"] = f"at most {options['max_in_flight_retries']}"
    if adaptive is not None:
        cap = f"{adaptive['max_sec']:g} s"
        words["adaptive back-off"] = f"one more wait per {adaptive['scale']} ready tasks, up to {cap}"
    if budget is not None:
        times = f"{budget['factor']:g} times as long"
        words["retry budget"] = f"{budget['per_minute']} a minute, then waits are {times}"
    return words


def in_words(options: Mapping[str, Any]) -> dict[str, str]:
    """Return in words all that holds for a queue with *options*."""
    return _NOT_CHOSEN | choices(options) | {"paused": "yes" if options["paused"] else "no"}


def _number_or(word: str, kind: Callable[[str], float], *, wanted: str) -> Callable[[str], float | str]:
    def value(text: str) -> float | str:
        try:
            return word if text == word else kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be {wanted} or the word {word}") from None

    return value


def _switched(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    numbers = {field.removeprefix(f"{name}."): value for field, value in given.items() if field.startswith(f"{name}.")}
    if given.get(name) == "off":
        if numbers:
            raise InvalidRequestError([Problem(_FLAGS[name], "off does not go with numbers")])
        return {name: None}
    return {name: numbers} if numbers or name in given else {}
