"""``tidemill dlq ls`` and ``show``: why tasks failed, which did, and one of them. Never payloads or results."""

from __future__ import annotations

import argparse
from typing import Final

from tidemill.cli.dlq import letter_text
from tidemill.cli.dlq.filters import ID, add_filters_to, count, given
from tidemill.cli.ops import task_text
from tidemill.cli.ops.asking import Document, add_action, answered, said
from tidemill.cli.tables import Commands, facts, say
from tidemill.operations.requests import MAX_LIMIT

MAX_PAGES: Final = 10
"""So many pages are asked for by one command: each may look at many letters and find none that matches."""

MOST: Final = MAX_PAGES * MAX_LIMIT


def add_to(actions: Commands) -> None:
    """Add ``ls`` and ``show``."""
    listing = add_action(actions, "ls", "list the reasons dead letters have in common, or the dead letters themselves")
    add_filters_to(listing)
    listing.add_argument("--redriven", action="store_true", help="those that went back, not those that are open")
    listing.add_argument("--letters", action="store_true", help="the letters themselves; so it is with any filter")
    listing.add_argument("--limit", type=_limit, default=20, metavar="N", help=f"up to {MOST}; default: %(default)s")
    listing.add_argument("--cursor", metavar="CURSOR", help="go on where an earlier list of letters ended")
    listing.set_defaults(command=_list)
    showing = add_action(actions, "show", "show a dead letter, its attempts, and other deaths of its task")
    showing.add_argument("id", metavar="ID", help=ID)
    showing.add_argument("--redrives", type=count, metavar="N", help="died after N redrives; default: the newest")
    showing.set_defaults(command=_show)


def _limit(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= MOST:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 to {MOST}")
    return int(text)


def _list(chosen: argparse.Namespace) -> None:
    if given(chosen) or chosen.letters or chosen.redriven or chosen.cursor is not None:
        _list_letters(chosen)
    else:
        _list_groups(chosen)


def _list_groups(chosen: argparse.Namespace) -> None:
    answer = answered(chosen, {"op": "dlq.groups", "limit": min(chosen.limit, MAX_LIMIT)})
    if said(chosen, answer):
        return
    newest = answer["newest_only"]
    among = "in" if newest is None else f"among the newest {newest} dead letters of"
    if not answer["groups"]:
        say(f"there are no open dead letters {among} {answer['database']}")
        return
    say(letter_text.groups(answer))
    say(f"\n{letter_text.total(answer)}")


def _list_letters(chosen: argparse.Namespace) -> None:
    answer = _pages(chosen)
    if said(chosen, answer):
        return
    more = answer["next"]
    if answer["letters"]:
        say(letter_text.letters(answer))
        if letter_text.is_cut(answer):
            say("\nlong ids are cut: --json has all of them")
    elif more is None:
        kind = "dead letter that was redriven" if chosen.redriven else "open dead letter"
        say(f"no {kind} matches in {answer['database']}")
    if more is not None:
        found = "there are more" if answer["letters"] else "none found so far"
        say(f"\n{found}: go on with the same options and --cursor {more}")


def _pages(chosen: argparse.Namespace) -> Document:
    """Return one answer with what was on the pages, up to the limit."""
    event: Document = {"op": "dlq.list", "redriven": chosen.redriven, **given(chosen)}
    if chosen.cursor is not None:
        event["cursor"] = chosen.cursor
    answer: Document = {}
    letters: list[Document] = []
    for _ in range(MAX_PAGES):
        answer = answered(chosen, event | {"limit": min(MAX_LIMIT, chosen.limit - len(letters))})
        letters += answer["letters"]
        if answer["next"] is None or len(letters) >= chosen.limit:
            break
        event["cursor"] = answer["next"]
    return answer | {"letters": letters}


def _show(chosen: argparse.Namespace) -> None:
    number = {} if chosen.redrives is None else {"redrives": chosen.redrives}
    answer = answered(chosen, {"op": "dlq.show", "id": chosen.id, **number})
    if said(chosen, answer):
        return
    log = answer["letter"]["attempt_log"]
    say(facts(letter_text.header(answer)))
    say(f"\n{task_text.log(log)}" if log else "\nno attempt is logged")
    if answer["deaths"]:
        say(f"\nother deaths of the task:\n\n{letter_text.deaths(answer)}")
