"""What a queue chooses for itself, on the command line: the options of ``queue set``, and the same in words."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, TypeVar

from tidemill.errors import InvalidRequestError, Problem
from tidemill.policies import SELECTIONS, Adaptive, Budget, Pressure, QueueOptions

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
"""The fields of ``QueueOptions`` and of what they hold, and the option for each."""

_NOT_CHOSEN: Final = {
    "selection": "the deployment's",
    "retry share": "the deployment's",
    "retries in flight": "any number",
    "adaptive back-off": "off",
    "retry budget": "off",
}

_T = TypeVar("_T", Adaptive, Budget)


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


def changed(options: QueueOptions, given: Mapping[str, Any]) -> QueueOptions:
    """Return *options* with what was *given*.

    Raises:
        InvalidRequestError: A value is not allowed; the message names the option.
    """
    pressure = Pressure(
        adaptive=_switched(Adaptive, options.pressure.adaptive, name="adaptive", given=given),
        budget=_switched(Budget, options.pressure.budget, name="budget", given=given),
    )
    own = {name: given[name] for name in ("selection", "retry_share", "max_in_flight_retries") if name in given}
    cleared: dict[str, Any] = {name: None if value in (DEPLOYMENT, NONE) else value for name, value in own.items()}
    with _naming_the_option():
        return replace(options, pressure=pressure, **cleared)


def choices(options: QueueOptions) -> dict[str, str]:
    """Return in words what *options* choose, without what they leave to the deployment or off."""
    adaptive, budget = options.pressure.adaptive, options.pressure.budget
    words: dict[str, str] = {}
    if options.selection is not None:
        words["selection"] = options.selection
    if options.retry_share is not None:
        words["retry share"] = f"{options.retry_share:g}"
    if options.max_in_flight_retries is not None:
        words["retries in flight"] = f"at most {options.max_in_flight_retries}"
    if adaptive is not None:
        words["adaptive back-off"] = f"one more wait per {adaptive.scale} ready tasks, up to {adaptive.max_sec:g} s"
    if budget is not None:
        words["retry budget"] = f"{budget.per_minute} a minute, then waits are {budget.factor:g} times as long"
    return words


def in_words(options: QueueOptions) -> dict[str, str]:
    """Return in words all that holds for a queue with *options*."""
    return _NOT_CHOSEN | choices(options) | {"paused": "yes" if options.paused else "no"}


def _number_or(word: str, kind: Callable[[str], float], *, wanted: str) -> Callable[[str], float | str]:
    def value(text: str) -> float | str:
        try:
            return word if text == word else kind(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be {wanted} or the word {word}") from None

    return value


def _switched(kind: type[_T], held: _T | None, *, name: str, given: Mapping[str, Any]) -> _T | None:
    numbers = {field.removeprefix(f"{name}."): value for field, value in given.items() if field.startswith(f"{name}.")}
    if given.get(name) == "off":
        if numbers:
            raise InvalidRequestError([Problem(_FLAGS[name], "off does not go with numbers")])
        return None
    if not numbers and name not in given:
        return held
    with _naming_the_option(within=f"{name}."):
        return replace(held or kind(), **numbers)


@contextmanager
def _naming_the_option(within: str = "") -> Iterator[None]:
    try:
        yield
    except ValueError as error:  # begins with the field
        field, _, sentence = str(error).partition(" ")
        raise InvalidRequestError([Problem(_FLAGS[f"{within}{field}"], sentence)]) from None
