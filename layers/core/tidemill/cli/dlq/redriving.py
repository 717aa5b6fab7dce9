"""``tidemill dlq redrive``: dead letters become tasks again."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from tidemill.cli.cells import shortened
from tidemill.cli.dlq.filters import add_choice_to, requested
from tidemill.cli.dlq.progress import is_watched, progress
from tidemill.cli.dlq.runs import Answers, going_on, heard_somewhere, run, telling_so_far
from tidemill.cli.ops.asking import Document, add_action, said
from tidemill.cli.ops.task_lists import MAX_ID
from tidemill.cli.tables import Commands, clean, points, say
from tidemill.errors import TidemillError
from tidemill.operations.letter_requests import MAX_PER_SEC, MIN_PER_SEC
from tidemill.wording import moment, span

_EXAMPLES: Final = 5
_MEANING: Final = {
    "unregistered": "no executor has registered their function",
    "malformed": "no executor could run them as they are stored",
    "expired": "they had to start before a time that is over, or will be; --drop-expiry lets them start all the same",
    "under_way": "a redrive of them is under way, or was cut short a minute ago; if so, archive completes it",
    "conflict": "a living task has their id, or holds their idempotency key",
    "far_off": "at this --rate their turn would be more than a year away",
    "unwritable": "MongoDB refuses to change them: a validator, most likely",
}


class LeftDeadError(TidemillError):
    """Not all that was asked for was done."""


def add_to(actions: Commands) -> None:
    """Add ``redrive``."""
    parser = add_action(actions, "redrive", "run dead letters again from the beginning, the oldest first")
    add_choice_to(parser)
    parser.add_argument("--rate", type=_rate, metavar="N", help="let N become due a second, not all at once")
    parser.add_argument("--drop-expiry", action="store_true", help="let those start that had to start before now")
    parser.set_defaults(command=partial(_redrive, refuse=parser.error))


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not MIN_PER_SEC <= rate <= MAX_PER_SEC:
        raise argparse.ArgumentTypeError(f"must be a number from {MIN_PER_SEC:g} to {MAX_PER_SEC:.0f}")
    return rate


def _redrive(chosen: argparse.Namespace, *, refuse: Callable[[str], object]) -> None:
    how: Document = {"op": "dlq.redrive", "drop_expiry": chosen.drop_expiry}
    if chosen.rate is not None:
        how["per_sec"] = chosen.rate
    events = [how | which for which in requested(chosen, refuse=refuse)]
    answers = _looked(chosen, events) if chosen.dry_run else _redriven(chosen, events)
    with heard_somewhere(lambda: () if chosen.dry_run else _report(chosen, answers.document)):
        if not chosen.json:
            say("\n".join(_report(chosen, answers.document)))
        elif answers.document:
            said(chosen, answers.document)
    left = sum(answers.document.get("refused", {}).values()) + answers.failed
    if left and not chosen.dry_run:
        raise LeftDeadError(f"{left} of what was asked for could not be redriven")


def _looked(chosen: argparse.Namespace, events: list[Document]) -> Answers:
    answers = Answers("redriven")
    with progress("looking", total=chosen.limit) as step:
        run(chosen, [one | {"dry_run": True} for one in events], answers, limit=chosen.limit, step=step)
    return answers


def _redriven(chosen: argparse.Namespace, events: list[Document]) -> Answers:
    answers = Answers("redriven")
    total = _looked(chosen, events).done if is_watched() and not chosen.ids else None
    is_told = telling_so_far(answers, "redriven", ends=lambda: _ends(chosen, answers))
    with is_told, progress("redriving", total=total) as step:
        run(chosen, events, answers, limit=chosen.limit, step=step)
    return answers


def _ends(chosen: argparse.Namespace, answers: Answers) -> list[str]:
    """Return what becomes of a redrive that was stopped, and of those that are back."""
    completed = ["an archive a minute or more later completes what was begun"] if answers.unanswered else []
    if chosen.rate is None:
        return [*completed, going_on(chosen)]
    told = "the same command goes on with the rest, and its spread begins anew at once"
    if answers.began_at is None:
        return [*completed, told]
    length = timedelta(seconds=(answers.done + answers.unanswered) / chosen.rate)
    until = moment(datetime.fromisoformat(answers.began_at) + length)
    return [*completed, f"those that are back are spread until {until} UTC", f"{told}: wait till then to keep the rate"]


def _report(chosen: argparse.Namespace, told: Document) -> Iterator[str]:
    if not told.get("looked_at"):
        yield f"no open dead letter matches in {told['database']}" if told else "nothing was redriven"
        return
    redriven = told["redriven"]
    letters = "dead letter" if redriven == 1 else "dead letters"
    pace = ""
    if chosen.rate is not None and redriven:
        pace = f", due one by one over {span(timedelta(seconds=redriven / chosen.rate))}"
    would_be = "would be redriven" if chosen.dry_run else "redriven"
    yield f"{redriven} {letters} of {told['database']} {would_be}{pace}"
    yield from _refused(told)


def _refused(told: Document) -> Iterator[str]:
    if not told["refused"]:
        return
    yield "\nrefused, and left as they were:\n"
    yield points(_reason(code, count, told) for code, count in sorted(told["refused"].items()))
    yield "\nfor example:\n"
    yield points(f"{shortened(clean(one['id']), MAX_ID)}: {one['message']}" for one in told["examples"][:_EXAMPLES])


def _reason(code: str, count: int, told: Document) -> str:
    names = ""
    if code == "unregistered":
        names = ": " + ", ".join(f"{name} ({n})" for name, n in sorted(told["unregistered"].items()))
    return f"{count} {code}: {_MEANING.get(code, 'see the examples')}{names}"
