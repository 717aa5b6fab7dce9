"""``tidemill dlq purge``: dead letters are destroyed, once somebody has seen how many and says so."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from functools import partial

from tidemill.cli.dlq.filters import add_choice_to, requested
from tidemill.cli.dlq.progress import progress
from tidemill.cli.dlq.runs import Answers, going_on, heard_somewhere, run, telling_so_far
from tidemill.cli.ops.asking import Document, add_action, said
from tidemill.cli.tables import Commands, say
from tidemill.cli.watch import complain
from tidemill.errors import TidemillError


class NotConfirmedError(TidemillError):
    """Nobody has said that so many are to be destroyed."""


def add_to(actions: Commands) -> None:
    """Add ``purge``."""
    parser = add_action(actions, "purge", "destroy dead letters, redriven ones too")
    add_choice_to(parser)
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.set_defaults(command=partial(_purge, refuse=parser.error))


def _purge(chosen: argparse.Namespace, *, refuse: Callable[[str], object]) -> None:
    events = [{"op": "dlq.purge", **which} for which in requested(chosen, refuse=refuse)]
    looked = Answers("purged")
    with progress("looking", total=chosen.limit) as step:
        run(chosen, [one | {"dry_run": True} for one in events], looked, limit=chosen.limit, step=step)
    if chosen.dry_run or not looked.done:
        _tell(chosen, looked.document, "would be destroyed")
        return
    if not chosen.yes:
        _confirm(looked.document)
    answers = Answers("purged")
    is_told = telling_so_far(answers, "destroyed", ends=lambda: [going_on(chosen)])
    with is_told, progress("destroying", total=looked.done) as step:
        run(chosen, events, answers, limit=looked.done, step=step)  # of those that were told, whatever dies meanwhile
    kept = max(one.document.get("under_way", 0) for one in (looked, answers))  # it ends before the last of them
    told = answers.document and answers.document | {"under_way": kept}
    with heard_somewhere(lambda: _report(told, "destroyed")):
        _tell(chosen, told, "destroyed")


def _confirm(looked: Document) -> None:
    """Return once the number was typed.

    Raises:
        NotConfirmedError: It was not, or there is nobody to type it.
    """
    for line in _report(looked, "would be destroyed"):
        complain(line)
    if sys.stdin is None or not sys.stdin.isatty():
        raise NotConfirmedError("nobody is here to confirm it: --yes destroys them without being asked")
    print(f"type {looked['purged']} to destroy them: ", end="", file=sys.stderr, flush=True)  # noqa: T201
    if sys.stdin.readline().strip() != str(looked["purged"]):
        raise NotConfirmedError("that is not the number: nothing was destroyed")


def _tell(chosen: argparse.Namespace, told: Document, what: str) -> None:
    if chosen.json and told:
        said(chosen, told)
    elif not chosen.json:
        say("\n".join(_report(told, what)))


def _report(told: Document, what: str) -> Iterator[str]:
    if not told:
        yield "nothing was destroyed"
        return
    if not told["looked_at"]:
        yield f"no dead letter matches in {told['database']}"
        return
    purged, unexported = told["purged"], told["unexported"]
    copies = "all of them exported" if not unexported else f"{unexported} of them not exported, so nothing is left"
    letters = "dead letter" if purged == 1 else "dead letters"
    yield f"{purged} {letters} of {told['database']} {what}" + (f": {copies}" if purged else "")
    if told["under_way"]:
        yield f"{told['under_way']} kept: a redrive of them is under way, or was cut short; archive completes it"
